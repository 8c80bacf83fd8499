#!/usr/bin/env python3
"""The Python of docs/sampling.md, taken from the page as it stands, recomputes every recorded vector. The C++ sampler
is held to the same file by tests/engine/sampler_test.cc. With --record it writes the file anew."""
import math
import os
import pathlib
import random
import re
import struct
import sys

ROOT = pathlib.Path(os.environ.get("ATTEST_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
PAGE = ROOT / "docs" / "sampling.md"
VECTORS = ROOT / "tests" / "data" / "engine" / "sampling_vectors.txt"
KNOWN_PHILOX = [  # Random123's kat_vectors
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
NOISE_KEYS = [(0, 0, 0), (0, 0, 1), (1, 0, 0), (42, 10, 49151), (-1, 7, 3), (2**63 - 1, 131071, 151935)]


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def code_of_the_page():
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(code) == 1, f"{PAGE} has {len(code)} Python blocks"
    scope = {}
    exec(compile(code[0], str(PAGE), "exec"), scope)  # noqa: S102: our own page
    return scope


def record(scope):
    rng = random.Random(20260801)
    lines = []
    for counter, key, words in KNOWN_PHILOX:
        lines.append("philox " + " ".join(f"{w:08x}" for w in (*counter, *key, *words)))
    for seed, position, i in NOISE_KEYS:
        lines.append(f"gumbel {seed} {position} {i} {scope['gumbel'](seed, position, i)!r}")
    for case in range(60):
        size = rng.choice([1, 2, 5, 33, 97, 300])
        spread = rng.choice([0.5, 2.0, 6.0])
        logits = [round(rng.gauss(0, spread) * 256) / 256 for _ in range(size)]  # short to print, exact in float32
        if case % 5 == 0:  # ties, also at the edges of the sets
            logits = [float(round(value)) for value in logits]
        if case % 7 == 0 and size > 2:
            logits[rng.randrange(size)] = -math.inf
        seed = rng.choice([0, 1, -5, 2**40 + 3, -2**63, 12345])
        position = rng.choice([0, 1, 17, 4096, 2**20])
        temperature = f32(rng.choice([0.0, 0.2, 0.7, 1.0, 1.0, 1.5]))
        top_k = rng.choice([0, 0, 1, 3, 40])
        top_p = f32(rng.choice([1.0, 1.0, 0.1, 0.5, 0.9, 0.99]))
        min_p = f32(rng.choice([0.0, 0.0, 0.02, 0.3, 1.0]))
        token = scope["sample"](logits, seed, position, temperature, top_k, top_p, min_p)
        row = " ".join(repr(value) for value in logits)
        lines.append(f"draw {seed} {position} {temperature!r} {top_k} {top_p!r} {min_p!r} {token} {size} {row}")
    for case in range(80):
        size = rng.choice([3, 20, 97])
        logits = [round(rng.gauss(0, 2.0) * 256) / 256 for _ in range(size)]
        if case % 6 == 0:
            logits[rng.randrange(size)] = -math.inf
        ids = lambda most: [rng.randrange(size) for _ in range(rng.randrange(most + 1))]  # noqa: E731
        prompt, output = ids(12) or [0], ids(20)
        allowed = sorted(set(ids(12) + [rng.randrange(size) for _ in range(6)])) if case % 4 == 0 else []
        banned = ids(1) if size > 3 else []
        words = [word for word in (ids(1) + output[-2:][:1] + ids(1), output[-1:] + [rng.randrange(size)]) if word]
        words = words if case % 3 == 0 and size > 3 else []
        bias = [(i, f32(rng.uniform(-4, 4))) for i in sorted(set(ids(5)))]
        numbers = {"repetition": f32(rng.choice([1.0, 1.0, 1.3, 0.8])), "frequency": f32(rng.choice([0.0, 0.4, -1.1])),
                   "presence": f32(rng.choice([0.0, 0.0, 1.5, -0.7]))}
        seed, position = rng.choice([0, -5, 2**40 + 3]), len(prompt) + len(output)
        temperature = f32(rng.choice([0.0, 0.7, 1.0, 1.5]))
        filters = (rng.choice([0, 0, 10]), f32(rng.choice([1.0, 0.9])), f32(rng.choice([0.0, 0.05])),
                   f32(rng.choice([1.0, 0.9, 0.5, 0.1])))
        x = scope["change"](logits, prompt, output, allowed, words, banned, bias, **numbers)
        if max(x) == -math.inf:
            continue
        token = scope["sample"](x, seed, position, temperature, *filters)
        text = [seed, temperature, *filters, *numbers.values(), token]
        for part in (prompt, output, allowed, banned):
            text += [len(part), *part]
        text.append(len(words))
        for word in words:
            text += [len(word), *word]
        text.append(len(bias))
        for pair in bias:
            text += pair
        lines.append("change " + " ".join(repr(value) for value in (*text, size, *logits)))
    VECTORS.parent.mkdir(parents=True, exist_ok=True)
    VECTORS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def recompute_change(scope, words):
    seed, temperature = int(next(words)), float(next(words))
    filters = (int(next(words)), float(next(words)), float(next(words)), float(next(words)))
    repetition, frequency, presence = float(next(words)), float(next(words)), float(next(words))
    token = int(next(words))

    def ids():
        return [int(next(words)) for _ in range(int(next(words)))]

    prompt, output, allowed, banned = ids(), ids(), ids(), ids()
    bad_words = [ids() for _ in range(int(next(words)))]
    bias = [(int(next(words)), float(next(words))) for _ in range(int(next(words)))]
    logits = [float(next(words)) for _ in range(int(next(words)))]
    x = scope["change"](logits, prompt, output, allowed, bad_words, banned, bias, repetition, frequency, presence)
    return scope["sample"](x, seed, len(prompt) + len(output), temperature, *filters), token


def check(scope):
    counts = {"philox": 0, "gumbel": 0, "draw": 0, "change": 0}
    for number, line in enumerate(VECTORS.read_text(encoding="utf-8").splitlines(), 1):
        kind, *words = line.split()
        counts[kind] += 1
        if kind == "philox":
            values = [int(word, 16) for word in words]
            got, want = scope["philox"](values[:4], values[4:6]), values[6:]
        elif kind == "gumbel":
            got, want = scope["gumbel"](*map(int, words[:3])), float(words[3])
            got = want if math.isclose(got, want, rel_tol=1e-14) else got
        elif kind == "change":
            got, want = recompute_change(scope, iter(words))
        else:
            seed, position, top_k, token = int(words[0]), int(words[1]), int(words[3]), int(words[6])
            logits = [float(word) for word in words[8:]]
            assert len(logits) == int(words[7]), f"line {number}: row length"
            got = scope["sample"](logits, seed, position, float(words[2]), top_k, float(words[4]), float(words[5]))
            want = token
        assert got == want, f"{VECTORS.name}:{number}: {kind} recomputed as {got}, recorded {want}"
    assert min(counts.values()) > 2, counts
    return counts


def check_page(scope):
    """The table of the page shows what the code computes."""
    rows = re.findall(r"^\| (-?\d+) \| (\d+) \| (\d+) \| (-?[\d.]+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert len(rows) == len(NOISE_KEYS), f"{len(rows)} noise rows on the page"
    for seed, position, i, g in rows:
        assert f"{scope['gumbel'](int(seed), int(position), int(i)):.12f}" == g, (seed, position, i, g)


def check_distribution(scope):
    """Gumbel-max with this noise draws from the softmax: chi-square over 8 ids, 4,000 positions."""
    logits = [0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1.5, -3.0]
    total = sum(math.exp(v) for v in logits)
    hits = [0] * len(logits)
    for position in range(4000):
        hits[scope["sample"](logits, 99, position, 1.0)] += 1
    chi2 = sum((h - 4000 * math.exp(v) / total) ** 2 / (4000 * math.exp(v) / total) for h, v in zip(hits, logits))
    assert chi2 < 24.32, f"chi-square {chi2:.1f}, 24.32 has p = 0.001 at 7 degrees of freedom"


def main():
    scope = code_of_the_page()
    if sys.argv[1:] == ["--record"]:
        record(scope)
    if sys.argv[1:] == ["--noise"]:
        for seed, position, i in NOISE_KEYS:
            print(f"| {seed} | {position} | {i} | {scope['gumbel'](seed, position, i):.12f} |")
        return
    counts = check(scope)
    check_page(scope)
    check_distribution(scope)
    print(f"recomputed {counts}")


if __name__ == "__main__":
    main()
