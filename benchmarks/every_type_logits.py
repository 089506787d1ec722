"""Every type that llama.cpp writes, on widths that are multiples of 256: log-probabilities here, there, and exact.

    python benchmarks/every_type_logits.py
    python benchmarks/every_type_logits.py --types Q4_K_M IQ2_XXS

A small Llama with random weights and the demo model's vocabulary (512 wide, feed-forward 1,536, so that no type falls
back to another) is turned into each type by `llama-quantize`. Behind a few prompts the log-probabilities of all tokens
are compared: ours and llama.cpp's (`llama-server`, its cache in single precision) with those of the same weights in
single precision throughout. Differences are relative, |a - b| / |b| in the Euclidean norm, log-probabilities taken
around their mean. A file that one side read wrongly would be off by about 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from every_type import TYPES, convert, importance_of, stored_types
from llama_cpp import find_programs
from perplexity import python_reference
from processes import free_port, server

from tokentrail.checkpoints import Checkpoint, demo_model_path, open_checkpoint
from tokentrail.models import load_model
from tokentrail.ops.backend import KvLayout, Limits
from tokentrail.ops.native import NativeBackend
from tokentrail.protocol import ModelFileError

HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 512, 1536, 2, 8, 4, 64, 512
PROMPT_LENGTHS = (2, 33, 100)
BOUND = 1.2
"""How much further from the exact values than llama.cpp's ours may be."""
F64 = npt.NDArray[np.float64]


def write(path: Path) -> None:
    """The model, in half precision."""
    source = open_checkpoint(demo_model_path()).tokenizer
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Random Llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(len(source.tokens))
    writer.add_tokenizer_model(source.kind)
    writer.add_tokenizer_pre(source.pre or "default")
    writer.add_token_list(list(source.tokens))
    writer.add_token_types(source.token_types.tolist())
    writer.add_token_merges(list(source.merges))
    if source.bos_token_id is not None:
        writer.add_bos_token_id(source.bos_token_id)
    if source.eos_token_id is not None:
        writer.add_eos_token_id(source.eos_token_id)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = random.standard_normal((rows, columns)) / np.sqrt(columns)
        writer.add_tensor(f"{name}.weight", values.astype(np.float16))

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", random.uniform(0.5, 1.5, HIDDEN).astype(np.float32))

    matrix("token_embd", len(source.tokens), HIDDEN)
    norm("output_norm")
    for layer in range(LAYERS):
        norm(f"blk.{layer}.attn_norm")
        norm(f"blk.{layer}.ffn_norm")
        matrix(f"blk.{layer}.attn_q", HEADS * HEAD_DIM, HIDDEN)
        matrix(f"blk.{layer}.attn_k", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(f"blk.{layer}.attn_v", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(f"blk.{layer}.attn_output", HIDDEN, HEADS * HEAD_DIM)
        matrix(f"blk.{layer}.ffn_gate", FEED_FORWARD, HIDDEN)
        matrix(f"blk.{layer}.ffn_up", FEED_FORWARD, HIDDEN)
        matrix(f"blk.{layer}.ffn_down", HIDDEN, FEED_FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def prompts(vocabulary: int) -> list[list[int]]:
    random = np.random.default_rng(2)
    return [random.integers(300, vocabulary, length).tolist() for length in PROMPT_LENGTHS]


def ours(checkpoint: Checkpoint, threads: int, activations: str) -> F64:
    """Log-probabilities [prompts, vocabulary] behind each prompt, the cache in single precision."""
    config, backend = checkpoint.config, NativeBackend(threads)
    model = load_model(checkpoint, backend, activation_dtype=activations, context=CONTEXT)
    kv = KvLayout("float32", config.num_layers, CONTEXT // 16, 16, config.num_kv_heads, config.head_dim)
    executable = backend.compile(model.program, kv, Limits(CONTEXT, 1, 1), config.vocab_size)
    table = np.arange(CONTEXT // 16, dtype=np.int32)[None]
    rows = []
    for ids in prompts(config.vocab_size):
        count = len(ids)
        logits = executable.forward(
            np.array(ids, np.int32),
            np.arange(count, dtype=np.int32),
            np.array([0, count], np.int32),
            table,
            np.array([count - 1], np.int32),
        )[0].astype(np.float64)
        rows.append(logits - np.logaddexp.reduce(logits))
    return np.stack(rows)


def theirs(programs: Path, model: Path, threads: int, vocabulary: int) -> F64:
    """The same of llama.cpp."""
    port = free_port()
    command = [
        str(programs / "llama-server"), "-m", str(model), "-t", str(threads), "-c", str(CONTEXT), "-np", "1",
        "--host", "127.0.0.1", "--port", str(port), "--no-webui", "-fa", "off", "-ctk", "f32", "-ctv", "f32",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    rows = []
    with server(command, url):
        for ids in prompts(vocabulary):
            body = {
                "prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": vocabulary, "cache_prompt": False,
            }  # fmt: skip
            request = urllib.request.Request(
                f"{url}/completion", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=120) as response:
                answer: dict[str, Any] = json.load(response)
            values = np.full(vocabulary, np.nan)
            for entry in answer["completion_probabilities"][0]["top_logprobs"]:
                values[entry["id"]] = entry["logprob"]
            rows.append(values)
    return np.stack(rows)


def difference(a: F64, b: F64) -> float:
    """Relative, over all prompts."""
    a, b = (x - x.mean(axis=1, keepdims=True) for x in (a, b))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--types", nargs="+", default=list(TYPES), choices=list(TYPES), metavar="TYPE")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama-bin", type=Path, help="folder of llama.cpp's programs")
    args = parser.parse_args()
    programs = find_programs(args.llama_bin)
    beyond: list[str] = []
    print("| type | stored as | ours to llama.cpp | ours to exact | llama.cpp to exact |")
    print("| --- | --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        source, model = cache / "random-512.gguf", cache / "model.gguf"
        write(source)
        importance = importance_of(programs, source, python_reference(), cache)
        for type in args.types:
            failed = convert(programs, source, type, model, importance, args.threads)
            if failed:
                print(f"| {type} | llama-quantize does not write it: {failed} | | | |", flush=True)
                continue
            try:
                checkpoint = open_checkpoint(model)
            except ModelFileError as error:
                beyond.append(type)
                print(f"| {type} | {error} | | | |", flush=True)
                continue
            exact, quantized = (ours(checkpoint, args.threads, kind) for kind in ("float32", "auto"))
            peer = theirs(programs, model, args.threads, checkpoint.config.vocab_size)
            to_peer, to_exact, peers = (
                difference(quantized, peer), difference(quantized, exact), difference(peer, exact),
            )  # fmt: skip
            values = " | ".join(f"{value:.2%}" for value in (to_peer, to_exact, peers))
            print(f"| {type} | {stored_types(checkpoint)} | {values} |", flush=True)
            if not to_exact <= max(BOUND * peers, 1e-3):
                beyond.append(type)
            model.unlink()
    if beyond:
        sys.exit(f"further from the exact values than llama.cpp, or not read: {', '.join(beyond)}")


if __name__ == "__main__":
    main()
