"""schemathesis against the server's own /openapi.json: requests made from the description, right and wrong ones, never get
a 5xx, and every answer is one that the description allows.

Needs the program ($ATTEST_BINARY), the default model in the cache and the package schemathesis; exits 77 where one is
missing. $ATTEST_SCHEMATHESIS_EXAMPLES sets how many requests are made up for each route, beside those at the edges."""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from openai_client_test import BINARY, MODEL, Server  # noqa: E402
from prerequisites import run_tests  # noqa: E402

EXAMPLES = os.environ.get("ATTEST_SCHEMATHESIS_EXAMPLES", "8")
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance", "negative_data_rejection", "unsupported_method", "missing_required_header",
          "allow_header_conformance", "ignored_auth")


class AgainstTheDescription(unittest.TestCase):
    def check(self, *server_flags, key=None):
        # A short context, so that what is generated ends soon.
        server = Server(*server_flags, max_model_len=64)
        try:
            with tempfile.TemporaryDirectory() as folder:
                run = subprocess.run(
                    [sys.executable, "-m", "schemathesis.cli", "run", server.url + "/openapi.json",
                     "--phases", "examples,coverage,fuzzing", "--checks", ",".join(CHECKS), "--max-examples", EXAMPLES,
                     "--request-timeout", "60", "--generation-deterministic", "--no-color",
                     "--suppress-health-check", "all", *(("--header", f"Authorization: Bearer {key}") if key else ())],
                    cwd=folder, capture_output=True, text=True, timeout=800)
            self.assertEqual(run.returncode, 0, run.stdout[-12000:] + run.stderr[-3000:])
            summary = run.stdout[run.stdout.index("Test cases:"):] if "Test cases:" in run.stdout else run.stdout[-600:]
            print(re.sub(r"\n+", "\n", summary))
            self.assertEqual(server.metric("num_requests_running") + server.metric("num_requests_waiting"), 0)
            self.assertEqual(server.metric("engine_failed_steps_total"), 0)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_no_answer_breaks_it(self):
        self.check()

    def test_no_answer_breaks_it_with_a_key_and_the_routes_of_developers(self):
        self.check("--api-key", "secret", "--enable-dev-endpoints", "--scheduling-policy", "priority",
                   "--verify-attention", "0", key="secret")


if __name__ == "__main__":
    run_tests((not os.path.isfile(BINARY), "$ATTEST_BINARY"), (MODEL is None, "the default model"),
              (importlib.util.find_spec("schemathesis") is None, "the package schemathesis"))
