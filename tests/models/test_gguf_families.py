"""GGUF files of every architecture against llama.cpp: the same file, the same log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf_cases import CASES, CONTEXT, VOCAB
from model_harness import Model

from llama_oracle import LlamaCpp
from tokentrail.checkpoints import open_checkpoint
from tokentrail.ops.native import NativeBackend


@pytest.mark.parametrize("name", CASES)
def test_configuration(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    got = open_checkpoint(case.write(tmp_path / "model.gguf")).config
    rope = replace(case.config.rope, interleaved=got.rope.interleaved)
    if any(key.startswith("rope.scaling") for key in case.keys):
        rope = got.rope  # the log-probabilities will tell
    assert got == replace(case.config, rope=rope, rms_norm_eps=got.rms_norm_eps)


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities(name: str, tmp_path: Path) -> None:
    path = CASES[name].write(tmp_path / "model.gguf")
    theirs = LlamaCpp(path, context=CONTEXT)
    ours = Model(open_checkpoint(path), NativeBackend(1), context=CONTEXT)
    tokens = np.random.RandomState(3).randint(0, VOCAB, 60).tolist()
    logits = ours.at_once(tokens).astype(np.float64)
    logprobs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    for length in (1, 9, 60):
        expected = theirs.logprobs(tokens[:length], VOCAB)
        error = np.abs(logprobs[length - 1] - expected).max() / np.abs(expected).max()
        assert error < 5e-4, (
            f"after {length} tokens: {error:.2g}"
        )  # most: 1e-4; its GELU is a table of float16
