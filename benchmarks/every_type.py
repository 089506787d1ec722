"""Every type that llama.cpp writes: SmolLM2 turned into it by `llama-quantize`, and its perplexity here and there.

    python benchmarks/every_type.py --threads 2
    python benchmarks/every_type.py --types Q4_K_M IQ2_XXS --tokens 8192

The same file, text and windows on both sides (see perplexity.py), and a third time in single precision: the weights as
the file has them, and neither activations nor the cache rounded. Both engines round activations on their way through a
quantized model, each in its own way; that third column is what both of them come near to. `±` is the standard error of
our difference from it: the tokens are the same, so it is much below that of a perplexity itself.

The widths of SmolLM2-135M are no multiples of 256, so many of the types fall back to others for its matrices: the table
names those that are in the file (every_type_logits.py has no such widths). Types that llama.cpp only makes with an
importance matrix get one, made once from the text and kept in `--cache`, with all that was measured: a run that is
interrupted goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from llama_cpp import find_programs
from perplexity import encode, llama_perplexity, python_reference, runner

from tokentrail.checkpoints import Checkpoint, demo_model_path, open_checkpoint
from tokentrail.engine.perplexity import F64, logprobs, perplexity, windows
from tokentrail.protocol import ModelFileError

TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0"),
    *("Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "Q2_K_S", "IQ4_NL", "IQ4_XS", "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS"),
    *("IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "TQ2_0", "TQ1_0", "MXFP4_MOE", "Q2_0", "Q1_0"),
)  # fmt: skip
CONTEXT = 512
BOUND = 0.005
IMPORTANCE_WINDOWS = 4
CHARACTERS = 8
"""For a token, more than it takes: how much text the programs are given to cut into tokens."""


@dataclass(frozen=True)
class Row:
    """Perplexities of a type. `error`: standard error of the mean difference of ours from the exact one, in nats."""

    stored: str
    theirs: float
    ours: float
    exact: float
    error: float

    def text(self, type: str) -> str:
        differences = (
            f"{self.ours / self.theirs - 1:+.2%}",
            f"{self.ours / self.exact - 1:+.2%} ± {self.error:.2%}",
            f"{self.theirs / self.exact - 1:+.2%}",
        )
        values = (f"{value:.4f}" for value in (self.theirs, self.ours, self.exact))
        return f"| {' | '.join((type, self.stored, *values, *differences))} |"

    @property
    def good(self) -> bool:
        """Whether ours is as near to llama.cpp as the bound asks, or nearer to the exact value than llama.cpp's."""
        ours, theirs = math.log(self.ours / self.exact), math.log(self.theirs / self.exact)
        return abs(self.ours / self.theirs - 1) <= BOUND or abs(ours) < abs(theirs)


HEADER = (
    "| type | stored as | llama.cpp | Tokentrail | exact | ours to llama.cpp | ours to exact | llama.cpp to exact |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
)


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


def convert(
    programs: Path, source: Path, type: str, model: Path, importance: Path, threads: int
) -> str | None:
    """Write the model in the type, with the importance matrix where it needs one; what llama.cpp says if it cannot."""
    plain = (programs / "llama-quantize", "--allow-requantize")
    failed = run(*plain, source, model, type, str(threads))
    if failed:
        failed = run(*plain, "--imatrix", importance, source, model, type, str(threads))
    return failed


def importance_of(programs: Path, source: Path, text: str, cache: Path) -> Path:
    """The source's importance matrix, from the first windows of the text."""
    path = cache / f"{source.stem}.imatrix.gguf"
    if not path.exists():
        words, unfinished = cache / "importance.txt", path.with_suffix(".part")
        words.write_text(text[: CHARACTERS * CONTEXT * IMPORTANCE_WINDOWS], encoding="utf-8")
        arguments = ("-c", str(CONTEXT), "--chunks", str(IMPORTANCE_WINDOWS))
        failed = run(programs / "llama-imatrix", "-m", source, "-f", words, "-o", unfinished, *arguments)
        if failed:
            sys.exit(f"llama-imatrix failed: {failed}")
        unfinished.rename(path)
    return path


def losses(model: Path, ids: list[int], bos: int | None, threads: int, *, exact: bool) -> F64:
    """Negative log-probabilities of all tokens that count."""
    engine = runner(model, "bfloat16", CONTEXT, threads, exact=exact)
    return -np.concatenate(
        [part for window in windows(ids, CONTEXT, bos=bos) for part in logprobs(engine, window)]
    )


def measure(programs: Path, model: Path, text: str, words: Path, chunks: int, threads: int) -> Row:
    checkpoint = open_checkpoint(model)
    ids = encode(checkpoint, text)[: chunks * CONTEXT]
    if len(ids) < chunks * CONTEXT:
        sys.exit(f"the text has only {len(ids)} tokens of the {chunks * CONTEXT} asked for")
    bos = checkpoint.tokenizer.bos_token_id if checkpoint.tokenizer.add_bos else None
    theirs = llama_perplexity(programs, model, words, CONTEXT, chunks, threads, "f16").value
    ours, exact = (losses(model, ids, bos, threads, exact=exact) for exact in (False, True))
    error = float((ours - exact).std(ddof=1)) / math.sqrt(len(ours))
    return Row(stored_types(checkpoint), theirs, perplexity(ours).value, perplexity(exact).value, error)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", type=Path, help="GGUF file to start from; left out, the demo model")
    parser.add_argument("--types", nargs="+", default=list(TYPES), choices=list(TYPES), metavar="TYPE")
    parser.add_argument("--tokens", type=int, default=4096, help="of the text (%(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama-bin", type=Path, help="folder of llama.cpp's programs")
    default_cache = Path(tempfile.gettempdir()) / "tokentrail-benchmarks"
    parser.add_argument(
        "--cache", type=Path, default=default_cache, help="folder for what is kept between runs"
    )
    args = parser.parse_args()
    source = args.model or demo_model_path()
    programs = find_programs(args.llama_bin)
    chunks = -(-args.tokens // CONTEXT)
    text = python_reference()[: CHARACTERS * CONTEXT * max(chunks, IMPORTANCE_WINDOWS)]
    args.cache.mkdir(parents=True, exist_ok=True)
    kept = args.cache / f"{source.stem}.every-type-{chunks * CONTEXT}.json"
    rows: dict[str, Row] = {}
    if kept.exists():
        rows = {type: Row(**row) for type, row in json.loads(kept.read_text(encoding="utf-8")).items()}
    importance = importance_of(programs, source, text, args.cache)
    beyond: list[str] = []
    print(HEADER)
    with tempfile.TemporaryDirectory() as folder:
        words, model = Path(folder, "text.txt"), Path(folder, "model.gguf")
        words.write_text(text, encoding="utf-8")
        for type in args.types:
            try:
                if type not in rows:
                    failed = convert(programs, source, type, model, importance, args.threads)
                    if failed:
                        print(
                            f"| {type} | llama-quantize does not write it: {failed} | | | | | | |", flush=True
                        )
                        continue
                    rows[type] = measure(programs, model, text, words, chunks, args.threads)
                    everything = {name: asdict(row) for name, row in rows.items()}
                    kept.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
            except ModelFileError as error:
                beyond.append(type)
                print(f"| {type} | {error} | | | | | | |", flush=True)
                continue
            print(rows[type].text(type), flush=True)
            if not rows[type].good:
                beyond.append(type)
    if beyond:
        problem = f"further than {BOUND:.1%} from llama.cpp and not nearer to the exact value, or not read"
        sys.exit(f"{problem}: {', '.join(beyond)}")


if __name__ == "__main__":
    main()
