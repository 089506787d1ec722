"""What a model's makers recommend for sampling."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_model
from hf_folders import write_folder
from tokentrail.checkpoints import generation_defaults, open_checkpoint, read_generation_config
from tokentrail.protocol import DEFAULTED, ModelFileError, SamplingDefaults, SamplingParams

# As Qwen2.5-0.5B-Instruct's.
QWEN = {
    "bos_token_id": 3,
    "pad_token_id": 3,
    "do_sample": True,
    "eos_token_id": [5, 3],
    "repetition_penalty": 1.1,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "transformers_version": "4.37.0",
}


def read(tmp_path: Path, values: Any) -> SamplingDefaults:
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(values))
    return read_generation_config(path)


def test_a_folder_s_own(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", files={"generation_config.json": QWEN}))
    expected = SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1)
    assert generation_defaults(checkpoint) == expected
    assert checkpoint.eos_token_ids == (3, 5)
    assert generation_defaults(open_checkpoint(write_folder(tmp_path / "none"))) == SamplingDefaults()


def test_a_gguf_file_s_own(tmp_path: Path) -> None:
    tokens = ["<|endoftext|>", *"abc"]
    metadata = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.25,
    }
    checkpoint = open_checkpoint(write_model(tmp_path / "m.gguf", tokens=tokens, metadata=metadata))
    assert generation_defaults(checkpoint) == SamplingDefaults(
        temperature=0.5, top_k=20, repetition_penalty=1.25
    )
    plain = open_checkpoint(write_model(tmp_path / "n.gguf", tokens=tokens))
    assert generation_defaults(plain) == SamplingDefaults()


def test_lengths_and_what_does_not_count(tmp_path: Path) -> None:
    assert read(tmp_path, {"max_new_tokens": 512, "max_length": 9}) == SamplingDefaults(max_tokens=512)
    assert read(tmp_path, {"temperature": None, "do_sample": False}) == SamplingDefaults()
    assert read_generation_config(tmp_path / "none.json") == SamplingDefaults()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.5),
        ("temperature", "0.7"),
        ("temperature", math.nan),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", 1.5),
        ("top_k", -2),
        ("top_k", True),
        ("min_p", [0.1]),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=rf"generation_config\.json: key '{key}' must be .*config vllm"):
        read(tmp_path, {key: value})


def test_only_what_is_unset_is_filled() -> None:
    defaults = SamplingDefaults(temperature=0.6, top_k=20, max_tokens=9)
    given = SamplingParams(temperature=0.0, top_p=0.5)
    assert defaults.fill(given, ()) is given
    assert defaults.fill(given, {"top_k", "min_p"}) == given.replace(top_k=20)
    assert defaults.fill(SamplingParams(), DEFAULTED) == SamplingParams(
        temperature=0.6, top_k=20, max_tokens=9
    )
    for name in DEFAULTED:
        assert hasattr(SamplingParams(), name)
