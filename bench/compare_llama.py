#!/usr/bin/env python3
"""attest and llama.cpp on the same model, the same token ids and the same threads, alternately in one run.

    python -m venv V && V/bin/pip install llama-cpp-python==0.3.36 && V/bin/python bench/compare_llama.py MODEL.gguf [--threads 2]

Both engines must first agree on greedy tokens. Then every case runs `--rounds` times, one engine after the other; the
medians and their ratio are printed, one JSON line per case. llama.cpp runs through its C API (llama_decode), with flash
attention on auto and its defaults for everything else; attest runs through its whole engine.
"""
import argparse
import ctypes
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import llama_cpp as L

CASES = [  # name, case line of bench_engine, tokens that count
    ("prefill 512", "prefill 512", 512),
    ("decode, context 16", "decode 16 64", 64),
    ("decode, context 2000", "decode 2000 32", 32),
    ("8 streams, context 128", "streams 8 128 32", 256),
]


class Attest:
    def __init__(self, binary, model, threads):
        self.process = subprocess.Popen([binary, model, "--threads", str(threads), "--max-model-len", "4096"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def seconds(self, line):
        return self.ask(line)["seconds"]

    def generate(self, ids, count):
        return self.ask(f"generate {count} " + " ".join(map(str, ids)))["tokens"]


class Llama:
    def __init__(self, model, threads):
        L.llama_backend_init()
        self.quiet = L.llama_log_callback(lambda *a: None)
        L.llama_log_set(self.quiet, ctypes.c_void_p(0))
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(model.encode(), params)
        self.vocab_size = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.threads = threads
        self.batch = L.llama_batch_init(4096, 0, 1)
        self.contexts = {}

    def context(self, sequences):
        if sequences not in self.contexts:
            params = L.llama_context_default_params()
            params.n_ctx = 2560 if sequences == 1 else 256 * sequences
            params.n_batch = 2048
            params.n_ubatch = 512
            params.n_seq_max = sequences
            params.n_threads = params.n_threads_batch = self.threads
            params.flash_attn_type = -1
            if hasattr(params, "kv_unified"):
                params.kv_unified = False
            self.contexts[sequences] = L.llama_init_from_model(self.model, params)
        L.llama_memory_clear(L.llama_get_memory(self.contexts[sequences]), True)
        return self.contexts[sequences]

    def decode(self, context, items, last_only=True):
        self.batch.n_tokens = len(items)
        for i, (token, position, sequence) in enumerate(items):
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
            self.batch.logits[i] = 0 if last_only and i < len(items) - 1 else 1
        assert L.llama_decode(context, self.batch) == 0
        L.llama_synchronize(context)

    def best(self, context, row):
        logits = L.llama_get_logits_ith(context, row)
        values = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self.vocab_size)).contents
        return max(range(self.vocab_size), key=values.__getitem__)

    def prompt(self, length, sequence):
        return [100 + ((i + 31 * sequence) * 7919) % (self.vocab_size - 200) for i in range(length)]

    def prefill(self, context, length, sequence=0):
        items = [(token, i, sequence) for i, token in enumerate(self.prompt(length, sequence))]
        self.decode(context, items)

    def seconds(self, line):
        verb, *numbers = line.split()
        numbers = [int(n) for n in numbers]
        if verb == "prefill":
            context = self.context(1)
            begin = time.perf_counter()
            self.prefill(context, numbers[0])
            return time.perf_counter() - begin
        sequences = numbers.pop(0) if verb == "streams" else 1
        length, count = numbers
        context = self.context(sequences)
        for sequence in range(sequences):
            self.prefill(context, length, sequence)
        begin = time.perf_counter()
        for step in range(count):  # any tokens do: the work does not depend on their values
            self.decode(context, [(100 + step + s, length + step, s) for s in range(sequences)], last_only=False)
        return time.perf_counter() - begin

    def generate(self, ids, count):
        context = self.context(1)
        self.decode(context, [(token, i, 0) for i, token in enumerate(ids)])
        tokens = [self.best(context, len(ids) - 1)]
        while len(tokens) < count:
            self.decode(context, [(tokens[-1], len(ids) + len(tokens) - 1, 0)])
            tokens.append(self.best(context, 0))
        return tokens


def agree(attest, llama):
    """Greedy tokens of both engines for a plain prompt; they may part at a near-tie, not before the 8th token."""
    prompt = [504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282, 4951, 314]  # "The capital of France is Paris. The capital of Italy is"
    prompt = [token % llama.vocab_size for token in prompt]
    ours, theirs = attest.generate(prompt, 24), llama.generate(prompt, 24)
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), 24)
    print(f"greedy tokens agree for the first {same} of 24", flush=True)
    if same < 8:
        sys.exit(f"the engines disagree: {ours} against {theirs}")


def processor():
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    root = pathlib.Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--binary", default=str(root / "build/release/bench/bench_engine"))
    options = parser.parse_args()
    attest, llama = Attest(options.binary, options.model, options.threads), Llama(options.model, options.threads)
    print(f"processor: {processor()}; {options.threads} threads; {pathlib.Path(options.model).name}", flush=True)
    agree(attest, llama)
    for name, line, tokens in CASES:
        times = {"attest": [], "llama.cpp": []}
        for round_number in range(options.rounds + 1):
            for engine, runner in (("attest", attest), ("llama.cpp", llama)):
                seconds = runner.seconds(line)
                if round_number > 0:  # the first round warms up
                    times[engine].append(tokens / seconds)
        rates = {engine: statistics.median(values) for engine, values in times.items()}
        print(json.dumps({"case": name, "attest_tokens_per_s": round(rates["attest"], 1),
                          "llama_cpp_tokens_per_s": round(rates["llama.cpp"], 1),
                          "ratio": round(rates["attest"] / rates["llama.cpp"], 2),
                          "attest_range": [round(min(times["attest"]), 1), round(max(times["attest"]), 1)],
                          "llama_cpp_range": [round(min(times["llama.cpp"]), 1), round(max(times["llama.cpp"]), 1)]}), flush=True)


if __name__ == "__main__":
    main()
