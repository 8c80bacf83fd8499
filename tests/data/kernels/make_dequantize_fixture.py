"""Writes dequantize.txt: random blocks of every weight type and their values by the Python package `gguf`.

One line per block: type, block bytes in hex, values as hex of little-endian float32. Run with a Python that has
numpy and gguf: python make_dequantize_fixture.py > dequantize.txt
"""

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

BLOCKS = {
    # type: (elements, bytes, offsets of f16 scales)
    T.F16: (32, 64, []),
    T.BF16: (32, 64, []),
    T.Q4_0: (32, 18, [0]),
    T.Q4_1: (32, 20, [0, 2]),
    T.Q5_0: (32, 22, [0]),
    T.Q5_1: (32, 24, [0, 2]),
    T.Q8_0: (32, 34, [0]),
    T.Q4_K: (256, 144, [0, 2]),
    T.Q5_K: (256, 176, [0, 2]),
    T.Q6_K: (256, 210, [208]),
}

rng = np.random.default_rng(20240501)
for kind, (elements, size, scales) in BLOCKS.items():
    for _ in range(3):
        block = rng.integers(0, 256, size, dtype=np.uint8)
        if kind in (T.F16, T.BF16):
            values = rng.normal(size=elements).astype(np.float32)
            bits = values.astype(np.float16).view(np.uint16)
            if kind == T.BF16:
                bits = (values.view(np.uint32) >> 16).astype(np.uint16)
            block = bits.view(np.uint8)
        for offset in scales:
            scale = np.float16(rng.normal() * 0.02)
            block[offset : offset + 2] = np.frombuffer(scale.tobytes(), np.uint8)
        values = dequantize(block.reshape(1, -1), kind).astype("<f4").reshape(-1)
        assert values.size == elements and np.isfinite(values).all()
        print(kind.name.lower(), block.tobytes().hex(), values.tobytes().hex())
