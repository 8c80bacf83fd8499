#!/usr/bin/env python3
"""Makes the tokenizer fixtures of tests/data/text and records what the PyPI library `tokenizers` does with them.

  record_tokenizer_ids.py train         trains the small tokenizers (NAME.tokenizer.json)
  record_tokenizer_ids.py record        writes NAME.ids for each of them
  record_tokenizer_ids.py record-real NAME TOKENIZER_JSON
                                        writes NAME.ids for a tokenizer that is not in the tree

The strings are not stored: a generator, implemented here and in tests/support/tokenizer_corpus.h, makes them from
corpus_pools.json. An .ids file holds little-endian CRC-32 values: one of all strings, then one per string (its
ids, then the text they decode to), then one per random id sequence (the text it decodes to).
"""
import argparse
import json
import os
import struct
import sys
import zlib

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DATA = os.path.join(ROOT, "tests", "data", "text")
NUM_STRINGS = 21000
NUM_SEQUENCES = 1000
MASK = (1 << 64) - 1


class SplitMix64:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.next() % n


def load_pools():
    with open(os.path.join(DATA, "corpus_pools.json"), encoding="utf-8") as file:
        return json.load(file)


def block(index):
    """128 code points: planes 0 to 3, then the start of plane 14, then the last ones."""
    first = index * 128
    if first >= 0x40000:
        first = 0xE0000 + (first - 0x40000)
    if first >= 0xE1000:
        first = 0x10FF80
    return "".join(chr(c) for c in range(first, first + 128) if not 0xD800 <= c < 0xE000)


NUM_BLOCKS = 0x40000 // 128 + 0x1000 // 128 + 1


def long_string(kind, pools):
    size = 1 << 20
    if kind == 0:
        return "a" * size
    if kind == 1:
        return " " * size
    if kind == 2:
        return "\n" * (size - 1) + "x"
    if kind == 3:
        return "the quick brown fox " * (size // 20)
    if kind == 4:
        return "0123456789" * (size // 10)
    if kind == 5:
        return "\u4f60\u597d\u4e16\u754c" * (size // 12)
    if kind == 6:
        return "\U0001f642" * (size // 4)
    rng = SplitMix64(99)
    return "".join(chr(97 + rng.below(26)) for _ in range(size))


NUM_LONG = 8


def make_string(index, pools):
    if index == 0:
        return ""
    if index <= NUM_LONG:
        return long_string(index - 1, pools)
    index -= NUM_LONG + 1
    if index < NUM_BLOCKS:
        return block(index)
    rng = SplitMix64(index)
    names = pools["order"]
    parts = []
    for _ in range(1 + rng.below(12)):
        name = names[rng.below(len(names))]
        if name == "code_points":
            low, high = pools["code_points"][rng.below(len(pools["code_points"]))]
            for _ in range(1 + rng.below(6)):
                c = low + rng.below(high - low + 1)
                parts.append(chr(0xFFFD if 0xD800 <= c < 0xE000 else c))
        elif name == "digits":
            for _ in range(1 + rng.below(40)):
                parts.append(chr(48 + rng.below(10)))
        else:
            parts.append(pools[name][rng.below(len(pools[name]))])
        if rng.below(3) == 0:
            parts.append(" ")
    return "".join(parts)


def make_sequence(index, vocab_size):
    rng = SplitMix64(1000003 + index)
    return [rng.below(vocab_size) for _ in range(1 + rng.below(24))]


def options(index):
    """(adds special tokens, leaves the text of special tokens alone, skips special tokens in the decode)"""
    return index % 4 in (0, 2), index % 4 == 3, index % 8 < 4


def encode(tokenizer, index, text):
    adds, leaves, _ = options(index)
    tokenizer.encode_special_tokens = leaves
    return tokenizer.encode(text, add_special_tokens=adds).ids


def record(tokenizer, path):
    pools = load_pools()
    strings = [make_string(i, pools) for i in range(NUM_STRINGS)]
    corpus = 0
    for text in strings:
        data = text.encode("utf-8")
        corpus = zlib.crc32(struct.pack("<I", len(data)) + data, corpus)
    hashes = [corpus]
    for i, text in enumerate(strings):
        ids = encode(tokenizer, i, text)
        decoded = tokenizer.decode(ids, skip_special_tokens=options(i)[2]).encode("utf-8")
        hashes.append(zlib.crc32(struct.pack("<%di" % (len(ids) + 1), len(ids), *ids) + decoded))
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    for i in range(NUM_SEQUENCES):
        text = tokenizer.decode(make_sequence(i, size), skip_special_tokens=i % 2 == 0)
        hashes.append(zlib.crc32(text.encode("utf-8")))
    data = struct.pack("<%dI" % len(hashes), *hashes)
    if path is not None:
        with open(path, "wb") as file:
            file.write(data)
    return data


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
# In the manner of Tekken and of o200k: case-sensitive runs of letters and marks. No hand-written scanner knows it.
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}"
          r"\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def training_text():
    """Our own sources and the pools, so that every tokenizer sees code, prose and many scripts."""
    pools = load_pools()
    texts = []
    for folder in ("src/base", "src/device", "src/tensor", "src/text", "tools"):
        for name in sorted(os.listdir(os.path.join(ROOT, folder))):
            if name.endswith((".h", ".cc", ".py")):
                with open(os.path.join(ROOT, folder, name), encoding="utf-8") as file:
                    texts.append(file.read())
    rng = SplitMix64(7)
    words = pools["words"] + pools["scripts"]
    for _ in range(4000):
        texts.append(" ".join(words[rng.below(len(words))] for _ in range(12)))
    return texts


def train():
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import trainers

    texts = training_text()
    byte_alphabet = pre_tokenizers.ByteLevel.alphabet()
    fallback = ["<0x%02X>" % b for b in range(256)]

    def finish(name, tokenizer):
        path = os.path.join(DATA, name + ".tokenizer.json")
        tokenizer.save(path, pretty=False)
        print(name, tokenizer.get_vocab_size(), os.path.getsize(path))

    def byte_level(name, size, pre, normalizer=None, ignore_merges=False, specials=(), added=(), post=None):
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=size, special_tokens=list(specials), initial_alphabet=byte_alphabet, show_progress=False))
        tokenizer.add_tokens(list(added))
        if post is not None:
            tokenizer.post_processor = post(tokenizer)
        finish(name, tokenizer)

    def bos_template(token):
        return lambda tokenizer: processors.TemplateProcessing(
            single=token + " $A", pair=token + " $A " + token + " $B", special_tokens=[(token, tokenizer.token_to_id(token))])

    chat = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    byte_level("gpt2", 1500, pre_tokenizers.ByteLevel(add_prefix_space=False), specials=["<|endoftext|>"],
               added=[AddedToken("  ", normalized=False), AddedToken("word", single_word=True, normalized=False),
                      AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=True),
                      AddedToken("<lr>", lstrip=True, rstrip=True, special=True)])
    byte_level("prefix_space", 900, pre_tokenizers.ByteLevel(add_prefix_space=True), specials=["<|endoftext|>"])
    byte_level("llama3", 1800, pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        ignore_merges=True, added=[AddedToken(t, special=True, normalized=False) for t in (
            "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")],
        post=lambda t: processors.Sequence([processors.ByteLevel(trim_offsets=True),
                                            bos_template("<|begin_of_text|>")(t)]))
    byte_level("qwen2", 1700, pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        normalizer=normalizers.NFC(), added=[AddedToken(t, special=True, normalized=False) for t in chat] +
        [AddedToken("<tool_call>", normalized=False), AddedToken("caf\u00e9", normalized=True)])
    byte_level("smollm", 1600, pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]), specials=chat)
    byte_level("tekken", 1200, pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(TEKKEN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        ignore_merges=True, specials=["<unk>", "<s>", "</s>"], post=bos_template("<s>"))
    # Every split behaviour, a literal pattern, digits in runs.
    byte_level("splits", 900, pre_tokenizers.Sequence([
        pre_tokenizers.Split("-", "removed"), pre_tokenizers.Split(Regex(r"[,;]"), "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"\("), "merged_with_next"), pre_tokenizers.Split(Regex(r"[\p{Lu}_]"), "contiguous"),
        pre_tokenizers.Split(Regex(r"\w+|[^\w\s]+"), "removed", invert=True), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), specials=["<|endoftext|>"])

    def sentencepiece(name, size, normalizer, pre, decoder, bos, eos=None, byte_fallback=True, added=()):
        specials = ["<unk>", "<s>", "</s>"] if bos == "<s>" else ["<pad>", "<eos>", "<bos>", "<unk>"]
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback))
        tokenizer.normalizer = normalizer
        if pre is not None:
            tokenizer.pre_tokenizer = pre
        else:  # the trainer wants words; the finished tokenizer has none, as the models of this kind
            tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
        tokenizer.decoder = decoder
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=size, special_tokens=specials + (fallback if byte_fallback else []), show_progress=False,
            limit_alphabet=180))
        document = json.loads(tokenizer.to_str())
        if pre is None:
            document["pre_tokenizer"] = None
        if byte_fallback:  # bytes are plain tokens of the model, not added ones
            document["added_tokens"] = [t for t in document["added_tokens"] if not t["content"].startswith("<0x")]
        tokenizer = Tokenizer.from_str(json.dumps(document))
        tokenizer.add_tokens(list(added))
        single = bos + " $A" + (" " + eos if eos else "")
        tokens = [(t, tokenizer.token_to_id(t)) for t in ([bos, eos] if eos else [bos])]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=tokens)
        finish(name, tokenizer)

    llama_decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
    sentencepiece("llama", 1500, normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
                  None, llama_decoder, "<s>", added=[AddedToken("<|im_start|>", normalized=False, special=True),
                                                     AddedToken("word", normalized=True), AddedToken("x y", normalized=True)])
    sentencepiece("mistral", 1400, normalizers.Sequence([]),
                  pre_tokenizers.Metaspace("\u2581", prepend_scheme="first", split=False), llama_decoder, "<s>", eos="</s>")
    sentencepiece("metaspace", 1200, normalizers.Replace(Regex(" {2,}"), " "),
                  pre_tokenizers.Metaspace("\u2581", prepend_scheme="always", split=True),
                  decoders.Metaspace("\u2581", prepend_scheme="always"), "<s>", byte_fallback=False)
    sentencepiece("gemma", 1600, normalizers.Replace(" ", "\u2581"), None,
                  decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]), "<bos>",
                  added=[AddedToken(c * n, normalized=False) for n in range(2, 16) for c in ("\n", "\u2581")] +
                  [AddedToken(t, normalized=False, special=True) for t in ("<start_of_turn>", "<end_of_turn>")])


def small_tokenizers():
    return sorted(n[:-len(".tokenizer.json")] for n in os.listdir(DATA) if n.endswith(".tokenizer.json"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["train", "record", "record-real"])
    parser.add_argument("arguments", nargs="*")
    options_ = parser.parse_args()
    if options_.command == "train":
        return train()
    from tokenizers import Tokenizer
    if options_.command == "record-real":
        name, path = options_.arguments
        record(Tokenizer.from_file(path), os.path.join(DATA, name + ".ids"))
        return None
    for name in options_.arguments or small_tokenizers():
        record(Tokenizer.from_file(os.path.join(DATA, name + ".tokenizer.json")), os.path.join(DATA, name + ".ids"))
        print("recorded", name)
    return None


if __name__ == "__main__":
    sys.exit(main())
