#!/usr/bin/env python3
"""Our encoder beside the PyPI library `tokenizers`: same text, one thread, same run, interleaved rounds.

  bench_tokenizer.py --program BUILD/bench/bench_tokenizer [TOKENIZER_JSON ...]

Without tokenizers, those of tests/data/text. The text is this tree's own sources and prose made of the corpus pools of
tests/data/text in many scripts, about 4 MB. One JSON line per tokenizer; `ratio` is ours over the library's.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))

import record_tokenizer_ids as corpus  # noqa: E402


def make_text(size):
    sources = []
    for pattern in ("src/**/*.h", "src/**/*.cc", "tools/*.py", "docs/**/*.md"):
        for path in sorted(glob.glob(os.path.join(ROOT, pattern), recursive=True)):
            with open(path, encoding="utf-8", errors="replace") as file:
                sources.append(file.read())
    pools = corpus.load_pools()
    rng = corpus.SplitMix64(5)
    words, other = pools["words"], pools["scripts"] + pools["emoji"] + pools["symbols"]
    parts = []
    total = 0
    while total < size:
        part = sources[rng.below(len(sources))] if rng.below(40) == 0 else " ".join(
            other[rng.below(len(other))] if rng.below(8) == 0 else words[rng.below(len(words))]
            for _ in range(10 + rng.below(20))) + (".\n" if rng.below(3) else " %d.\n" % rng.below(100000))
        parts.append(part)
        total += len(part)
    return "".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="the built bench_tokenizer")
    parser.add_argument("--size", type=int, default=4_000_000, help="characters of text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("tokenizers", nargs="*", help="tokenizer.json files")
    options = parser.parse_args()
    from tokenizers import Tokenizer

    paths = options.tokenizers or [os.path.join(corpus.DATA, n + ".tokenizer.json") for n in corpus.small_tokenizers()]
    text = make_text(options.size)
    size = len(text.encode("utf-8"))
    slower = 0
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        for path in paths:
            begin = time.perf_counter()
            library = Tokenizer.from_file(path)
            library_load = time.perf_counter() - begin
            ids = library.encode(text).ids
            value = 0xCBF29CE484222325
            for i in ids:
                value = ((value ^ i) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
            best, ours = 1e30, None
            for _ in range(options.rounds):
                begin = time.perf_counter()
                library.encode_batch_fast([text])  # the library's fastest call: keeps no offsets
                best = min(best, time.perf_counter() - begin)
                run = json.loads(subprocess.run([options.program, path, file.name, "2"], check=True,
                                                stdout=subprocess.PIPE).stdout)
                if run["hash"] != "%016x" % value:
                    sys.exit("%s: our ids differ from the library's" % path)
                if ours is None or run["mb_per_s"] > ours["mb_per_s"]:
                    ours = run
            theirs = size / 1e6 / best
            ratio = ours["mb_per_s"] / theirs
            slower += ratio < 1
            print(json.dumps({"tokenizer": os.path.basename(path), "mb": round(size / 1e6, 2), "tokens": len(ids),
                              "ours_mb_per_s": ours["mb_per_s"], "library_mb_per_s": round(theirs, 2),
                              "ratio": round(ratio, 2), "ours_load_s": ours["load_s"],
                              "library_load_s": round(library_load, 3)}), flush=True)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
