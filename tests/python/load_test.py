#!/usr/bin/env python3
"""The server under load and faults, at small counts: every scenario of bench/load_server.py with --quick.

Needs the program ($ATTEST_BINARY); exits 77 where it is missing."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

BINARY = os.environ.get("ATTEST_BINARY", "")
SOURCE = pathlib.Path(os.environ.get("ATTEST_SOURCE_DIR") or pathlib.Path(__file__).resolve().parents[2])
SCENARIOS = ["binds", "crowd", "kill", "drain", "exhaustion", "storm", "hostile", "ahead", "keep_alive", "growth",
             "streams"]


class Load(unittest.TestCase):
    def test_every_scenario_holds_what_it_claims(self):
        # No limits on the delay of tokens and on steps meanwhile: the machine may be busy. bench/load_server.py has them.
        done = subprocess.run([sys.executable, SOURCE / "bench/load_server.py", *SCENARIOS, "--quick", "--max-added", "inf",
                               "--max-steps", "inf",
                               "--binary", BINARY], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr[-6000:])
        self.assertEqual([json.loads(line)["scenario"] for line in done.stdout.splitlines()], SCENARIOS)


if __name__ == "__main__":
    if not pathlib.Path(BINARY).is_file():
        print("needs the program, $ATTEST_BINARY")
        sys.exit(77)
    unittest.main()
