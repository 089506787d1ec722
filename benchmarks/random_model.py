"""A GGUF file of the Llama 3.2 1B shape with random weights: for speed, which does not depend on what a model knows.

    python benchmarks/random_model.py --format Q4_0 --output random-1b-q4_0.gguf

16 layers of 2,048 with 32 heads over 8 for keys and values, feed-forward 8,192, 128,256 tokens, tied output: 1.24
billion parameters. All matrices are in the one format, as `llama-quantize --pure` writes them. The rotary frequencies
are those of Llama 3.2 (`rope_freqs`). `--layers` and `--vocabulary` make it smaller. The
tokenizer is the demo model's, filled up with unused tokens: any engine loads it, and no text it writes means anything.
Blocks are drawn directly in the file's format, with scales that keep activations near 1.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints import demo_model_path, dequantize, open_checkpoint
from tokentrail.checkpoints.formats import block_format

LAYERS, HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 16, 2048, 8192, 32, 8, 64, 128256
ROPE_BASE, ROPE_FACTOR, LOW, HIGH, TRAINED_FOR = 500000.0, 32.0, 1.0, 4.0, 8192
UNUSED_TOKEN = 5

SCALES = {
    "Q4_0": 0, "Q4_1": 0, "Q5_0": 0, "Q5_1": 0, "Q8_0": 0, "Q2_K": 80, "Q3_K": 108, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208,
    "IQ4_NL": 0, "IQ4_XS": 0, "IQ1_S": 0, "IQ2_XXS": 0, "IQ2_XS": 0, "IQ2_S": 0, "IQ3_XXS": 0, "IQ3_S": 0,
    "TQ1_0": 52, "TQ2_0": 64,
}  # fmt: skip
"""Where a block has its half-precision scale."""
MINIMA = {"Q4_1": (2, -7.5), "Q5_1": (2, -15.5), "Q2_K": (82, 1.5), "Q4_K": (2, 7.5), "Q5_K": (2, 15.5)}
"""Where it has one for minima, and how large, in scales, so that weights are around zero."""

U8 = npt.NDArray[np.uint8]


def matrices(layers: int = LAYERS, vocabulary: int = VOCAB) -> Iterator[tuple[str, int, int]]:
    """Name, rows, columns of every matrix."""
    yield "token_embd.weight", vocabulary, HIDDEN
    for layer in range(layers):
        name = f"blk.{layer}"
        yield f"{name}.attn_q.weight", HEADS * HEAD_DIM, HIDDEN
        yield f"{name}.attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN
        yield f"{name}.attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN
        yield f"{name}.attn_output.weight", HIDDEN, HEADS * HEAD_DIM
        yield f"{name}.ffn_gate.weight", FEED_FORWARD, HIDDEN
        yield f"{name}.ffn_up.weight", FEED_FORWARD, HIDDEN
        yield f"{name}.ffn_down.weight", HIDDEN, FEED_FORWARD


def random_blocks(format: str, rows: int, columns: int, rng: np.random.Generator) -> U8:
    """A matrix of standard deviation 1/sqrt(columns) as rows of raw blocks: half-precision scales near one value, and
    all other bits alike likely."""
    count = rows * columns // block_format(format).values
    factors = rng.uniform(0.8, 1.2, count) / (_deviation(format) * math.sqrt(columns))
    return _blocks(format, factors, rng).reshape(rows, -1)


def _blocks(format: str, factors: npt.NDArray[np.float64], rng: np.random.Generator) -> U8:
    """One block for each scale."""
    nbytes, at = block_format(format).nbytes, SCALES[format]
    blocks = np.frombuffer(rng.bytes(len(factors) * nbytes), np.uint8).reshape(-1, nbytes).copy()
    blocks[:, at : at + 2] = factors.astype(np.float16).view(np.uint8).reshape(-1, 2)
    if format in MINIMA:
        at, factor = MINIMA[format]
        blocks[:, at : at + 2] = (factors * factor).astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks


@cache
def _deviation(format: str) -> float:
    """Of weights whose scales are 1."""
    blocks = _blocks(format, np.ones(1 << 12), np.random.default_rng(0))
    return float(dequantize(blocks.reshape(-1), format, (len(blocks), block_format(format).values)).std())


def rope_factors() -> npt.NDArray[np.float32]:
    """Divisors of the rotary frequencies (Dubey et al. 2024, arXiv:2407.21783): the whole factor for long waves."""
    waves = 2 * np.pi * ROPE_BASE ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    smooth = np.clip((TRAINED_FOR / waves - LOW) / (HIGH - LOW), 0.0, 1.0)
    return (1 / ((1 - smooth) / ROPE_FACTOR + smooth)).astype(np.float32)


def write(path: Path, format: str, *, layers: int = LAYERS, vocabulary: int = VOCAB) -> None:
    """Write the file; under a passing name until it is whole."""
    rng = np.random.default_rng(1)
    source = open_checkpoint(demo_model_path()).tokenizer
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_name(f"Random 1B {format}")
    writer.add_context_length(131072)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_vocab_size(vocabulary)
    add_tokenizer(writer, source, vocabulary)
    writer.add_tensor("rope_freqs.weight", rope_factors())
    for name in _norms(layers):
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))
    type = gguf.GGMLQuantizationType[format]
    for name, rows, columns in matrices(layers, vocabulary):
        shape = (rows, columns // block_format(format).values * block_format(format).nbytes)
        writer.add_tensor_info(name, shape, np.dtype(np.uint8), math.prod(shape), raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.write_tensor_data(rope_factors())
    for _ in _norms(layers):
        writer.write_tensor_data(np.ones(HIDDEN, np.float32))
    for _, rows, columns in matrices(layers, vocabulary):
        writer.write_tensor_data(random_blocks(format, rows, columns, rng))
    writer.close()
    unfinished.rename(path)


def _norms(layers: int) -> list[str]:
    of_layers = [
        f"blk.{layer}.{norm}.weight" for layer in range(layers) for norm in ("attn_norm", "ffn_norm")
    ]
    return [*of_layers, "output_norm.weight"]


def add_tokenizer(writer: gguf.GGUFWriter, source: Any, vocabulary: int) -> None:
    unused = vocabulary - len(source.tokens)
    writer.add_tokenizer_model(source.kind)
    writer.add_tokenizer_pre(source.pre)
    writer.add_token_list([*source.tokens, *(f"<|unused_{index}|>" for index in range(unused))])
    writer.add_token_types([*source.token_types.tolist(), *[UNUSED_TOKEN] * unused])
    writer.add_token_merges(source.merges)
    writer.add_bos_token_id(source.bos_token_id)
    writer.add_eos_token_id(source.eos_token_id)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write a GGUF file of the Llama 3.2 1B shape with random weights."
    )
    parser.add_argument("--format", choices=sorted(SCALES), default="Q4_0")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--vocabulary", type=int, default=VOCAB, help="at least the demo model's")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    print(f"writing {arguments.output}", file=sys.stderr)
    write(arguments.output, arguments.format, layers=arguments.layers, vocabulary=arguments.vocabulary)
    print(f"{arguments.output}: {arguments.output.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
