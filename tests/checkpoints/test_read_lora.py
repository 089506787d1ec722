"""Reading PEFT adapters: names, scales, order of rows, and a clear word for each that cannot be served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lora_folders import random_pairs, write_adapter
from random_models import random_checkpoint, small_config
from tokentrail.checkpoints import Checkpoint, LoraAdapter, RopeConfig, Tensor, dequantize, read_lora
from tokentrail.checkpoints.hf_tensors import Cut
from tokentrail.checkpoints.lora import _rows
from tokentrail.protocol import ModelFileError

CONFIG = small_config()


def base(**changes: Any) -> Checkpoint:
    checkpoint = random_checkpoint(small_config(**changes))
    return replace(checkpoint, metadata={"general.architecture": "llama"})


def opened(folder: Path, checkpoint: Checkpoint | None = None) -> LoraAdapter:
    return read_lora("one", folder, checkpoint or base())


def values(tensor: Any) -> np.ndarray:
    return dequantize(tensor.data, tensor.format, tensor.shape)


def test_layers_get_their_canonical_names(tmp_path: Path) -> None:
    pairs = random_pairs(CONFIG, rank=3)
    adapter = opened(write_adapter(tmp_path, pairs))
    assert len(adapter.modules) == 2 * 7
    assert adapter.rank == 3
    module = adapter.modules["layers.1.down"]
    a, b = pairs["model.layers.1.mlp.down_proj"]
    np.testing.assert_array_equal(values(module.a), a)
    np.testing.assert_array_equal(values(module.b), b)
    assert module.scale == 1


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"lora_alpha": 8}, 2.0),
        ({"lora_alpha": 8, "use_rslora": True}, 4.0),
        ({"lora_alpha": 8, "alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"lora_alpha": 8, "alpha_pattern": {"model.layers.0.self_attn.q_proj": 2}}, 0.5),
        ({"lora_alpha": 8, "alpha_pattern": {"^model.layers.0.self_attn.q_proj$": 2}}, 0.5),
        ({"lora_alpha": 8, "alpha_pattern": {"^q_proj": 2, "roj": 4}}, 2.0),
    ],
)
def test_scales(tmp_path: Path, settings: dict[str, Any], scale: float) -> None:
    adapter = opened(write_adapter(tmp_path, random_pairs(CONFIG, parts="q"), **settings))
    assert adapter.modules["layers.0.q"].scale == scale


def test_rows_follow_the_order_of_ggufs_queries_and_keys(tmp_path: Path) -> None:
    """llama.cpp's converter turns a head's rows (first halves, second halves) into pairs."""
    config = CONFIG
    pairs = random_pairs(config, parts="q v")
    checkpoint = base(rope=RopeConfig(dim=16, interleaved=True))
    modules = opened(write_adapter(tmp_path, pairs), checkpoint).modules
    b = pairs["model.layers.0.self_attn.q_proj"][1]
    expected = b.reshape(config.num_heads, 2, 8, -1).swapaxes(1, 2).reshape(b.shape)
    np.testing.assert_array_equal(values(modules["layers.0.q"].b), expected)
    np.testing.assert_array_equal(
        values(modules["layers.0.v"].b), pairs["model.layers.0.self_attn.v_proj"][1]
    )


def test_fingerprints_tell_adapters_apart(tmp_path: Path) -> None:
    folders = [
        write_adapter(tmp_path / "a", random_pairs(CONFIG, seed=1)),
        write_adapter(tmp_path / "b", random_pairs(CONFIG, seed=2)),
        write_adapter(tmp_path / "c", random_pairs(CONFIG, seed=1), lora_alpha=5),
    ]
    assert len({opened(folder).fingerprint for folder in folders}) == 3
    again = write_adapter(tmp_path / "d", random_pairs(CONFIG, seed=1))
    assert opened(again).fingerprint == opened(folders[0]).fingerprint


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "biases"),
        ({"lora_bias": True}, "lora_bias"),
        ({"target_parameters": ["experts.gate"]}, "target_parameters"),
        ({"alpha_pattern": {"(a+)+": 2}}, "alpha_pattern"),
        ({"alpha_pattern": {"q_proj": "2"}}, "alpha_pattern"),
        ({"lora_alpha": "16"}, "lora_alpha"),
    ],
)
def test_settings_that_cannot_be_served(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelFileError, match=words) as caught:
        opened(write_adapter(tmp_path, random_pairs(CONFIG), **settings))
    assert "\n" not in str(caught.value)
    assert "adapter_config.json" in str(caught.value)


def matrix(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


Q = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("pairs", "tensors", "words"),
    [
        ({Q: (matrix(4, 64), matrix(64, 5))}, {}, "ranks differ"),
        ({Q: (matrix(4, 63), matrix(64, 4))}, {}, "takes 63 values, but 'layers.0.q' .* takes 64"),
        ({Q: (matrix(4, 64), matrix(60, 4))}, {}, "gives 60 values"),
        ({Q: (matrix(257, 64), matrix(64, 257))}, {}, "rank 257"),
        ({"model.layers.9.self_attn.q_proj": (matrix(4, 64), matrix(64, 4))}, {}, "does not have"),
        ({"model.layers.0.mlp.other": (matrix(4, 64), matrix(64, 4))}, {}, "no layer of a llama"),
        ({"model.layers.0.input_layernorm": (matrix(4, 64), matrix(64, 4))}, {}, "norms"),
        ({"model.embed_tokens": (matrix(4, 64), matrix(64, 4))}, {}, "embeddings"),
        ({}, {f"base_model.model.{Q}.lora_A.weight": matrix(4, 64)}, "lora_B.weight' is missing"),
        ({}, {f"base_model.model.{Q}.lora_magnitude_vector": matrix(1, 64)}, "DoRA"),
        ({}, {"base_model.model.lm_head.weight": matrix(4, 64)}, "no lora_A or lora_B"),
        ({}, {"base_model.model.model.embed_tokens.lora_embedding_A": matrix(4, 64)}, "embeddings"),
        ({Q: (np.zeros((4, 64), np.float64), matrix(64, 4))}, {}, "F64"),
        ({}, {}, "adapts nothing"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, pairs: Any, tensors: Any, words: str) -> None:
    with pytest.raises(ModelFileError, match=words) as caught:
        opened(write_adapter(tmp_path, pairs, tensors=tensors))
    assert "\n" not in str(caught.value)


def test_a_tied_head_cannot_be_adapted(tmp_path: Path) -> None:
    pairs = {"lm_head": (matrix(4, 64), matrix(64, 4))}
    assert set(opened(write_adapter(tmp_path, pairs)).modules) == {"head"}
    with pytest.raises(ModelFileError, match="also the model's embedding"):
        opened(tmp_path, base(tie_embeddings=True))


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no folder with adapter_config\.json"):
        opened(tmp_path / "nowhere")
    write_adapter(tmp_path, random_pairs(CONFIG))
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ModelFileError, match="pickle"):
        opened(tmp_path)


def test_copies_of_the_models_own_head_are_passed_over(tmp_path: Path) -> None:
    name = "base_model.model.lm_head.base_layer.weight"
    pairs = random_pairs(CONFIG)
    adapter = opened(write_adapter(tmp_path, pairs, tensors={name: matrix(64, 64)}))
    assert len(adapter.modules) == len(pairs)
    with pytest.raises(ModelFileError, match="this model's has"):
        opened(write_adapter(tmp_path, pairs, tensors={name: matrix(70, 64)}))


def test_rows_of_fused_layers() -> None:
    """What a fused layer's B gives to each of its parts: a run, every other row, a run of each period."""
    path, b = Path("adapter"), np.arange(24, dtype=np.float32).reshape(12, 2)
    tensor = Tensor("b", (12, 2), "F32", b.view(np.uint8).reshape(-1))

    def rows(cut: Cut, n: int) -> list[int]:
        return (values(_rows(path, "layer", tensor, cut, n))[:, 0] / 2).astype(int).tolist()

    assert rows(Cut("q", 0, 8), 8) == list(range(8))
    assert rows(Cut("up", 1, None, 2), 6) == [1, 3, 5, 7, 9, 11]
    assert rows(Cut("k", 2, 4, period=6), 4) == [2, 3, 8, 9]
    for cut, n in ((Cut("q", 0, 8), 7), (Cut("q", 0, 13), 13), (Cut("q", 0, 2, period=5), 4)):
        with pytest.raises(ModelFileError, match="another model"):
            rows(cut, n)
