from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import Run
from rich.console import Console

from hf_folders import write_folder
from tokentrail.checkpoints import Checkpoint
from tokentrail.cli.inspect.facts import facts, part_of
from tokentrail.cli.inspect.machine import machine_facts
from tokentrail.cli.inspect.show import show
from tokentrail.cli.inspect.tokens import characters, split, visible
from tokentrail.engine import EngineConfig
from tokentrail.ops.native.machine import Machine
from tokentrail.text import Tokenizer

pytestmark = pytest.mark.usefixtures("demo_path")


def test_facts_add_up(run: Run, demo_path: Path) -> None:
    result = json.loads(run("inspect", "--json", "--no-measure").out)
    assert result["path"] == str(demo_path)
    assert result["file_bytes"] == demo_path.stat().st_size
    assert result["architecture"] == "llama"
    # The numbers of SmolLM2-135M, as its authors and llama.cpp give them.
    assert result["parameters"] == 134_515_008
    assert (result["layers"], result["heads"], result["kv_heads"], result["head_dim"]) == (30, 9, 3, 64)
    heads = 30 * 3 * 2  # of keys and of values
    expected = {"bfloat16": heads * 64 * 2, "int8": heads * (64 + 4), "float32": heads * 64 * 4}
    assert result["kv_bytes_per_token"] == expected
    types = result["tensors_by_type"]
    assert sum(entry["parameters"] for entry in types.values()) == result["parameters"]
    assert sum(entry["bytes"] for entry in types.values()) == result["tensor_bytes"] < result["file_bytes"]
    assert types["Q4_1"]["bytes"] * 8 == types["Q4_1"]["parameters"] * 5
    assert sum(result["parameters_by_part"].values()) == result["parameters"]
    assert result["eos_token_ids"] == {"0": "<|endoftext|>", "2": "<|im_end|>"}
    assert "tokens" not in result
    assert result["active_parameters"] == result["parameters"]
    assert result["parameters_by_part"]["embedding"] == 49152 * 576
    assert result["parameters_by_part"]["feed_forward"] == 30 * 3 * 576 * 1536
    memory = result["memory"]
    assert memory["weights_by_format"]["FP16"]["bytes"] == 2 * 134_515_008 + 2 * 61 * 576, "norms are float32"
    assert memory["weights"] < memory["weights_by_format"]["int8"]["bytes"]


def test_tokens_join_to_the_text(run: Run) -> None:
    text = "Hello 世界 🎉\n<|im_end|>"
    tokens = json.loads(run("inspect", "--no-measure", "--json", "--tokens", text).out)["tokens"]
    assert b"".join(bytes.fromhex(token["bytes"]) for token in tokens).decode() == text
    assert tokens[-1] == {"id": 2, "text": "<|im_end|>", "bytes": b"<|im_end|>".hex(), "special": True}
    printed = run("inspect", "--no-measure", "--tokens", text).out
    for token in tokens:
        assert f" {token['id']}" in printed
    assert f"{len(tokens)} tokens" in printed


def test_template(run: Run, tmp_path: Path) -> None:
    rendered = json.loads(run("inspect", "--no-measure", "--json", "--template").out)["rendered_template"]
    assert rendered.startswith("<|im_start|>system\n")
    assert rendered.endswith("<|im_start|>assistant\n")
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[1].content }}|{{ eos_token }}")
    outcome = run("inspect", "--no-measure", "--chat-template", str(own))
    assert "What is the capital of France?|<|im_end|>" in outcome.out
    own.write_text("{{ oops")
    outcome = run("inspect", "--no-measure", "--chat-template", str(own))
    assert outcome.code == 1
    assert str(own) in outcome.err


SNAPSHOTS = Path(__file__).with_name("snapshots")


def shown(result: dict[str, Any]) -> str:
    """What a terminal of 100 columns without colours shows."""
    file = io.StringIO()
    show(result, Console(file=file, width=100, color_system=None, highlight=False))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def test_a_person_sees(demo_checkpoint: Checkpoint) -> None:
    """The whole page, on a machine of 8 GiB whose rates are round numbers. UPDATE_SNAPSHOTS=1 writes it anew."""
    config = EngineConfig(threads=2)
    machine = Machine(2e10, {"int4": 2e11, "int8": 2e11, "bf16": 1e11, "f32": 5e10})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokentrail.cli.inspect.machine.probe", lambda backend: machine)
        tokenizer = Tokenizer.from_checkpoint(demo_checkpoint)
        result = facts(demo_checkpoint, tokenizer)
        result |= machine_facts(demo_checkpoint, config, measure=True, free=8 << 30)
    result["path"] = "model.gguf"
    result["machine"]["isa"] = "avx512"
    result["memory"]["buffers"] = 34 << 20  # which numerics change now and then
    result["machine"]["as_served"]["total_bytes"] = 2 << 30
    result["tokens"] = split(tokenizer, "我喜欢编程 and\nRust")
    result["rendered_template"] = "<|im_start|>user\nHello"
    snapshot = SNAPSHOTS / "inspect.txt"
    page = shown(result)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        snapshot.parent.mkdir(exist_ok=True)
        snapshot.write_text(page, encoding="utf-8")
    assert page == snapshot.read_text(encoding="utf-8")


def test_what_does_not_fit_is_told(demo_checkpoint: Checkpoint) -> None:
    result = facts(demo_checkpoint) | machine_facts(
        demo_checkpoint, EngineConfig(), measure=False, free=100 << 20
    )
    assert result["machine"]["longest_context"] == 0
    assert "may be used" in result["machine"]["as_served"]["error"]
    assert " not: " in " ".join(shown(result).split())  # wherever the lines are cut
    assert "at best" not in shown(result)


def test_the_flags_of_the_engine_count(run: Run) -> None:
    def machine(*flags: str) -> dict[str, Any]:
        return json.loads(run("inspect", "--json", "--no-measure", *flags).out)

    plain, small = machine(), machine("--kv-cache-dtype", "int8", "--max-num-batched-tokens", "64")
    assert plain["memory"]["kv_bytes_per_token"] == plain["kv_bytes_per_token"]["bfloat16"]
    assert small["memory"]["kv_bytes_per_token"] == small["kv_bytes_per_token"]["int8"]
    assert small["memory"]["buffers"] < plain["memory"]["buffers"]
    assert plain["machine"]["at_best"] is None
    assert machine("--max-model-len", "1024", "-np", "2")["machine"]["as_served"]["kv_cache_tokens"] == 2048


def test_rates_are_measured(run: Run) -> None:
    best = json.loads(run("inspect", "--json", "--threads", "1").out)["machine"]["at_best"]
    one, many = best["decode"]["1"]["tokens_per_second"], best["decode"]["32"]["tokens_per_second"]
    assert 1 < one < many
    assert best["prompt"]["tokens_per_second"] > one


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("embed", "embedding"),
        ("head", "head"),
        ("norm", "norms"),
        ("layers.3.q.bias", "attention"),
        ("layers.3.q_norm", "norms"),
        ("layers.3.mlp_post_norm", "norms"),
        ("layers.3.sinks", "attention"),
        ("layers.3.down", "feed_forward"),
        ("layers.3.router_correction", "router"),
        ("layers.3.experts.7.gate", "experts"),
        ("layers.3.shared.up", "shared_experts"),
        ("layers.3.shared_gate", "router"),
    ],
)
def test_parts(name: str, part: str) -> None:
    assert part_of(name) == part


def test_visible() -> None:
    assert visible(b" the\n") == "·the⏎"
    assert visible("é".encode()) == "é"
    assert visible(b"\xe4\xb8") == "<E4><B8>"
    assert visible(b" \xe4a") == "·<E4>a"
    assert visible(b"\x1b[2J") == "<U+001B>[2J"
    assert visible("\u202e".encode()) == "<U+202E>"


def test_tokens_of_one_character_stand_together(run: Run) -> None:
    printed = run("inspect", "--no-measure", "--tokens", "我喜欢编程").out
    assert "我 = <E6><88> 19805 + <91> 235" in printed
    for char in "喜欢编程":
        assert char in printed

    def groups(*pieces: bytes) -> list[int]:
        return [len(group) for group in characters([{"bytes": piece.hex()} for piece in pieces])]

    assert groups(b"a", b"\xe6", b"\x88", b"\x91", b"b") == [1, 3, 1]
    assert groups(b"\xe6\x88", b"\x91\xe6", b"\x88\x91") == [3]
    assert groups(b"\xe6", b"x") == [1, 1]
    assert groups(b"x", b"\xe6", b"\x88") == [1, 1, 1]


def test_a_folder_of_hugging_face(run: Run, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny")
    result = json.loads(run("inspect", str(folder), "--json", "--no-measure").out)
    assert result["architecture"] == "llama"
    assert result["file_bytes"] > result["tensor_bytes"] == 4 * result["parameters"]
    assert result["memory"]["weights"] >= result["tensor_bytes"]
    assert list(result["eos_token_ids"]) == ["2"]
    shown = run("inspect", str(folder), "--no-measure").out
    assert "tiny" in shown
    outcome = run("inspect", str(folder), "--no-measure", "--tokens", "hello")
    assert outcome.code == 1
    assert "token" in outcome.err
