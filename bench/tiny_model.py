"""A Llama with random weights and a tokenizer of bytes, for runs that load the server and not the model. Standard library
only.

    python3 bench/tiny_model.py FOLDER
"""
import json
import pathlib
import random
import struct
import sys


def byte_alphabet():
    """The characters that stand for bytes in byte-level tokenizers."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters, extra = {}, 0
    for byte in range(256):
        letters[byte] = chr(byte if byte in shown else 256 + extra)
        extra += byte not in shown
    return letters


def write_tiny_model(folder, hidden=64, layers=2, max_positions=16384, vocab=512):
    """Weights of about 0.03 to 0.12 in bf16, always the same; greedy texts differ from prompt to prompt."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    inner, heads, kv_heads = 2 * hidden, hidden // 32, max(1, hidden // 64)
    generator = random.Random(7)
    high_bytes = bytes([0x3D, 0xBD] * 128)

    def weights(count):
        out = bytearray(2 * count)
        out[0::2] = generator.randbytes(count)
        out[1::2] = generator.randbytes(count).translate(high_bytes)
        return bytes(out)

    tensors = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    for layer in range(layers):
        name = f"model.layers.{layer}."
        tensors |= {name + "input_layernorm.weight": [hidden], name + "post_attention_layernorm.weight": [hidden],
                    name + "self_attn.q_proj.weight": [heads * 32, hidden],
                    name + "self_attn.k_proj.weight": [kv_heads * 32, hidden],
                    name + "self_attn.v_proj.weight": [kv_heads * 32, hidden],
                    name + "self_attn.o_proj.weight": [hidden, heads * 32],
                    name + "mlp.gate_proj.weight": [inner, hidden], name + "mlp.up_proj.weight": [inner, hidden],
                    name + "mlp.down_proj.weight": [hidden, inner]}
    header, data = {}, b""
    for name, shape in tensors.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        part = weights(count) if len(shape) == 2 else b"\x80\x3f" * count
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)

    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 32,
        "vocab_size": vocab, "max_position_embeddings": max_positions, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu", "eos_token_id": vocab - 1}))
    letters = byte_alphabet()
    vocabulary = {letters[byte]: byte for byte in range(256)}
    vocabulary |= {f"w{i}": i for i in range(256, vocab - 1)}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": vocab - 1, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
                  "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "eos_token": "<end>",
        "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"}))
    return folder


if __name__ == "__main__":
    write_tiny_model(sys.argv[1])
