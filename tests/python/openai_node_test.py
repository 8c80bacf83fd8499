"""The OpenAI JavaScript SDK, unmodified, as a client.

Needs the program ($ATTEST_BINARY), the default model in the cache, node, and the package openai where node finds it
(`npm install openai` in a folder F, then NODE_PATH=F/node_modules); exits 77 where one is missing."""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from openai_client_test import BINARY, MODEL, NAME, Server  # noqa: E402
from prerequisites import run_tests  # noqa: E402

SCRIPT = pathlib.Path(__file__).resolve().with_name("openai_node_client.cjs")


def has_openai():
    return shutil.which("node") and subprocess.run(
        ["node", "-e", "require.resolve('openai')"], cwd=SCRIPT.parent, capture_output=True).returncode == 0


class WithNode(unittest.TestCase):
    def test_every_part_of_the_script_passes(self):
        server = Server()
        try:
            run = subprocess.run(["node", str(SCRIPT), server.url, NAME], capture_output=True, text=True, timeout=120)
            print(run.stdout)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual(run.stdout.count(": ok"), 5)
        finally:
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    run_tests((not os.path.isfile(BINARY), "$ATTEST_BINARY"), (MODEL is None, "the default model"),
              (not has_openai(), "node with the package openai"))
