"""The comparison measures every side it should, in turn, and its table says what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from compare_llama_cpp import FILE, OURS, Comparison, Line, Measurement, Report
from llama_cpp import Flags, LlamaCpp
from random_model import SCALES, matrices, random_blocks, rope_factors
from results import Results, Sample, spread

from tokentrail.cli.bench.other_load import OtherLoad

ON, OFF = Flags(), Flags(flash=False)


@pytest.fixture
def comparison(demo_path: Path, tmp_path: Path) -> Comparison:
    results = Results(tmp_path / "results.json", "model")
    return Comparison(demo_path, 1, LlamaCpp(tmp_path, 1), tmp_path, results, quick=False)


def measurement(name: str = "decode-1") -> Measurement:
    def peer(model: Path, flags: Flags) -> Sample:
        return {"decode": 2.0 if flags.flash else 4.0}

    return Measurement(name, lambda: {"decode": 10.0}, peer, (ON, OFF), ("Q4_0", "BF16"))


def test_first_turn_tries_all_later_ones_the_best(comparison: Comparison, tmp_path: Path) -> None:
    asked = measurement()
    everything = [f"{format}, {flags}" for format in (FILE, "Q4_0", "BF16") for flags in (ON, OFF)]
    assert list(comparison.pending(asked, 0, asked.formats)) == [*everything, OURS]
    rates = dict(zip([*everything, OURS], (5.0, 6.0, 7.0, 9.0, 8.0, 1.0, 20.0), strict=True))
    for side, rate in rates.items():
        comparison.results.add(asked.name, side, {"decode": rate})
    assert list(comparison.pending(asked, 0, asked.formats)) == []
    best = [f"{FILE}, {OFF}", f"Q4_0, {OFF}"]
    assert list(comparison.pending(asked, 1, asked.formats)) == [*best, OURS]
    comparison.results.add(asked.name, best[0], {"decode": 4.0})
    # Another process goes on where this one stopped; another model starts anew.
    comparison.results = Results(tmp_path / "results.json", "model")
    assert list(comparison.pending(asked, 1, asked.formats)) == [best[1], OURS]
    comparison.results = Results(tmp_path / "results.json", "other")
    assert list(comparison.pending(asked, 0, ())) == [*everything[:2], OURS]


def test_a_disturbed_turn_is_repeated(comparison: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.4, 0.01, 0.3, 0.2, 0.1])
    monkeypatch.setattr(OtherLoad, "share", lambda self: next(shares))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert comparison.measure(measurement(), OURS) == {"decode": 10.0, "others": 0.01}
    # What a busy machine measures is not taken.
    with pytest.raises(SystemExit, match="not idle"):
        comparison.measure(measurement(), OURS)


def test_table_holds_medians_and_tells_missed_bars() -> None:
    results = Results(None, "model")
    for ours, file, other in ((10, 5, 9), (30, 5, 9), (20, 5, 9)):
        results.add("decode-1", OURS, {"decode": ours, "share": 0.8, "bandwidth": 33e9})
        results.add("decode-1", f"{FILE}, {ON}", {"decode": file})
        results.add("decode-1", f"BF16, {OFF}", {"decode": other})
    report = Report(results, [measurement()], (Line("decode", "decode-1", "decode", 4, 2.5),))
    row = report.table().splitlines()[-1]
    assert row == (
        "| decode | 20 (10–30) | 5 (5–5), -fa on -ub 512 | 4.00 × (bar: 4, met) "
        "| 9 (9–9), BF16, -fa off -ub 512 | 2.22 × (bar: 2.5, missed) |"
    )
    assert "80% (80%–80%) of what the memory allows (bar: 85%, missed)" in report.notes()
    assert spread([1.26], ".1f") == "1.3"


@pytest.mark.parametrize("format", sorted(SCALES))
def test_random_blocks_are_a_matrix_of_the_format(format: str) -> None:
    blocks = random_blocks(format, 64, 2048, np.random.default_rng(0))
    values = gguf.dequantize(blocks, gguf.GGMLQuantizationType[format])
    assert values.shape == (64, 2048)
    assert values.std() == pytest.approx(1 / np.sqrt(2048), rel=0.05)
    # TQ2_0 has a fourth value, 2, which no quantizer writes.
    assert abs(values.mean()) < (0.5 if format == "TQ2_0" else 0.2) * values.std()


def test_random_model_has_the_shape_of_llama_3_2_1b() -> None:
    assert sum(rows * columns for _, rows, columns in matrices()) == 1_235_746_816
    factors = rope_factors()
    # As in the published files: short waves are kept, long ones stretched by 32.
    assert factors[0] == 1.0
    assert factors[-1] == 32.0
    assert (np.diff(factors) >= 0).all()
    assert ((factors > 1) & (factors < 32)).any()


def test_peer_without_programs_is_told_what_to_install(tmp_path: Path) -> None:
    from llama_cpp import find_programs

    with pytest.raises(
        SystemExit, match="has no llama-bench; give --llama-bin the folder of a complete build"
    ):
        find_programs(tmp_path)
