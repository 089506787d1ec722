from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run

pytestmark = pytest.mark.usefixtures("demo_path")

TEXT = "The quick brown fox jumps over the lazy dog. " * 30


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_a_text_that_repeats_itself_is_predicted_well(run: Run, text: Path) -> None:
    result = json.loads(run("eval", "--text", str(text), "--ctx-size", "128", "--json").out)
    assert result["context"] == 128
    assert result["windows"] == result["text_tokens"] // 128
    assert result["tokens"] == result["windows"] * 63
    assert 1.0 < result["perplexity"] < 1.2
    strided = json.loads(
        run("eval", "--text", str(text), "--ctx-size", "128", "--stride", "32", "--chunks", "3", "--json").out
    )
    assert strided["windows"] == 3
    assert strided["tokens"] == 96
    assert strided["perplexity"] < 1.3


def test_the_cache_type_is_passed_on(run: Run, text: Path) -> None:
    def nll(*flags: str) -> float:
        return float(
            json.loads(run("eval", "-f", str(text), "-q", "gguf", "--json", "--chunks", "3", *flags).out)[
                "nll"
            ]
        )

    exact = nll("--kv-cache-dtype", "float32", "--activation-dtype", "float32", "--ctx-size", "64")
    rounded = nll("--kv-cache-dtype", "int8", "--ctx-size", "64")
    assert exact != rounded
    assert abs(exact - rounded) < 0.1


def test_a_person_can_read_it(run: Run, text: Path) -> None:
    out = run("eval", "--text", str(text), "--ctx-size", "64", "--chunks", "2").out
    assert "perplexity " in out
    assert "2 of 64 tokens, side by side" in out
    assert "62 tokens" in out


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--text", "nowhere.txt"), "--text"),
        (("--ctx-size", "9999"), "--ctx-size"),
        (("--ctx-size", "512", "--stride", "512"), "--stride"),
        (("--ctx-size", "512", "--max-model-len", "64"), "--max-model-len"),
    ],
)
def test_what_is_wrong_is_named(run: Run, text: Path, flags: tuple[str, ...], named: str) -> None:
    outcome = run("eval", "--text", str(text), *flags)
    assert outcome.code in (1, 2)
    assert named in outcome.err
    assert len(outcome.err.splitlines()) == 1
