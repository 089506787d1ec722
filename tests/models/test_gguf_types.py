"""Quantized matrices whose widths are multiples of 256, as K and IQ types want: beside llama.cpp, and exact.

All types are in benchmarks/every_type_logits.py.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from model_harness import Model

from gguf_files import write_model
from llama_oracle import LlamaCpp
from random_blocks import BLOCKS, random_blocks
from tokentrail.checkpoints import dequantize, open_checkpoint
from tokentrail.ops.native import NativeBackend

VOCAB, CONTEXT, WIDTH, HEAD_DIM = 64, 128, 256, 64
MATRICES = {
    "attn_q": WIDTH, "attn_k": 128, "attn_v": 128, "attn_output": WIDTH,
    "ffn_gate": WIDTH, "ffn_up": WIDTH, "ffn_down": WIDTH,
}  # fmt: skip


def matrix(format: str, rows: int, random: np.random.Generator) -> np.ndarray:
    """Blocks [rows, bytes] of values of variance 1 / WIDTH."""
    form = BLOCKS[format]
    blocks = random_blocks(format, rows, WIDTH, random).reshape(-1, form.nbytes)
    factor = 1 / (dequantize(blocks.reshape(-1), format, (rows, WIDTH)).std() * np.sqrt(WIDTH))
    for at in form.halves:
        halves = blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32) * factor
        blocks[:, at : at + 2] = halves.astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def write(path: Path, format: str) -> Path:
    random = np.random.default_rng(5)
    type = gguf.GGMLQuantizationType[format]
    tensors = {
        "token_embd.weight": random.standard_normal((VOCAB, WIDTH)).astype(np.float32),
        "output.weight": (random.standard_normal((VOCAB, WIDTH)) / 16).astype(np.float32),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.attn_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.ffn_norm.weight": np.ones(WIDTH, np.float32),
        **{f"blk.0.{name}.weight": matrix(format, rows, random) for name, rows in MATRICES.items()},
    }
    return write_model(
        path,
        tokens=[f"<{i}>" for i in range(VOCAB)],
        types=[1] * VOCAB,
        metadata={
            "llama.embedding_length": WIDTH,
            "llama.feed_forward_length": WIDTH,
            "llama.attention.head_count": WIDTH // HEAD_DIM,
            "llama.attention.head_count_kv": 128 // HEAD_DIM,
            "llama.rope.dimension_count": HEAD_DIM,
        },
        tensors=tensors,
        quantize=lambda name, array: type if array.dtype == np.uint8 else gguf.GGMLQuantizationType.F32,
    )


def logprobs(path: Path, tokens: list[int], activations: str) -> np.ndarray:
    model = Model(open_checkpoint(path), NativeBackend(1), activations=activations, context=CONTEXT)
    logits = model.at_once(tokens)[-1].astype(np.float64)
    return logits - np.logaddexp.reduce(logits)


@pytest.mark.parametrize("format", ["Q3_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ2_XXS", "IQ3_S", "TQ1_0"])
def test_nearer_to_single_precision_than_llama_cpp(format: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", format)
    theirs = LlamaCpp(path, context=CONTEXT)
    errors = []
    for length in (1, 20, 60):
        tokens = np.random.default_rng(length).integers(0, VOCAB, length).tolist()
        exact = logprobs(path, tokens, "float32")
        both = logprobs(path, tokens, "auto"), theirs.logprobs(tokens, VOCAB)
        scale = np.linalg.norm(exact - exact.mean())
        errors.append([np.linalg.norm(values - exact) / scale for values in both])
    ours, peer = np.sqrt(np.mean(np.square(errors), axis=0))
    assert peer < 0.05  # it reads the same weights
    assert ours < peer
