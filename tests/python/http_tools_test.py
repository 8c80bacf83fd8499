"""The README's own lines, curl, wrk, and Prometheus's parsers against the server.

Needs the program ($ATTEST_BINARY) and the default model in the cache; exits 77 where one is missing. Each tool is
skipped where it is not installed: curl, wrk, promtool (Debian's package prometheus), the Python packages openai and
prometheus_client."""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from openai_client_test import BINARY, MODEL, NAME, Server  # noqa: E402
from prerequisites import run_tests  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("ATTEST_SOURCE_DIR") or pathlib.Path(__file__).resolve().parents[2])
WRK_COMPLETION = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model": "NAME", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}'
"""


def needs(program):
    return unittest.skipUnless(shutil.which(program), f"{program} is not installed")


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=120, **options)


class TheReadme(unittest.TestCase):
    def test_its_lines_work_as_they_stand(self):
        # Started as the README starts it, but for a port of its own.
        process = subprocess.Popen([BINARY, "serve", str(MODEL), "--port", "0", "--served-model-name", "SmolLM2-135M-Instruct"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            said = ""
            while "curl " not in said:
                line = process.stdout.readline()
                self.assertTrue(line, said)
                said += line
            url = re.search(r"http://127\.0\.0\.1:\d+", said)[0]
            if shutil.which("curl"):
                printed = next(line for line in said.splitlines() if line.strip().startswith("curl "))
                answer = run("sh", "-c", printed.strip().replace("curl ", "curl -sS --fail-with-body ", 1))
                self.assertEqual(answer.returncode, 0, answer)
                self.assertIn("Paris", json.loads(answer.stdout)["choices"][0]["message"]["content"])
            if importlib.util.find_spec("openai"):
                program = re.search(r"```python\n(.*?)```", (SOURCE / "README.md").read_text(), re.S)[1]
                self.assertIn("http://127.0.0.1:8000", program)
                answer = run(sys.executable, "-c", program.replace("http://127.0.0.1:8000", url))
                self.assertEqual(answer.returncode, 0, answer)
                self.assertIn("Paris", answer.stdout)
        finally:
            process.terminate()
            self.assertEqual(process.wait(timeout=60), 0)
            process.stdout.close()


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--metrics-prefix", "attest_")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def curl(self, path, *flags, body=None):
        data = ["-H", "Content-Type: application/json", "--data-binary", "@-"] if body is not None else []
        return run("curl", "-sS", *flags, *data, self.server.url + path, input=None if body is None else json.dumps(body))

    def metrics(self):
        with urllib.request.urlopen(self.server.url + "/metrics", timeout=10) as reply:
            return reply.headers["Content-Type"], reply.read().decode()

    @needs("curl")
    def test_curl_streams_and_ends(self):
        answer = self.curl("/v1/completions", "-N", body={"prompt": "a", "max_tokens": 3, "stream": True})
        events = answer.stdout.split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        self.assertTrue(all(event.startswith("data: ") for event in events[:-1]), events)
        old = self.curl("/v1/completions", "-0", body={"prompt": "a", "max_tokens": 3, "stream": True})
        self.assertTrue(old.stdout.endswith("data: [DONE]\n\n"), old)

    @needs("curl")
    def test_curl_asks_for_headers_and_does_not_wait_before_a_large_body(self):
        head = self.curl("/health", "-I")
        self.assertIn("200", head.stdout.splitlines()[0])
        self.assertNotIn("{", head.stdout)
        # curl sends Expect: 100-continue and would wait a second for the answer.
        began = time.monotonic()
        answer = self.curl("/v1/completions", "-w", "%{http_code}", "-H", "Expect: 100-continue",
                           body={"prompt": "word " * 300_000, "max_tokens": 1})
        self.assertTrue(answer.stdout.endswith("400"), answer.stdout[-300:])
        print(f"a body of 1.5 MB: {time.monotonic() - began:.2f} s")
        both = run("curl", "-sS", self.server.url + "/v1/models", self.server.url + "/version", "-w", "%{num_connects} ")
        self.assertEqual(re.findall(r"(\d) ", both.stdout[both.stdout.index("}"):])[-1], "0", both.stdout)  # kept alive

    @needs("wrk")
    def test_wrk_sees_no_errors(self):
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
            script.write(WRK_COMPLETION.replace("NAME", NAME))
            script.flush()
            for path, flags in (("/health", ["-c64"]), ("/v1/completions", ["-c8", "-s", script.name])):
                report = run("wrk", "-t1", "-d2s", "--timeout", "20s", *flags, self.server.url + path).stdout
                rate = float(re.search(r"Requests/sec:\s+([\d.]+)", report)[1])
                print(f"wrk {path}: {rate:.0f} requests/s")
                self.assertGreater(rate, 0)
                self.assertNotIn("Socket errors", report)
                self.assertNotIn("Non-2xx", report)

    @unittest.skipUnless(importlib.util.find_spec("prometheus_client"), "prometheus_client is not installed")
    def test_prometheus_parses_the_metrics_while_requests_run(self):
        from prometheus_client.parser import text_string_to_metric_families

        body = json.dumps({"model": NAME, "prompt": "a", "max_tokens": 40, "ignore_eos": True}).encode()
        request = urllib.request.Request(self.server.url + "/v1/completions", body)
        running = threading.Thread(target=lambda: urllib.request.urlopen(request).read())
        running.start()
        while running.is_alive():
            self.parse(text_string_to_metric_families)
        self.parse(text_string_to_metric_families)

    def parse(self, parser):
        content_type, text = self.metrics()
        self.assertIn("version=0.0.4", content_type)
        families = {family.name: family for family in parser(text)}
        self.assertGreater(len(families), 35)
        names = re.findall(r"^# TYPE (\S+)", text, re.M)
        self.assertEqual(len(names), len(set(names)))  # a family that came in two pieces would be two
        for family in families.values():
            self.assertTrue(family.documentation and family.type in ("counter", "gauge", "histogram"), family.name)
            seen = set()
            for sample in family.samples:
                self.assertNotIn((sample.name, tuple(sorted(sample.labels.items()))), seen)
                seen.add((sample.name, tuple(sorted(sample.labels.items()))))
                self.assertEqual((sample.labels["model_name"], sample.labels["engine"]), (NAME, "0"))
            if family.type == "histogram":
                buckets = [s.value for s in family.samples if s.name.endswith("_bucket")]
                count = next(s.value for s in family.samples if s.name.endswith("_count"))
                self.assertEqual((buckets, buckets[-1]), (sorted(buckets), count), family.name)

    @needs("promtool")
    def test_promtool_finds_the_metrics_clean(self):
        found = run("promtool", "check", "metrics", input=self.metrics()[1]).stderr.splitlines()
        # The name is other servers', whose dashboards read it.
        self.assertEqual([line for line in found if not line.startswith("attest_iteration_tokens_total ")], [])


if __name__ == "__main__":
    run_tests((not os.path.isfile(BINARY), "$ATTEST_BINARY"), (MODEL is None, "the default model"))
