from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run

from tokentrail.cli.inspect import characters, visible

pytestmark = pytest.mark.usefixtures("demo_path")


def test_facts_add_up(run: Run, demo_path: Path) -> None:
    result = json.loads(run("inspect", "--json").out)
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


def test_tokens_join_to_the_text(run: Run) -> None:
    text = "Hello 世界 🎉\n<|im_end|>"
    tokens = json.loads(run("inspect", "--json", "--tokens", text).out)["tokens"]
    assert b"".join(bytes.fromhex(token["bytes"]) for token in tokens).decode() == text
    assert tokens[-1] == {"id": 2, "text": "<|im_end|>", "bytes": b"<|im_end|>".hex(), "special": True}
    printed = run("inspect", "--tokens", text).out
    for token in tokens:
        assert f" {token['id']}" in printed
    assert f"{len(tokens)} tokens" in printed


def test_template(run: Run, tmp_path: Path) -> None:
    rendered = json.loads(run("inspect", "--json", "--template").out)["rendered_template"]
    assert rendered.startswith("<|im_start|>system\n")
    assert rendered.endswith("<|im_start|>assistant\n")
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[1].content }}|{{ eos_token }}")
    outcome = run("inspect", "--chat-template", str(own))
    assert "What is the capital of France?|<|im_end|>" in outcome.out
    own.write_text("{{ oops")
    outcome = run("inspect", "--chat-template", str(own))
    assert outcome.code == 1
    assert str(own) in outcome.err


def test_a_person_can_read_it(run: Run) -> None:
    out = run("inspect").out
    for part in ("134,515,008", "Q4_1", "8,192 tokens", "22.5 KiB a token"):
        assert part in out


def test_visible() -> None:
    assert visible(b" the\n") == "·the⏎"
    assert visible("é".encode()) == "é"
    assert visible(b"\xe4\xb8") == "<E4><B8>"
    assert visible(b" \xe4a") == "·<E4>a"
    assert visible(b"\x1b[2J") == "<U+001B>[2J"
    assert visible("\u202e".encode()) == "<U+202E>"


def test_tokens_of_one_character_stand_together(run: Run) -> None:
    printed = run("inspect", "--tokens", "我喜欢编程").out
    assert "我 = <E6><88> 19805 + <91> 235" in printed
    for char in "喜欢编程":
        assert char in printed

    def groups(*pieces: bytes) -> list[int]:
        return [len(group) for group in characters([{"bytes": piece.hex()} for piece in pieces])]

    assert groups(b"a", b"\xe6", b"\x88", b"\x91", b"b") == [1, 3, 1]
    assert groups(b"\xe6\x88", b"\x91\xe6", b"\x88\x91") == [3]
    assert groups(b"\xe6", b"x") == [1, 1]
    assert groups(b"x", b"\xe6", b"\x88") == [1, 1, 1]
