#!/usr/bin/env python3
"""Records what the tests of src/model compare with: logprobs of Hugging Face transformers and of llama.cpp.

Two environments, because their pins differ (versions as used for the files in the tree):

    python3 -m venv venv-hf       # torch on a machine without a GPU: its CUDA wheel, plus what that one loads
    venv-hf/bin/pip install --no-deps torch==2.15.0 nvidia-cufile nvidia-cusparselt-cu13==0.8.1 \\
        nvidia-nvshmem-cu13==3.7.2 nvidia-nccl-cu13==2.30.7      # needs the CUDA 13 libraries; else: with deps
    venv-hf/bin/pip install numpy sympy networkx fsspec filelock jinja2 typing_extensions setuptools
    venv-hf/bin/pip install transformers==5.24.0 safetensors tokenizers gguf sentencepiece protobuf
    venv-hf/bin/pip install --no-deps accelerate==1.15.0 psutil  # with its dependencies pip would fetch 3.5 GB more
    python3 -m venv venv-llama && venv-llama/bin/pip install numpy llama-cpp-python==0.3.36

    venv-hf/bin/python tools/record_reference.py tiny            # two random models and their logits
    venv-hf/bin/python tools/record_reference.py hf GGUF [--safetensors FOLDER]
    venv-llama/bin/python tools/record_reference.py llama GGUF   # after `hf`: it reads the same tokens

`hf` computes in float32 on the dequantised blocks; with --safetensors it also writes those weights as a plain
float32 folder (538 MB for SmolLM2-135M; the tests look in ~/.cache/attest-models/hf-smollm2 or
$ATTEST_HF_SMOLLM2). All output goes to tests/data/model. Logprobs are natural logarithms.

Entry t of a prompt's lists belongs to position t and speaks of the token at t + 1: `next` is the logprob of
the token that really follows, `top_ids` and `top` are the five best. The gap of the two best is
top[t][0] - top[t][1].
"""
import argparse
import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "model"
SHORT_POSITIONS = 64  # of each prompt; the long one is recorded whole
TOP = 5


def dump(path, value):
    """JSON with one line per field, and floats cut to seven significant digits (as float32 has)."""
    def cut(item):
        if isinstance(item, float):
            return float(f"{item:.7g}")
        if isinstance(item, list):
            return [cut(x) for x in item]
        if isinstance(item, dict):
            return {k: cut(v) for k, v in item.items()}
        return item

    def line(item):
        return json.dumps(cut(item), separators=(",", ":"), ensure_ascii=False)

    def fields(item, pad):
        rows = []
        for key, value in item.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                inner = ",\n".join(pad + " {\n" + fields(x, pad + "  ") + "\n" + pad + " }" for x in value)
                rows.append(f"{pad}{json.dumps(key)}: [\n{inner}\n{pad}]")
            else:
                rows.append(f"{pad}{json.dumps(key)}: {line(value)}")
        return ",\n".join(rows)

    path.write_text("{\n" + fields(value, " ") + "\n}\n", encoding="utf-8")
    print(path, path.stat().st_size, "bytes")


def describe(logits, tokens):
    """Lists of one prompt from logits [positions, vocab] (torch, any float type) and its tokens."""
    import torch

    logprobs = torch.log_softmax(logits.double(), dim=-1)
    count = len(tokens) - 1
    best = torch.topk(logprobs[:count], TOP, dim=-1)
    following = torch.tensor(tokens[1:])
    return {"tokens": tokens,
            "next": logprobs[torch.arange(count), following].tolist(),
            "top_ids": best.indices.tolist(),
            "top": best.values.tolist()}


def record_hf(gguf, safetensors):
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    folder, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    model.eval()
    prompts = []
    for prompt in json.loads((DATA / "prompts.json").read_text(encoding="utf-8")):
        tokens = tokenizer(prompt["text"], add_special_tokens=False)["input_ids"]
        if prompt["name"] == "long":
            assert len(tokens) > 664, len(tokens)
        else:
            assert len(tokens) > SHORT_POSITIONS, (prompt["name"], len(tokens))
            tokens = tokens[:SHORT_POSITIONS + 1]
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0]
        prompts.append({"name": prompt["name"], **describe(logits, tokens)})
        print(prompt["name"], len(tokens), "mean logprob", sum(prompts[-1]["next"]) / (len(tokens) - 1))
    dump(DATA / "smollm2_hf.json", {
        "what": f"transformers {transformers.__version__}, torch {torch.__version__}, float32",
        "file": name, "prompts": prompts})
    if safetensors:
        # save_pretrained refuses quantised models until it no longer sees one; the weights it then writes are the
        # dequantised ones.
        model.hf_quantizer = None
        model.is_quantized = False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        tokenizer.save_pretrained(safetensors)
        model.save_pretrained(safetensors)


def record_llama(gguf):
    import llama_cpp
    import numpy

    reference = json.loads((DATA / "smollm2_hf.json").read_text(encoding="utf-8"))
    longest = max(len(p["tokens"]) for p in reference["prompts"])
    # The class with logits_all is right; llama.cpp's server is not (its echo logprobs are shifted by one).
    llama = llama_cpp.Llama(str(gguf), n_ctx=longest + 8, n_batch=512, logits_all=True, verbose=False, n_threads=2)
    prompts, differences = [], []
    for prompt in reference["prompts"]:
        tokens = prompt["tokens"]
        llama.reset()
        llama.eval(tokens)
        logits = numpy.asarray(llama.scores[:len(tokens) - 1], dtype=numpy.float64)
        logprobs = logits - logits.max(axis=1, keepdims=True)
        logprobs -= numpy.log(numpy.exp(logprobs).sum(axis=1, keepdims=True))
        following = [float(logprobs[t, tokens[t + 1]]) for t in range(len(tokens) - 1)]
        top = [[float(logprobs[t, i]) for i in ids] for t, ids in enumerate(prompt["top_ids"])]
        prompts.append({"name": prompt["name"], "next": following, "top": top})
        for t in range(len(tokens) - 1):
            differences.append(abs(following[t] - prompt["next"][t]))
            differences += [abs(a - b) for a, b in zip(top[t], prompt["top"][t])]
    dump(DATA / "smollm2_llamacpp.json", {
        "what": f"llama-cpp-python {llama_cpp.__version__} on the same file; `top` are its logprobs of the ids of "
                "smollm2_hf.json",
        "mean_abs_difference": sum(differences) / len(differences),
        "max_abs_difference": max(differences),
        "prompts": prompts})


def refill(model, seed):
    """Weights of a scale that gives peaked logits: randn * fan_in^-0.5, norms near 1, biases near 0."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                # Embedding rows feed the first norm, so only their use as a head sets a scale.
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            elif name.endswith("bias"):
                parameter.copy_(0.1 * noise)
            else:
                parameter.copy_(1 + 0.2 * noise)


def record_tiny_model(name, config, dtype, seed):
    import torch
    import transformers

    family = {"llama": transformers.LlamaForCausalLM, "mistral": transformers.MistralForCausalLM,
              "ministral": transformers.MinistralForCausalLM}[config.model_type]
    model = family(config)
    refill(model, seed)
    model.to(dtype)
    folder = DATA / name
    model.save_pretrained(folder)
    model = family.from_pretrained(folder, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    tokens = torch.randint(0, config.vocab_size, (97,), generator=generator).tolist()
    full_positions = [0, 1, 47, 95]
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
        half = family.from_pretrained(folder, dtype=torch.bfloat16).eval()
        half_logits = half(torch.tensor([tokens])).logits[0].float()
    dump(DATA / name / "expected.json", {
        "what": f"transformers {transformers.__version__}, torch {torch.__version__}: float32 arithmetic on the stored "
                "weights; bf16_logits: the same in bfloat16",
        **describe(logits, tokens),
        "inv_freq": model.model.rotary_emb.inv_freq.double().tolist(),
        "attention_factor": float(model.model.rotary_emb.attention_scaling),
        "full_positions": full_positions,
        "full_logits": [logits[t].tolist() for t in full_positions],
        "bf16_logits": [half_logits[t].tolist() for t in full_positions]})
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(name, size, "bytes")


def record_tiny():
    import torch
    from transformers import LlamaConfig, MinistralConfig, MistralConfig

    # q width 128 is not the hidden size; 2 query heads per K/V head.
    record_tiny_model("tiny_tied_yarn", LlamaConfig(
        vocab_size=256, hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                         "original_max_position_embeddings": 32}), torch.bfloat16, 1)
    # 5 query heads per K/V head, every bias.
    record_tiny_model("tiny_untied_llama3", LlamaConfig(
        vocab_size=256, hidden_size=80, intermediate_size=128, num_hidden_layers=2, num_attention_heads=10,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-6,
        tie_word_embeddings=False, attention_bias=True, mlp_bias=True, bos_token_id=1, eos_token_id=[2, 3],
        rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64}), torch.float16, 2)
    # Every layer sees 21 tokens, which is no multiple of any block size.
    record_tiny_model("tiny_mistral_window", MistralConfig(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, sliding_window=21,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), torch.bfloat16, 3)
    # Three layers see 18 tokens, two see all: groups of two layers, the last of them half empty.
    record_tiny_model("tiny_ministral_hybrid", MinistralConfig(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=5, num_attention_heads=6,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, sliding_window=18,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention",
                     "sliding_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), torch.bfloat16, 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tiny")
    hf = commands.add_parser("hf")
    hf.add_argument("gguf", type=pathlib.Path)
    hf.add_argument("--safetensors", type=pathlib.Path)
    llama = commands.add_parser("llama")
    llama.add_argument("gguf", type=pathlib.Path)
    arguments = parser.parse_args()
    DATA.mkdir(parents=True, exist_ok=True)
    if arguments.command == "tiny":
        record_tiny()
    elif arguments.command == "hf":
        record_hf(arguments.gguf, arguments.safetensors)
    else:
        record_llama(arguments.gguf)


if __name__ == "__main__":
    main()
