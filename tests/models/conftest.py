"""Models that transformers has computed: the golden files of `scripts/make_golden.py`, of families and of mixtures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from random_models import F32
from tokentrail.ops.native import NativeBackend

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FILES = ("families", "mixtures")


@pytest.fixture(scope="session")
def saved() -> dict[str, dict[str, Any]]:
    """Case → config.json and shapes, as transformers saves them. Not to be changed."""
    cases: dict[str, dict[str, Any]] = {}
    for name in FILES:
        cases |= json.loads((GOLDEN / f"{name}.json").read_text())
    return cases


@pytest.fixture(scope="session")
def golden() -> dict[str, F32]:
    """Case → logits [tokens, vocab]."""
    cases: dict[str, F32] = {}
    for name in FILES:
        with np.load(GOLDEN / f"{name}.npz") as file:
            cases |= dict(file)
    return cases


@pytest.fixture(scope="module")
def backend() -> NativeBackend:
    return NativeBackend(2)
