"""Every type that llama.cpp writes: SmolLM2 turned into it by `llama-quantize`, and its perplexity here and there.

    python benchmarks/every_type.py --threads 2
    python benchmarks/every_type.py --types Q4_K_M IQ2_XXS --tokens 8192

The same file, text and windows on both sides (see perplexity.py). The widths of SmolLM2-135M are no multiples of 256,
so many of the types fall back to others for its matrices: the table names those that are in the file. Types that
llama.cpp only makes with an importance matrix get one from the text.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from llama_cpp import find_programs
from perplexity import encode, llama_perplexity, python_reference, runner

from tokentrail.checkpoints import Checkpoint, demo_model_path, open_checkpoint
from tokentrail.engine.perplexity import measure, windows
from tokentrail.protocol import ModelFileError

TYPES = (
    *(
        "F32",
        "F16",
        "BF16",
        "Q8_0",
        "Q6_K",
        "Q5_K_M",
        "Q5_K_S",
        "Q5_1",
        "Q5_0",
        "Q4_K_M",
        "Q4_K_S",
        "Q4_1",
        "Q4_0",
    ),
    *(
        "Q3_K_L",
        "Q3_K_M",
        "Q3_K_S",
        "Q2_K",
        "Q2_K_S",
        "IQ4_NL",
        "IQ4_XS",
        "IQ3_M",
        "IQ3_S",
        "IQ3_XS",
        "IQ3_XXS",
    ),
    *("IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "TQ2_0", "TQ1_0", "MXFP4_MOE", "Q2_0", "Q1_0"),
)
CONTEXT = 512
BOUND = 0.005


def run(*command: str | Path) -> str | None:
    """The last line of a program's complaint, or None where it succeeded."""
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    return None if not result.returncode else (result.stderr.strip().splitlines() or ["failed"])[-1]


def stored_types(checkpoint: Checkpoint) -> str:
    """The types of the file's matrices, by their share of the weights."""
    sizes: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        if len(tensor.shape) == 2:
            sizes[tensor.format] += tensor.shape[0] * tensor.shape[1]
    return ", ".join(f"{name} {size / sizes.total():.0%}" for name, size in sizes.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", type=Path, help="GGUF file to start from; left out, the demo model")
    parser.add_argument("--types", nargs="+", default=list(TYPES), metavar="TYPE")
    parser.add_argument("--tokens", type=int, default=2048, help="of the text (%(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama-bin", type=Path, help="folder of llama.cpp's programs")
    args = parser.parse_args()
    source = args.model or demo_model_path()
    programs = find_programs(args.llama_bin)
    text, chunks = python_reference(), -(-args.tokens // CONTEXT)
    beyond: list[str] = []
    print("| type | stored as | llama.cpp | Tokentrail | difference |\n| --- | --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        words, model, importance = (Path(folder, name) for name in ("text.txt", "model.gguf", "imatrix.gguf"))
        words.write_text(text, encoding="utf-8")
        for type in args.types:
            plain = (programs / "llama-quantize", "--allow-requantize")
            failed = run(*plain, source, model, type, str(args.threads))
            if failed:
                if not importance.exists():
                    run(
                        programs / "llama-imatrix",
                        "-m",
                        source,
                        "-f",
                        words,
                        "-o",
                        importance,
                        "--chunks",
                        "8",
                    )
                failed = run(*plain, "--imatrix", importance, source, model, type, str(args.threads))
            if failed:
                print(f"| {type} | llama-quantize does not write it: {failed} | | | |", flush=True)
                continue
            try:
                checkpoint = open_checkpoint(model)
            except ModelFileError as error:
                beyond.append(type)
                print(f"| {type} | {error} | | | |", flush=True)
                continue
            ids = encode(checkpoint, text)[: chunks * CONTEXT]
            bos = checkpoint.tokenizer.bos_token_id if checkpoint.tokenizer.add_bos else None
            theirs = llama_perplexity(programs, model, words, CONTEXT, chunks, args.threads, "f16").value
            ours = measure(
                runner(model, "bfloat16", CONTEXT, args.threads), windows(ids, CONTEXT, bos=bos)
            ).value
            change = ours / theirs - 1
            if abs(change) > BOUND:
                beyond.append(type)
            print(
                f"| {type} | {stored_types(checkpoint)} | {theirs:.4f} | {ours:.4f} | {change:+.2%} |",
                flush=True,
            )
            model.unlink()
    if beyond:
        sys.exit(f"further than {BOUND:.1%} from llama.cpp, or not read: {', '.join(beyond)}")


if __name__ == "__main__":
    main()
