"""Checkpoints quantized by others, and quantized while they are loaded, beside the same shape in Q4_0.

    python benchmarks/quantized.py --threads 2
    python benchmarks/quantized.py --threads 2 --models FOLDER --only Q4_0 AWQ --turns 5

The shape of Qwen2.5-0.5B with random weights (24 layers of 896, 151,936 tokens, tied): a folder in BF16, as it is and
with `--quantization`; AWQ and GPTQ with 4 bits in groups of 128, whose embedding, which is the head as well, stays in
16 bits (F16 and BF16, as such folders have it), as they are and with `--quantization int8`; and a GGUF file in Q4_0
whose embedding is Q8_0, as `llama-quantize` makes it of such widths.

Speed: all engines stand side by side and answer in turn, one short answer at a time; medians, beside Q4_0 of the ratios
within a turn. Memory: what the process took when all of its KV cache was written (growth of its PSS), each in a process
of its own, beside what `inspect` and `serve` plan with. Takes two minutes on an idle machine; `--models` keeps what is
written (2.2 GB).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from ours import fixed_requests
from random_model import add_tokenizer, random_blocks
from results import spread

from tokentrail.checkpoints import demo_model_path, open_checkpoint
from tokentrail.engine import EngineConfig, LocalEngine

LAYERS, HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 24, 896, 4864, 14, 2, 64, 151936
GROUP = 128
EPS, ROPE_BASE, CONTEXT = 1e-6, 1000000.0, 32768
MEMORY_TAKEN = Path(__file__).parents[1] / "tests" / "engine" / "memory_taken.py"

Array = npt.NDArray[Any]
Tensor = tuple[str, str, tuple[int, ...], Callable[[], Array]]
"""Name, safetensors' type, shape, and what makes the values."""


@dataclass(frozen=True)
class Variant:
    stored: str
    quantization: str | None = None

    def __str__(self) -> str:
        return self.stored if self.quantization is None else f"{self.stored}, `-q {self.quantization}`"


VARIANTS = [
    Variant("Q4_0"),
    Variant("BF16"),
    Variant("BF16", "int8"),
    Variant("BF16", "int4"),
    Variant("AWQ"),
    Variant("AWQ", "int8"),
    Variant("GPTQ"),
    Variant("GPTQ", "int8"),
]
BESIDE = VARIANTS[0]


def layers() -> Iterator[tuple[str, str, int, int]]:
    """Hugging Face's and GGUF's name of every matrix of the layers, rows, columns."""
    for layer in range(LAYERS):
        folder, file = f"model.layers.{layer}", f"blk.{layer}"
        yield f"{folder}.self_attn.q_proj", f"{file}.attn_q", HEADS * HEAD_DIM, HIDDEN
        yield f"{folder}.self_attn.k_proj", f"{file}.attn_k", KV_HEADS * HEAD_DIM, HIDDEN
        yield f"{folder}.self_attn.v_proj", f"{file}.attn_v", KV_HEADS * HEAD_DIM, HIDDEN
        yield f"{folder}.self_attn.o_proj", f"{file}.attn_output", HIDDEN, HEADS * HEAD_DIM
        yield f"{folder}.mlp.gate_proj", f"{file}.ffn_gate", FEED_FORWARD, HIDDEN
        yield f"{folder}.mlp.up_proj", f"{file}.ffn_up", FEED_FORWARD, HIDDEN
        yield f"{folder}.mlp.down_proj", f"{file}.ffn_down", HIDDEN, FEED_FORWARD


def vectors() -> Iterator[tuple[str, str, int, float]]:
    """The same of norms and biases, their length, and the one value that they have."""
    for layer in range(LAYERS):
        folder, file = f"model.layers.{layer}", f"blk.{layer}"
        yield f"{folder}.input_layernorm.weight", f"{file}.attn_norm.weight", HIDDEN, 1.0
        yield f"{folder}.post_attention_layernorm.weight", f"{file}.ffn_norm.weight", HIDDEN, 1.0
        yield f"{folder}.self_attn.q_proj.bias", f"{file}.attn_q.bias", HEADS * HEAD_DIM, 0.0
        yield f"{folder}.self_attn.k_proj.bias", f"{file}.attn_k.bias", KV_HEADS * HEAD_DIM, 0.0
        yield f"{folder}.self_attn.v_proj.bias", f"{file}.attn_v.bias", KV_HEADS * HEAD_DIM, 0.0
    yield "model.norm.weight", "output_norm.weight", HIDDEN, 1.0


def write_folder(folder: Path, method: str) -> None:
    """`method`: BF16, AWQ or GPTQ."""
    rng = np.random.default_rng(1)
    floats = "F16" if method == "AWQ" else "BF16"
    config: dict[str, Any] = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB, "rms_norm_eps": EPS, "rope_theta": ROPE_BASE, "max_position_embeddings": CONTEXT,
        "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float16" if floats == "F16" else "bfloat16",
    }  # fmt: skip
    if method == "AWQ":
        config["quantization_config"] = {
            "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
        }  # fmt: skip
    if method == "GPTQ":
        config["quantization_config"] = {
            "quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False,
        }  # fmt: skip

    def dense(rows: int, columns: int) -> Array:
        values = rng.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))
        return values.astype(np.float16) if floats == "F16" else _bfloat16(values)

    tensors: list[Tensor] = [
        ("model.embed_tokens.weight", floats, (VOCAB, HIDDEN), lambda: dense(VOCAB, HIDDEN))
    ]
    for name, _, length, value in vectors():
        full = np.full(length, value, np.float32)
        values = full.astype(np.float16) if floats == "F16" else _bfloat16(full)
        tensors.append((name, floats, (length,), lambda values=values: values))
    for name, _, n, k in layers():
        if method == "BF16":
            tensors.append((f"{name}.weight", floats, (n, k), lambda n=n, k=k: dense(n, k)))
        else:
            tensors += _grouped(name, n, k, method, rng)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    _write_safetensors(folder / "model.safetensors", tensors)


def _grouped(name: str, n: int, k: int, method: str, rng: np.random.Generator) -> Iterator[Tensor]:
    """Random integers around zero points in the middle, as such checkpoints have them."""
    words = (k, n // 8) if method == "AWQ" else (k // 8, n)
    zero = 0x88888888 if method == "AWQ" else 0x77777777  # GPTQ stores one less

    def integers() -> Array:
        return np.frombuffer(rng.bytes(4 * words[0] * words[1]), np.int32)

    def scales() -> Array:
        deviation = 4.6 * np.sqrt(k)  # of the integers from -8 to 7
        return (rng.uniform(0.8, 1.2, (k // GROUP, n)) / deviation).astype(np.float16)

    zeros = np.full((k // GROUP, n // 8), zero, np.uint32)
    yield f"{name}.qweight", "I32", words, integers
    yield f"{name}.qzeros", "I32", zeros.shape, lambda: zeros
    yield f"{name}.scales", "F16", (k // GROUP, n), scales
    if method == "GPTQ":
        yield f"{name}.g_idx", "I32", (k,), lambda: np.repeat(np.arange(k // GROUP, dtype=np.int32), GROUP)


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _write_safetensors(path: Path, tensors: list[Tensor]) -> None:
    header, offset = {}, 0
    for name, type, shape, _ in tensors:
        end = offset + int(np.prod(shape)) * {"I32": 4, "F16": 2, "BF16": 2}[type]
        header[name] = {"dtype": type, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for *_, make in tensors:
            file.write(np.ascontiguousarray(make()).data)


def write_gguf(path: Path) -> None:
    """In Q4_0, the embedding in Q8_0."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("Random 0.5B Q4_0")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_vocab_size(VOCAB)
    add_tokenizer(writer, open_checkpoint(demo_model_path()).tokenizer, VOCAB)

    def add(name: str, type: str, n: int, k: int) -> None:
        blocks = random_blocks(type, n, k, rng)
        writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[type])

    add("token_embd.weight", "Q8_0", VOCAB, HIDDEN)
    for _, name, length, value in vectors():
        writer.add_tensor(name, np.full(length, value, np.float32))
    for _, name, n, k in layers():
        add(f"{name}.weight", "Q4_0", n, k)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def path_of(stored: str, models: Path) -> Path:
    """Where the model lies, written where it is not there yet."""
    path = models / (f"{stored}.gguf" if stored == "Q4_0" else stored)
    if not path.exists():
        print(f"writing {path}", file=sys.stderr)
        unfinished = path.with_name(f"{path.name}.part")
        if stored == "Q4_0":
            write_gguf(unfinished)
        else:
            write_folder(unfinished, stored)
        unfinished.rename(path)
    return path


def memory(variant: Variant, models: Path) -> tuple[int, int]:
    """Estimated and taken, in bytes."""
    command = [sys.executable, str(MEMORY_TAKEN), str(path_of(variant.stored, models))]
    command += [variant.quantization] if variant.quantization else []
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    estimated, taken = output.split()[-2:]
    return int(estimated), int(taken)


def speeds(
    variants: list[Variant], models: Path, *, threads: int, turns: int, tokens: int
) -> dict[Variant, list[float]]:
    """Tokens a second of each turn's answer."""
    engines: dict[Variant, LocalEngine] = {}
    measured: dict[Variant, list[float]] = {variant: [] for variant in variants}
    try:
        for variant in variants:
            engines[variant] = LocalEngine(
                EngineConfig(
                    model=str(path_of(variant.stored, models)),
                    quantization=variant.quantization,
                    threads=threads,
                    enable_prefix_caching=False,
                    max_num_seqs=1,
                    max_num_batched_tokens=16,
                    max_model_len=tokens + 2,
                )
            )
        for turn in range(-1, turns):
            for variant, engine in engines.items():
                requests = fixed_requests(f"turn{turn}", 1, 1, tokens, engine.info.vocab_size)
                first = None
                for _ in engine.generate(requests):
                    first = first or time.perf_counter()
                assert first is not None
                if turn >= 0:  # the first one warms up
                    measured[variant].append((tokens - 1) / (time.perf_counter() - first))
        return measured
    finally:
        for engine in engines.values():
            engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Quantized folders beside the same shape in Q4_0.")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--models", type=Path, help="folder that keeps the models; default: a passing one")
    parser.add_argument("--only", nargs="+", choices=sorted({v.stored for v in VARIANTS}), metavar="STORED")
    parser.add_argument("--what", choices=("speed", "memory", "both"), default="both")
    parser.add_argument("--write", action="store_true", help="only write the models")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        models = arguments.models or Path(passing)
        models.mkdir(exist_ok=True)
        chosen = [v for v in VARIANTS if not arguments.only or v.stored in (BESIDE.stored, *arguments.only)]
        for variant in chosen:
            path_of(variant.stored, models)
        if arguments.write:
            return
        memories = {v: memory(v, models) for v in chosen} if arguments.what != "speed" else {}
        rates: dict[Variant, list[float]] = {}
        if arguments.what != "memory":
            rates = speeds(
                chosen, models, threads=arguments.threads, turns=arguments.turns, tokens=arguments.tokens
            )
    print(
        "| stored as | decode, tokens/s (slowest–fastest turn) | beside Q4_0 | estimated, MiB | taken, MiB | |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for variant in chosen:
        cells = [str(variant), "–", "–", "–", "–", "–"]
        if variant in rates:
            cells[1] = spread(rates[variant], ".1f")
            cells[2] = (
                f"{100 * (statistics.median(rates[variant]) / statistics.median(rates[BESIDE]) - 1):+.0f} %"
            )
        if variant in memories:
            estimated, taken = memories[variant]
            cells[3:] = [f"{size / 2**20:.0f}" for size in (estimated, taken)]
            cells.append(f"{100 * (taken / estimated - 1):+.1f} %")
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
