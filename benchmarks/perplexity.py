"""Perplexity beside llama.cpp: the same file, the same text, the same windows.

    python benchmarks/perplexity.py --tokens 20000 --threads 2

The text is cut into windows of `--context` tokens. In each, the second half is predicted from all tokens of the window
before it, as llama.cpp's own `llama-perplexity` does it; perplexity is the exponential of the mean negative
log-probability. Ours is computed for each `--kv-cache-dtype`, llama.cpp's with its default cache (half precision) and
with `q8_0`, and each of ours is compared with llama.cpp's default.

The default text ships with Python: the language reference as `help()` prints it (`pydoc_data.topics`, under Python's
licence), its topics in alphabetical order. Other text: `--text FILE`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from llama_cpp import find_programs

from tokentrail.checkpoints import Checkpoint, demo_model_path, open_checkpoint
from tokentrail.engine import EngineConfig
from tokentrail.engine.model_runner import ModelRunner
from tokentrail.engine.perplexity import Perplexity, measure, windows
from tokentrail.ops.backend import KV_DTYPES
from tokentrail.text import Tokenizer


def python_reference() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def encode(checkpoint: Checkpoint, text: str) -> list[int]:
    """Token ids as `llama-perplexity` has them: what looks like a control token is ordinary text."""
    return Tokenizer.from_checkpoint(checkpoint).encode(text, parse_special=False)


def runner(
    model: Path, kv_dtype: str, context: int, threads: int | None = None, *, exact: bool = False
) -> ModelRunner:
    """The model for one window at a time; `exact`: weights as their format says, and nothing else rounded below single
    precision."""
    return ModelRunner(
        EngineConfig(
            model=str(model),
            kv_cache_dtype="float32" if exact else kv_dtype,
            activation_dtype="float32" if exact else "auto",
            max_model_len=context,
            max_num_seqs=256,
            threads=threads,
        )
    )


def llama_perplexity(
    programs: Path, model: Path, text: Path, context: int, chunks: int, threads: int, cache: str
) -> Perplexity:
    """What `llama-perplexity` says of the first `chunks` windows."""
    program = programs / "llama-perplexity"
    if not program.exists():
        sys.exit(f"{programs} has no llama-perplexity; give --llama-bin the folder of a complete build.")
    command = [str(program), "-m", str(model), "-f", str(text), "-t", str(threads)]
    command += [
        "-c",
        str(context),
        "--chunks",
        str(chunks),
        "--no-escape",
        "-fa",
        "on",
        "-ctk",
        cache,
        "-ctv",
        cache,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    found = re.search(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)", result.stdout + result.stderr)
    if result.returncode or not found:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    value, error = float(found[1]), float(found[2])
    return Perplexity(value, error, chunks * (context - 1 - context // 2), math.log(value))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", type=Path, help="GGUF file; left out, the demo model")
    parser.add_argument("--text", type=Path, help="UTF-8 text; left out, Python's language reference")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens of the text to use (%(default)s)")
    parser.add_argument("--context", type=int, default=512, help="tokens of a window (%(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--kv-cache-dtype", nargs="+", default=list(KV_DTYPES), choices=KV_DTYPES, help="ours to measure"
    )
    parser.add_argument("--llama-bin", type=Path, help="folder of llama.cpp's programs")
    parser.add_argument("--llama-cache", nargs="+", default=["f16", "q8_0"], help="llama.cpp's cache types")
    parser.add_argument("--json", type=Path, help="also write the results here")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    path = args.model or demo_model_path()
    programs = find_programs(args.llama_bin)
    checkpoint = open_checkpoint(path)
    text = args.text.read_text(encoding="utf-8") if args.text else python_reference()
    ids = encode(checkpoint, text)
    chunks = -(-args.tokens // args.context)
    if len(ids) < chunks * args.context:
        sys.exit(f"the text has {len(ids)} tokens, {chunks} windows need {chunks * args.context}")
    ids = ids[: chunks * args.context]
    source = checkpoint.tokenizer
    bos = source.bos_token_id if source.add_bos else None
    print(f"{path.name}: {len(ids)} tokens in {chunks} windows of {args.context}")

    theirs = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text(text, encoding="utf-8")
        for cache in args.llama_cache:
            theirs[cache] = llama_perplexity(programs, path, file, args.context, chunks, args.threads, cache)
    standard = next(iter(theirs.values()))
    print("| engine | KV cache | perplexity | to llama.cpp |\n| --- | --- | ---: | ---: |")
    for cache, result in theirs.items():
        show("llama.cpp", cache, result, standard)
    ours = {}
    cut = windows(ids, args.context, bos=bos)
    for dtype in args.kv_cache_dtype:
        ours[dtype] = measure(runner(path, dtype, args.context, args.threads), cut)
        show("Tokentrail", dtype, ours[dtype], standard)
    if args.json:
        results = {
            engine: {name: vars(result) for name, result in results.items()}
            for engine, results in (("llama.cpp", theirs), ("Tokentrail", ours))
        }
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def show(engine: str, cache: str, result: Perplexity, standard: Perplexity) -> None:
    change = result.value / standard.value - 1
    print(f"| {engine} | {cache} | {result.value:.4f} ± {result.error:.2f} | {change:+.2%} |", flush=True)


if __name__ == "__main__":
    main()
