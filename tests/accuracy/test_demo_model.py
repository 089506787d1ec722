"""Real text on the real demo model, against transformers running the dequantized weights in float32.

The limits are the project's promise: per-token log-probabilities within 0.05 on average, perplexity within 1 %. Golden
values come from `scripts/make_golden.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from texts import TEXTS, prompt_of

from tokentrail.checkpoints import Checkpoint
from tokentrail.models import load_model
from tokentrail.ops.backend import Executable, KvLayout, Limits
from tokentrail.ops.native import NativeBackend, available_isas
from tokentrail.text import Tokenizer

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "demo.npz"
ISAS = available_isas()
FAST_ISAS = ISAS[:-1] or ISAS
"""The portable path takes a minute for ten texts; it gets one."""
BLOCKS = 20

F32 = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def golden() -> dict[str, npt.NDArray[np.generic]]:
    with np.load(GOLDEN) as file:
        return dict(file)


@pytest.fixture(scope="module")
def tokenizer(demo_checkpoint: Checkpoint) -> Tokenizer:
    return Tokenizer.from_checkpoint(demo_checkpoint)


def compiled(checkpoint: Checkpoint, isa: str, *, exact: bool = False) -> Executable:
    config, backend = checkpoint.config, NativeBackend(isa=isa)
    model = load_model(checkpoint, backend, activation_dtype="float32" if exact else "auto")
    dtype = "float32" if exact else "bfloat16"
    kv = KvLayout(dtype, config.num_layers, BLOCKS, 16, config.num_kv_heads, config.head_dim)
    return backend.compile(model.program, kv, Limits(256, 1, 256), config.vocab_size)


def forward(executable: Executable, ids: list[int], start: int = 0) -> F32:
    """Logits of all rows of one sequence's chunk."""
    count = len(ids)
    return executable.forward(
        np.array(ids, np.int32),
        np.arange(start, start + count, dtype=np.int32),
        np.array([0, count], np.int32),
        np.arange(BLOCKS, dtype=np.int32)[None],
        np.arange(count, dtype=np.int32),
    )


def logprobs(executable: Executable, ids: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Log-probabilities of the second token on."""
    logits = forward(executable, ids.tolist()).astype(np.float64)
    exact = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    chosen: npt.NDArray[np.float64] = exact[np.arange(len(ids) - 1), ids[1:]]
    return chosen


def test_golden_tokens_are_those_of_the_texts(golden, tokenizer: Tokenizer) -> None:
    for name, text in TEXTS.items():
        assert golden[f"{name}.ids"].tolist() == tokenizer.encode(text), name


@pytest.mark.parametrize("isa", FAST_ISAS)
def test_log_probabilities(isa: str, golden, demo_checkpoint: Checkpoint) -> None:
    executable = compiled(demo_checkpoint, isa)
    differences, ours, theirs = [], [], []
    for name in TEXTS:
        got, expected = logprobs(executable, golden[f"{name}.ids"]), golden[f"{name}.logprobs"]
        differences.append(np.abs(got - expected))
        ours.append(got)
        theirs.append(expected)
        change = np.exp(expected.mean() - got.mean()) - 1
        print(f"{isa} {name}: mean difference {differences[-1].mean():.4f}, perplexity {change:+.2%}")
        assert differences[-1].mean() < 0.05, name
    change = np.exp(np.concatenate(theirs).mean() - np.concatenate(ours).mean()) - 1
    print(f"{isa}: mean difference {np.concatenate(differences).mean():.4f}, perplexity {change:+.2%}")
    assert np.concatenate(differences).mean() < 0.05
    assert abs(change) < 0.01


@pytest.mark.parametrize("isa", ISAS)
def test_exact_activations_and_cache(isa: str, golden, demo_checkpoint: Checkpoint) -> None:
    """`--activation-dtype float32 --kv-cache-dtype float32`: 30 layers deep, nothing but float32's own rounding."""
    name = "chat"
    count = 30 if isa == "portable" and isa != ISAS[0] else None
    ids, expected = golden[f"{name}.ids"][:count], golden[f"{name}.logprobs"][: count and count - 1]
    got = logprobs(compiled(demo_checkpoint, isa, exact=True), ids)
    assert np.abs(got - expected).max() < 2e-3
    assert np.abs(got - expected).mean() < 1e-4


@pytest.mark.parametrize("isa", ISAS)
def test_the_capital_of_france(isa: str, golden, demo_checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
    """At temperature 0, on every instruction set, the answer is transformers' own, token for token, up to Paris."""
    assert golden["answer.margins"].min() > 0.5, "the question is a coin toss; take another"
    executable = compiled(demo_checkpoint, isa)
    ids = tokenizer.encode(prompt_of(demo_checkpoint))
    answer = [int(forward(executable, ids)[-1].argmax())]
    while len(answer) < len(golden["answer.ids"]):
        logits = forward(executable, answer[-1:], start=len(ids) + len(answer) - 1)
        answer.append(int(logits[-1].argmax()))
    assert answer == golden["answer.ids"].tolist()
    assert "Paris" in tokenizer.decode(answer)
