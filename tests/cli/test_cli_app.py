"""The program as a whole: help, version, errors, exit codes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run, program

from tokentrail import __version__
from tokentrail.cli import app as app_module
from tokentrail.protocol import CapacityError

COMMANDS = [
    ["serve"],
    ["chat"],
    ["generate"],
    ["inspect"],
    ["bench"],
    ["bench", "throughput"],
    ["bench", "latency"],
    ["bench", "serve"],
]


def test_help_lists_the_commands(run: Run) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        outcome = run(*arguments)
        assert outcome.code == 0
        for command in ("serve", "chat", "generate", "bench", "inspect"):
            assert f"\n  {command} " in outcome.out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: list[str], run: Run) -> None:
    outcome = run(*command, "--help")
    assert outcome.code == 0
    assert outcome.err == ""
    assert "…" not in outcome.out, "a name was cut off"
    assert max(map(len, outcome.out.splitlines())) <= 100


def test_serve_help_has_vllms_flags_and_llama_cpps_short_ones(run: Run) -> None:
    out = run("serve", "--help").out
    for flag in (
        "-m, --model", "--served-model-name", "--api-key", "--host", "--port", "-np, --max-num-seqs",
        "-c, --max-model-len", "--max-num-batched-tokens", "--block-size", "--enforce-eager",
        "--enable-prefix-caching / --no-enable-prefix-caching", "--seed", "--dtype", "--quantization",
        "--gpu-memory-utilization", "--tensor-parallel-size", "-t, --threads",
    ):  # fmt: skip
        assert flag in out


def test_version_both_ways() -> None:
    assert program("--version").out.strip() == f"tokentrail {__version__}"
    script = Path(sys.executable).with_name("tokentrail")
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == f"tokentrail {__version__}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "No such command 'nope'"),
        (["serve", "--foo"], "--foo"),
        (["serve", "--port", "x"], "--port"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--block-size", "17"], "17 is not one of 16, 32, 64, 128 or 256"),
        (["serve", "--kv-cache-memory", "2XB"], "'2XB' is not a size"),
        (["serve", "-c", "8.5"], "--max-model-len"),
        (["serve", "--max-num-batched-tokens", "0"], "--max-num-batched-tokens"),
        (["serve", "--kv-cache-dtype", "int3"], "'int3' is not one of auto, bfloat16, int8 or float32"),
        (["serve", "--quantization", "int3"], "'int3' is not one of int8, int4, gguf, awq"),
        (["serve", "org/name", "--hub", "github"], "'github' is not one of huggingface or modelscope"),
        (["serve", "--gpu-memory-utilization", "1.5"], "1.5 is not a share"),
        (["serve", "a.gguf", "--model", "b.gguf"], "two models"),
        (["serve", "--log-level", "loud"], "'loud'"),
        (["bench", "serve", "--url", "ftp://x"], "ftp://x"),
        (["bench", "serve", "--request-rate", "0"], "--request-rate"),
        (["bench", "serve", "--random-input-len", "5-2"], "--random-input-len"),
        (["bench", "serve", "--endpoint", "chat", "--prompts", "ids"], "--prompts"),
        (["generate", "x", "--raw", "--system", "y"], "--system"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], said: str, run: Run) -> None:
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("tokentrail: error: ")
    assert said in outcome.err
    assert "--help" in outcome.err
    assert outcome.out == ""


def test_errors_are_one_line_and_code_1(run: Run, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\x03\x00\x00\x00")
    for arguments in (
        ["inspect", str(damaged)],
        ["inspect", "/no/such.gguf"],
        ["generate", "x", "-m", str(damaged)],
    ):
        outcome = run(*arguments)
        assert outcome.code == 1
        assert outcome.err.count("\n") == 1
        assert outcome.err.startswith("tokentrail: error: ")
        assert arguments[-1] in outcome.err


def test_an_error_of_several_lines_is_told_in_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        raise CapacityError("it does\n not fit")

    monkeypatch.setattr(app_module, "app", fails)
    outcome = run("serve")
    assert (outcome.code, outcome.err) == (1, "tokentrail: error: it does not fit\n")


def test_a_defect_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(app_module, "app", fails)
    with pytest.raises(ZeroDivisionError):
        app_module.run([])


def test_interrupt_and_a_reader_that_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app_module, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        app_module.run([])
    assert ended.value.code == 130
    command = f"{sys.executable} -m tokentrail inspect --no-measure --json | head -c 10"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=60)
    assert result.stderr == ""


@pytest.mark.usefixtures("demo_path")
@pytest.mark.parametrize(
    "locale",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=str,
)
def test_any_locale_shows_any_text(locale: dict[str, str]) -> None:
    outcome = program("inspect", "--no-measure", "--tokens", "我é🎉", environment=locale)
    assert (outcome.code, outcome.err) == (0, "")
    assert "<E6>" in outcome.out
    outcome = program("inspect", "--no-measure", "--tokens", "我é🎉", "--json", environment=locale)
    result = json.loads(outcome.out)
    assert b"".join(bytes.fromhex(token["bytes"]) for token in result["tokens"]).decode() == "我é🎉"
    if "LC_ALL" in locale:
        outcome = program("chat", "-n", "2", "--temperature", "0", stdin="é🎉\n", environment=locale)
        assert (outcome.code, outcome.err) == (0, "")
        return
    # A prompt, a system message and a drawing, there and back.
    flags = ("-n", "2", "--system", "我é", "--temperature", "0", "--trail")
    outcome = program("generate", *flags, stdin="é🎉", environment=locale)
    assert (outcome.code, outcome.err) == (0, "")
    assert "decode" in outcome.out


def test_help_is_quick() -> None:
    """Under 0.4 s. Measured as CPU time, the best of five: tests share their machine."""

    def children() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    times = []
    for _ in range(5):
        before = children()
        assert program("--help").code == 0
        times.append(children() - before)
    assert min(times) < 0.4
