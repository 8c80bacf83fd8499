#!/usr/bin/env python3
"""The recorded ids of tests/data/text are what the installed `tokenizers` gives, on every string of the corpus.

The C++ tests hold our tokenizers to the same records (tests/text/tokenizer_ids_test.cc), so the two agree on each string.
Skips (77) without the package.
"""
import os
import sys

ROOT = os.environ.get("ATTEST_SOURCE_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tools"))

import record_tokenizer_ids as corpus  # noqa: E402

try:
    import tokenizers
except ImportError:
    print("skipped: the Python package tokenizers is not installed")
    sys.exit(77)


def main():
    failures = 0
    for name in corpus.small_tokenizers():
        tokenizer = tokenizers.Tokenizer.from_file(os.path.join(corpus.DATA, name + ".tokenizer.json"))
        with open(os.path.join(corpus.DATA, name + ".ids"), "rb") as file:
            recorded = file.read()
        now = corpus.record(tokenizer, None)
        wrong = [i for i in range(0, min(len(now), len(recorded)), 4) if now[i:i + 4] != recorded[i:i + 4]]
        if len(now) != len(recorded) or wrong:
            failures += 1
            print("%s: %d of %d records differ, first at %s" % (name, len(wrong), len(now) // 4, wrong[:1]))
        else:
            print("%s: %d records agree with tokenizers %s" % (name, len(now) // 4, tokenizers.__version__))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
