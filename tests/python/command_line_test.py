"""The program as a user runs it: errors in one line, statuses, and what each command prints."""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BINARY = os.environ.get("ATTEST_BINARY", "")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODEL = CACHE / "attest/models/SmolLM2-135M-Instruct.Q4_1.gguf"


def run(*args, env=None, stdin=""):
    return subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=120, input=stdin,
                          env={**os.environ, **(env or {})})


class WithoutAModel(unittest.TestCase):
    def refused(self, *args, status=1, env=None):
        result = run(*args, env=env)
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stderr

    def test_a_model_that_is_nowhere_names_every_place_and_the_download_line(self):
        with tempfile.TemporaryDirectory() as home:
            text = self.refused("serve", "org/missing", env={"HOME": home, "HF_HOME": "", "HF_HUB_CACHE": "", "XDG_CACHE_HOME": ""})
            self.assertIn("hf download org/missing", text)
            self.assertIn(home, text)

    def test_the_default_model_missing_is_status_3_when_only_resolving(self):
        with tempfile.TemporaryDirectory() as home:
            env = {"HOME": home, "XDG_CACHE_HOME": ""}
            self.refused("serve", "--resolve-only", status=3, env=env)
            self.assertIn("./scripts/serve", self.refused("serve", status=1, env=env))

    def test_broken_and_foreign_files_are_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in (("a.gguf", b""), ("b.gguf", b"GGUF"), ("c.gguf", b"GGUF\x03\0\0\0" + b"\xff" * 16),
                                  ("d.gguf", b"version https://git-lfs.github.com/spec/v1\n")):
                path = pathlib.Path(folder) / name
                path.write_bytes(content)
                text = self.refused("serve", path)
                self.assertEqual(text.count("\n"), 1, text)
                self.assertIn(name, text)

    def test_tensor_parallel_says_it_is_not_built(self):
        self.assertIn("--tensor-parallel-size is 2", self.refused("serve", "-tp", "2"))

    def test_unknown_flag_and_command_have_suggestions(self):
        self.assertIn("did you mean --port?", self.refused("serve", "--prot", "1", status=2))
        self.assertIn("did you mean explain?", self.refused("explian", status=2))

    def test_kernels_lists_the_oracle_last(self):
        result = run("kernels")
        self.assertEqual(result.returncode, 0)
        names = [line.split()[0] for line in result.stdout.splitlines() if "  [" in line]
        self.assertEqual(names[-1], "reference")
        self.assertIn("attention_general", names)

    def test_explain_names_the_value_that_a_kernel_refuses(self):
        result = run("explain", "--head-dim", "36", "--phase", "decode")
        self.assertEqual(result.returncode, 0)
        self.assertIn("head_dim is 36, expected", result.stdout)
        self.assertEqual(sum(line.rstrip().endswith(" runs") for line in result.stdout.splitlines()), 1)
        self.assertIn("no_such_kernel", run("explain", "--attention-backend", "no_such_kernel").stderr)


@unittest.skipUnless(MODEL.is_file(), f"{MODEL} is absent")
class WithTheDefaultModel(unittest.TestCase):
    def test_greedy_text_is_sensible_and_the_same_from_every_kernel(self):
        texts = {}
        for kernel in ("", "attention_general", "reference"):
            flags = ["--attention-backend", kernel] if kernel else []
            result = run("generate", MODEL, "-p", "The capital of France is", "-n", 4, *flags)
            self.assertEqual(result.returncode, 0, result.stderr)
            texts[kernel] = result.stdout
        self.assertIn("Paris", texts[""])
        self.assertEqual(len(set(texts.values())), 1, texts)

    def test_chat_remembers_the_conversation(self):
        result = run("chat", MODEL, "-n", 24, stdin="What is the capital of France?\n/reset\n\n/exit\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Paris", result.stdout)

    def test_tokenize_round_trip(self):
        ids = run("tokenize", MODEL, "-p", "The capital of France is Paris. 12345", "--ids").stdout.split()
        self.assertEqual(ids[:7], ["504", "3575", "282", "4649", "314", "7042", "30"])
        self.assertEqual(run("tokenize", MODEL, "--decode", ",".join(ids)).stdout, "The capital of France is Paris. 12345\n")
        self.assertIn("'99999999' is not a token id", run("tokenize", MODEL, "--decode", "99999999").stderr)

    def test_inspect_gives_a_verdict(self):
        text = run("inspect", MODEL).stdout
        self.assertIn("q4_1", text)
        self.assertIn("23040 bytes per token", text)
        self.assertIn("verdict", text)

    def test_a_prompt_longer_than_the_context_is_refused(self):
        self.assertIn("longest context is 64", run("generate", MODEL, "--max-model-len", 64, "-p", "word " * 100).stderr)

    def test_a_context_larger_than_the_models_is_refused(self):
        self.assertIn("--max-model-len is 100000, the model's own limit is 8192", run("generate", MODEL, "--max-model-len", 100000, "-p", "x").stderr)

    def test_too_little_memory_for_one_sequence_is_refused(self):
        result = run("generate", MODEL, "--kv-cache-gib", 0.001, "--max-model-len", 8192, "-p", "x")
        self.assertEqual(result.returncode, 1)
        self.assertIn("8192", result.stderr.replace(",", ""))

    def test_a_port_in_use_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.assertIn(f"127.0.0.1:{port}", run("serve", MODEL, "--port", port).stderr)

    def test_it_listens_within_3_seconds_and_drains_on_sigterm(self):
        begin = time.monotonic()
        process = subprocess.Popen([BINARY, "serve", MODEL, "--port", "0", "--max-model-len", "512", "--max-num-seqs", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            line = process.stdout.readline()
            seconds = time.monotonic() - begin
            self.assertIn("listening on http://127.0.0.1:", line)
            self.assertLess(seconds, 3.0 * float(os.environ.get("ATTEST_TIME_SCALE", "1")))
            with open(f"/proc/{process.pid}/status") as status:
                resident = 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
            kv_cache = 512 * 23040
            self.assertLess(resident, 1.15 * (MODEL.stat().st_size + kv_cache), "weights take more memory than their file")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=20), 0)
        finally:
            process.kill()
            process.communicate()


if __name__ == "__main__":
    if not pathlib.Path(BINARY).is_file():
        print("skipped: ATTEST_BINARY is not built")
        sys.exit(77)
    unittest.main()
