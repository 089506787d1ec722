"""Every family against transformers: in float32, to a relative 1e-4, from the folder that transformers saves.

The golden files come from `scripts/make_golden.py`; tests marked `oracle` ask transformers itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_cases import CASES, write_folder
from model_harness import Model, assert_relative

from random_models import F32
from tokentrail.checkpoints import Checkpoint, dequantize, open_checkpoint
from tokentrail.ops.native import NativeBackend, available_isas
from tokentrail.ops.reference import ReferenceBackend

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="module")
def saved() -> dict[str, dict[str, Any]]:
    """Case → config.json and shapes, as transformers saves them."""
    return json.loads((GOLDEN / "families.json").read_text())


@pytest.fixture(scope="module")
def golden() -> dict[str, F32]:
    """Case → logits [tokens, vocab]."""
    with np.load(GOLDEN / "families.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def backend() -> NativeBackend:
    return NativeBackend(2)


def opened(case: dict[str, Any], folder: Path, **changes: Any) -> Checkpoint:
    return open_checkpoint(write_folder(folder, {**case["config"], **changes}, case["shapes"]))


def test_golden_files_have_all_cases(saved: dict[str, Any], golden: dict[str, F32]) -> None:
    assert set(golden) == set(CASES) == set(saved)


@pytest.mark.parametrize("name", CASES)
def test_logits(
    name: str, saved: dict[str, Any], golden: dict[str, F32], backend: NativeBackend, tmp_path: Path
) -> None:
    """The prompt at once; in chunks and then decoded; in company."""
    tokens = CASES[name].tokens()
    model = Model(opened(saved[name], tmp_path), backend, context=CASES[name].context)
    for way in (model.at_once, model.in_chunks, model.in_company):
        assert_relative(way(tokens), golden[name])


@pytest.mark.parametrize("name", CASES)
def test_the_reference_agrees_too(
    name: str, saved: dict[str, Any], golden: dict[str, F32], tmp_path: Path
) -> None:
    """So it may judge the kernels: not by them, but by transformers."""
    model = Model(
        opened(saved[name], tmp_path), ReferenceBackend(dequantize), context=CASES[name].context, blocks=32
    )
    assert_relative(model.at_once(CASES[name].tokens()), golden[name], 1e-5)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.matters])
def test_what_a_case_is_about_matters(
    name: str, saved: dict[str, Any], golden: dict[str, F32], backend: NativeBackend, tmp_path: Path
) -> None:
    for change in CASES[name].matters:
        model = Model(opened(saved[name], tmp_path, **change), backend, context=CASES[name].context)
        got = model.at_once(CASES[name].tokens())
        assert np.abs(got - golden[name]).max() > 1e-2 * np.abs(golden[name]).max(), change


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "glm4", "qwen3-biases"])
def test_every_instruction_set(
    name: str, isa: str, saved: dict[str, Any], golden: dict[str, F32], tmp_path: Path
) -> None:
    """The families with ops of their own; the same bits in chunks and in company as at once."""
    tokens = CASES[name].tokens()
    model = Model(opened(saved[name], tmp_path), NativeBackend(2, isa))
    once = model.at_once(tokens)
    assert_relative(once, golden[name])
    for way in (model.in_chunks, model.in_company):
        np.testing.assert_array_equal(way(tokens).view(np.uint32), once.view(np.uint32))


@pytest.mark.oracle
@pytest.mark.parametrize("name", CASES)
def test_transformers_itself(
    name: str, saved: dict[str, Any], golden: dict[str, F32], backend: NativeBackend, tmp_path: Path
) -> None:
    """Golden files are what transformers says today; what it saves is what we load."""
    oracle = pytest.importorskip("transformers_oracle", exc_type=ImportError)
    case = CASES[name]
    assert oracle.saved(case) == saved[name]
    folder = write_folder(tmp_path / "ours", saved[name]["config"], saved[name]["shapes"])
    expected = oracle.logits_of_folder(folder, case.tokens(), again=tmp_path / "theirs")
    assert_relative(golden[name], expected, 1e-5)
    model = Model(open_checkpoint(tmp_path / "theirs"), backend, context=case.context)
    assert_relative(model.at_once(case.tokens()), expected)
