#!/usr/bin/env python3
"""The sentinel on a real model with a broken kernel: what it reports, what the client gets, and what is kept.

Serves the default model with the program whose kernels can be broken at run time (attest_mutated, ATTEST_MUTANT) and
compares with the clean program. Exits 77 where the model or that program is missing."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

BINARY = os.environ.get("ATTEST_BINARY", "")
MUTATED = str(pathlib.Path(BINARY).parent / "tests/mutants/attest_mutated")
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
FOLDERS = [pathlib.Path(os.environ.get("ATTEST_MODELS") or CACHE / "attest-models"), CACHE / "attest/models"]
MODEL = next((folder / FILE for folder in FOLDERS if (folder / FILE).is_file()), None)
# Greedy texts whose best token is never close to the second: another kernel rounds otherwise and must not flip one.
QUESTIONS = ["What is the capital of France?", "Name three primary colors.", "How many days does a week have?"]
TOKENS = 24


class Server:
    """attest serve on a free port, with a broken kernel or none."""

    def __init__(self, *flags, mutant="", cases=""):
        self.folder = tempfile.TemporaryDirectory()
        self.cases = pathlib.Path(cases or pathlib.Path(self.folder.name) / "cases")
        self.log = open(pathlib.Path(self.folder.name) / "log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [MUTATED if mutant else BINARY, "serve", str(MODEL), "--host", "127.0.0.1", "--port", "0", "--threads", "2",
             "--max-model-len", "512", "--attention-cases", str(self.cases), *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ, "ATTEST_MUTANT": mutant})
        for line in self.process.stdout:
            if found := re.search(r"listening on (http://127\.0\.0\.1:\d+)", line):
                self.url = found[1]
                break
        else:
            raise RuntimeError(f"attest serve ended with status {self.process.wait()}: {self.read_log()}")
        self.reader = threading.Thread(target=self.process.stdout.read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.ended()
        self.log.close()
        self.folder.cleanup()

    def ended(self):
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self.reader.join()
            self.process.stdout.close()

    def read_log(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def get(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def health(self):
        status, body = self.get("/health")
        return status, json.loads(body)

    def series(self, name):
        return [float(line.rsplit(" ", 1)[1]) for line in self.get("/metrics")[1].splitlines()
                if line.startswith(f"attest:{name}{{")]

    def metric(self, name):
        """The sum over the labels, or None when there is no such series."""
        values = self.series(name)
        return sum(values) if values else None

    def chat(self, question, stream=False):
        """Status and text (or the error's message)."""
        body = json.dumps({"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": TOKENS,
                           "stream": stream}).encode()
        request = urllib.request.Request(self.url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                text = reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["error"]["message"]
        if not stream:
            return 200, json.loads(text)["choices"][0]["message"]["content"]
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
        return 200, "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events)

    def chat_all(self, stream=False):
        """Every question at once, in one batch."""
        answers = [None] * len(QUESTIONS)

        def ask(index):
            answers[index] = self.chat(QUESTIONS[index], stream)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(QUESTIONS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def case_files(self):
        return sorted(self.cases.glob("case-*.safetensors")) if self.cases.is_dir() else []


def replay(binary, case, *flags, mutant=""):
    done = subprocess.run([binary, "replay", str(case), *flags], capture_output=True, text=True, check=False,
                          env={**os.environ, "ATTEST_MUTANT": mutant})
    return done.returncode, done.stdout, done.stderr


class Sentinel(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        with Server("--verify-attention", "0") as server:
            cls.clean = [(200, server.chat(question)[1]) for question in QUESTIONS]
            assert server.get("/health") == (200, "")  # nothing is checked, nothing is told
            assert server.metric("attention_verify_rate") is None
        assert all(status == 200 and len(text) > 5 for status, text in cls.clean), cls.clean

    def quarantined(self, server):
        status, health = server.health()
        self.assertEqual(status, 200)
        self.assertEqual(health["status"], "degraded")
        return health["attention"]["quarantined"]

    def test_a_right_kernel_is_checked_in_every_row_and_never_accused(self):
        with Server("--verify-attention", "1") as server:
            self.assertEqual(server.chat_all(), self.clean)
            self.assertEqual(server.health()[1]["status"], "ok")
            rows = server.metric("attention_verified_rows_total")
            # 30 layers of 9 heads: every row that was computed was checked.
            self.assertEqual(rows, 270 * server.metric("attention_rows_total"))
            self.assertGreater(rows, 270 * TOKENS)
            self.assertEqual(server.metric("attention_mismatches_total"), 0)
            self.assertTrue(all(ratio < 1 for ratio in server.series("attention_worst_error_ratio")))
            self.assertEqual(server.case_files(), [])

    def test_at_rate_one_nothing_wrong_is_ever_sent(self):
        # Prefill is right here and decode is wrong, so that the mismatch comes when an answer is under way.
        for stream in (False, True):
            with self.subTest(stream=stream), Server("--verify-attention", "1",
                                                     mutant="zero_trip_loop_decode") as server:
                self.assertEqual(server.chat_all(stream), self.clean)
                self.assertTrue(any("decode" in kernel for kernel in self.quarantined(server)))
                self.assertGreaterEqual(server.metric("engine_discarded_steps_total"), 1)
                self.assertEqual(server.metric("retracted_tokens_total"), 0)
                self.assertGreater(server.metric("attention_mismatches_total"), 0)

    def test_at_the_default_rate_a_kernel_wrong_in_every_row_is_found_in_its_first_step(self):
        for mutant, stream in (("zero_trip_loop", True), ("zero_trip_loop_decode", False),
                               ("zero_trip_loop_decode", True), ("window_off_by_one", False)):
            with self.subTest(mutant=mutant, stream=stream), Server(mutant=mutant) as server:
                answers = [server.chat(question, stream) for question in QUESTIONS]
                # The bound: the first row that a kernel computes in a phase is checked before its step is committed,
                # so no token of such a kernel is ever sent and the texts are those of the clean run.
                self.assertEqual(answers, self.clean)
                kernels = self.quarantined(server)
                # Each step that was thrown away took one kernel or more out of the list, and nothing else did.
                self.assertGreaterEqual(len(kernels), server.metric("engine_discarded_steps_total"))
                # A decode kernel is found after one token, which a right prefill kernel made; it is made again.
                self.assertLessEqual(server.metric("retracted_tokens_total"), 0 if stream else len(kernels))
                self.assertEqual(server.metric("attention_kernel_quarantined"), len(kernels))
                self.assertLess(server.metric("attention_verified_rows_total"), 400)  # of some 30,000
                self.assertGreaterEqual(len(server.case_files()), 1)

    def test_the_log_the_kernel_list_and_the_case_file_say_where_it_was(self):
        with Server(mutant="zero_trip_loop") as server:
            server.chat(QUESTIONS[0])
            first = self.quarantined(server)[0]
            log = server.read_log()
            lines = [line for line in log.splitlines() if f"attention kernel {first} is wrong" in line]
            self.assertEqual(len([line for line in lines if "(mismatch 1 of" in line]), 1, log)
            self.assertLessEqual(len(lines), 3, log)  # the first, the tenth, the hundredth
            self.assertRegex(lines[0], r"is wrong in prefill: step \d+ layer \d+ sequence 0 row \d+ head \d+ dim \d+: ")
            self.assertIn(f"attention kernel {first} is quarantined", log)
            self.assertNotIn("France", log)
            self.assertNotIn("Paris", log)

            listed = subprocess.run([BINARY, "kernels", "--server", server.url], capture_output=True, text=True,
                                    check=True).stdout
            self.assertRegex(listed, rf"(?m)^{first} .*\n +QUARANTINED by {re.escape(server.url)}")

            case = server.case_files()[0]
            self.assertEqual(case.stat().st_mode & 0o777, 0o600)
            status, out, _ = replay(MUTATED, case, mutant="zero_trip_loop")
            self.assertEqual(status, 1)
            self.assertRegex(out, rf"computed again \(prefill {first}\)\n  first difference at sequence 0 row 0 head 0 dim 0 ")
            status, out, _ = replay(BINARY, case)
            self.assertEqual(status, 0, out)
            self.assertRegex(out, r"recorded output .*\n  first difference at sequence 0 row 0 head 0 dim 0 ")
            self.assertRegex(out, r"computed again .*\n  no difference in \d+ rows")
            status, out, _ = replay(BINARY, case, "--kernel", "all")
            self.assertEqual(status, 0, out)
            self.assertRegex(out, r"\nreference .*\n  no difference")

    def test_replay_refuses_what_it_cannot_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.safetensors"
            self.assertEqual(replay(BINARY, path)[0], 2)
            path.write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
            status, _, error = replay(BINARY, path)
            self.assertEqual(status, 2)
            self.assertIn("format is absent", error)

    def test_log_goes_on_with_the_wrong_kernel_and_counts(self):
        with Server("--on-mismatch", "log", mutant="zero_trip_loop") as server:
            status, text = server.chat(QUESTIONS[0])
            self.assertTrue(status == 500 or text != self.clean[0][1])
            self.assertEqual(server.health()[1]["attention"]["quarantined"], [])
            self.assertGreater(server.metric("attention_mismatches_total"), 0)
            self.assertEqual(server.metric("engine_discarded_steps_total"), 0)

    def test_stop_ends_requests_with_the_reason_and_the_program_with_a_status(self):
        with Server("--on-mismatch", "stop", mutant="zero_trip_loop") as server:
            status, message = server.chat(QUESTIONS[0])
            self.assertEqual(status, 500)
            self.assertRegex(message, r"attention kernel \w+ is wrong in prefill")
            self.assertEqual(server.ended(), 1)
            self.assertIn("attest serve: attention kernel", server.read_log())
            self.assertEqual(len(server.case_files()), 1)

    def test_a_forced_kernel_that_is_wrong_leaves_nothing_to_serve_with(self):
        with Server("--attention-backend", "attention_general", mutant="skip_threshold") as server:
            status, message = server.chat(QUESTIONS[0])
            self.assertEqual(status, 500)
            self.assertIn("attention kernel attention_general is quarantined and no other may run for", message)
            self.assertEqual(server.ended(), 1)

    def test_a_case_folder_that_cannot_be_written_hurts_nobody(self):
        with tempfile.NamedTemporaryFile() as file, Server(mutant="zero_trip_loop", cases=file.name + "/x") as server:
            self.assertEqual(server.chat(QUESTIONS[0]), self.clean[0])
            self.assertEqual(len(re.findall("attention case not written", server.read_log())), 1)
            text = server.get("/metrics")[1]
            self.assertRegex(text, r'attest:attention_cases_total\{.*result="failed"\} [1-9]')

    def test_at_most_so_many_cases_are_kept(self):
        with Server("--max-attention-cases", "1", mutant="window_off_by_one") as server:
            for question in QUESTIONS:
                server.chat(question)
            self.assertGreaterEqual(len(self.quarantined(server)), 2)
            self.assertEqual(len(server.case_files()), 1)


if __name__ == "__main__":
    if MODEL is None:
        print(f"skipped: {FILE} is in none of {', '.join(map(str, FOLDERS))}")
        sys.exit(77)
    if not pathlib.Path(MUTATED).is_file():
        print(f"skipped: {MUTATED} is not built")
        sys.exit(77)
    unittest.main()
