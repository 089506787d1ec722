"""A GGUF file of the Llama 3.2 1B shape with random weights: for speed, which does not depend on what a model knows.

    python benchmarks/random_model.py --format Q4_0 --output random-1b-q4_0.gguf

16 layers of 2,048 with 32 heads over 8 for keys and values, feed-forward 8,192, 128,256 tokens, tied output: 1.24
billion parameters. All matrices are in the one format, as `llama-quantize --pure` writes them. The rotary frequencies
are those of Llama 3.2 (`rope_freqs`). The tokenizer is the demo model's, filled up with unused tokens: any engine
loads it, and no text it writes means anything. Blocks are drawn directly in the file's format, with scales that keep
activations near 1.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints import demo_model_path, open_checkpoint

LAYERS, HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 16, 2048, 8192, 32, 8, 64, 128256
ROPE_BASE, ROPE_FACTOR, LOW, HIGH, TRAINED_FOR = 500000.0, 32.0, 1.0, 4.0, 8192
UNUSED_TOKEN = 5

U8 = npt.NDArray[np.uint8]


def matrices() -> Iterator[tuple[str, int, int]]:
    """Name, rows, columns of every matrix."""
    yield "token_embd.weight", VOCAB, HIDDEN
    for layer in range(LAYERS):
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
    quants all alike likely."""
    quants = {"Q4_0": 16, "Q8_0": 32}[format]
    deviation = {"Q4_0": math.sqrt((16**2 - 1) / 12), "Q8_0": math.sqrt((256**2 - 1) / 12)}[format]
    count = rows * columns // 32
    blocks = np.empty((count, 2 + quants), np.uint8)
    scales = rng.uniform(0.8, 1.2, count) / (deviation * math.sqrt(columns))
    blocks[:, :2] = scales.astype(np.float16).view(np.uint8).reshape(count, 2)
    blocks[:, 2:] = np.frombuffer(rng.bytes(count * quants), np.uint8).reshape(count, quants)
    return blocks.reshape(rows, -1)


def rope_factors() -> npt.NDArray[np.float32]:
    """Divisors of the rotary frequencies (Dubey et al. 2024, arXiv:2407.21783): the whole factor for long waves."""
    waves = 2 * np.pi * ROPE_BASE ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    smooth = np.clip((TRAINED_FOR / waves - LOW) / (HIGH - LOW), 0.0, 1.0)
    return (1 / ((1 - smooth) / ROPE_FACTOR + smooth)).astype(np.float32)


def write(path: Path, format: str) -> None:
    """Write the file; under a passing name until it is whole."""
    rng = np.random.default_rng(1)
    source = open_checkpoint(demo_model_path()).tokenizer
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_name(f"Random 1B {format}")
    writer.add_context_length(131072)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_vocab_size(VOCAB)
    writer.add_file_type(
        {"Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0, "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}[format]
    )
    _add_tokenizer(writer, source)
    writer.add_tensor("rope_freqs.weight", rope_factors())
    for name in _norms():
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))
    type = gguf.GGMLQuantizationType[format]
    for name, rows, columns in matrices():
        shape = (rows, columns // 32 * (18 if format == "Q4_0" else 34))
        writer.add_tensor_info(name, shape, np.dtype(np.uint8), math.prod(shape), raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.write_tensor_data(rope_factors())
    for _ in _norms():
        writer.write_tensor_data(np.ones(HIDDEN, np.float32))
    for _, rows, columns in matrices():
        writer.write_tensor_data(random_blocks(format, rows, columns, rng))
    writer.close()
    unfinished.rename(path)


def _norms() -> list[str]:
    layers = [f"blk.{layer}.{norm}.weight" for layer in range(LAYERS) for norm in ("attn_norm", "ffn_norm")]
    return [*layers, "output_norm.weight"]


def _add_tokenizer(writer: gguf.GGUFWriter, source: Any) -> None:
    unused = VOCAB - len(source.tokens)
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
    parser.add_argument("--format", choices=["Q4_0", "Q8_0"], default="Q4_0")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    print(f"writing {arguments.output}", file=sys.stderr)
    write(arguments.output, arguments.format)
    print(f"{arguments.output}: {arguments.output.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
