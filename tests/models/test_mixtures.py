"""What mixtures of experts have besides other families (test_families.py): small tensors, stacks of experts, MXFP4."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_cases import opened, write_folder
from mixture_cases import CASES
from model_harness import Model, assert_relative
from safetensors_files import read_tensors, write_tensors

from random_models import F32
from tokentrail.checkpoints import dequantize, open_checkpoint
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.mxfp4 import read_mxfp4
from tokentrail.checkpoints.safetensors import read_folder_tensors
from tokentrail.ops.native import NativeBackend
from tokentrail.protocol import ModelFileError


@pytest.mark.parametrize("name", ["ernie4_5_moe", "gpt_oss", "qwen2_moe"])
def test_small_tensors_matter(
    name: str, saved: dict[str, Any], golden: dict[str, F32], backend: NativeBackend, tmp_path: Path
) -> None:
    """Corrections of scores, sinks, gates of shared experts, biases of routers: each with another sign, logits move."""
    checkpoint = opened(saved[name], tmp_path)
    parts = {
        "ernie4_5_moe": ["router_correction"],
        "gpt_oss": [
            "sinks",
            "router.bias",
            "experts.1.gate.bias",
            "experts.2.up.bias",
            "experts.0.down.bias",
        ],
        "qwen2_moe": ["shared_gate"],
    }
    for part in parts[name]:
        tensors = dict(checkpoint.tensors)
        named = [full for full in tensors if full.endswith("." + part)]
        assert named
        for full in named:
            values = -tensors[full].data.view(np.float32)
            tensors[full] = replace(tensors[full], stored=values.view(np.uint8))
        got = Model(replace(checkpoint, tensors=tensors), backend).at_once(CASES[name].tokens())
        assert np.abs(got - golden[name]).max() > 2e-3 * np.abs(golden[name]).max(), part


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe", "ernie4_5_moe"])
def test_experts_in_stacks(name: str, saved: dict[str, Any], backend: NativeBackend, tmp_path: Path) -> None:
    """gate and up of all experts in one tensor, as transformers has them in memory: the same model."""
    tokens = CASES[name].tokens()
    single = opened(saved[name], tmp_path / "single")
    expected = Model(single, backend).at_once(tokens)
    stacked = open_checkpoint(stack_experts(tmp_path / "single", tmp_path / "stacked"))
    assert {tensor.name for tensor in stacked.tensors.values()} == set(single.tensors)
    np.testing.assert_array_equal(Model(stacked, backend).at_once(tokens), expected)


def stack_experts(source: Path, target: Path) -> Path:
    """Write the checkpoint again, its experts in stacks."""
    tensors = read_tensors(source)
    stacks: dict[str, list[F32]] = {}
    plain = {}
    for name in sorted(tensors, key=lambda name: [int(p) if p.isdigit() else -1 for p in name.split(".")]):
        prefix, found, rest = name.partition(".experts.")
        if found and rest[0].isdigit():
            part = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(rest.split(".")[1])
            stacks.setdefault(f"{prefix}.experts.{part or rest.split('.')[1]}", []).append(tensors[name])
        else:
            plain[name] = tensors[name]
    assert stacks
    for name in [name for name in stacks if name.endswith("gate_proj")]:
        pairs = zip(stacks.pop(name), stacks.pop(name.replace("gate", "up")), strict=True)
        stacks[name.replace("gate", "gate_up")] = [np.concatenate(pair) for pair in pairs]
    write_tensors(target, plain | {name: np.stack(parts) for name, parts in stacks.items()})
    (target / "config.json").write_text((source / "config.json").read_text())
    return target


# --- MXFP4 -----------------------------------------------------------------------------------------

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""What four bits mean (OCP Microscaling Formats 1.0, table 5): sign, two bits of exponent, one of mantissa."""


def mxfp4_folder(folder: Path, case: dict[str, Any]) -> tuple[dict[str, F32], Path]:
    """(the stacks that the blocks stand for, a folder of gpt-oss with its experts in random blocks)"""
    source = write_folder(folder / "plain", case["config"], case["shapes"])
    tensors, random = read_tensors(source), np.random.RandomState(5)
    stacks = {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        blocks = random.randint(0, 256, (experts, rows, columns // 32, 16)).astype(np.uint8)
        scales = random.randint(122, 126, (experts, rows, columns // 32)).astype(np.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        values = np.stack([FP4[blocks & 15], FP4[blocks >> 4]], axis=-1).reshape(*scales.shape, 32)
        matrices = (values * np.exp2(scales.astype(np.float32) - 127)[..., None]).reshape(
            experts, rows, columns
        )
        stacks[name] = np.ascontiguousarray(matrices.swapaxes(1, 2))
    target = write_tensors(folder / "mxfp4", tensors)
    config = {**case["config"], "quantization_config": {"quant_method": "mxfp4"}}
    (target / "config.json").write_text(json.dumps(config))
    return stacks, target


def test_mxfp4_experts(saved: dict[str, Any], tmp_path: Path) -> None:
    """Blocks are what the same numbers in float32 are, expert by expert."""
    stacks, folder = mxfp4_folder(tmp_path, saved["gpt_oss"])
    stored, _ = read_folder_tensors(folder)
    tensors, used = read_mxfp4(stored, Metadata(folder, {}))
    assert used == {f"{name}_{part}" for name in stacks for part in ("blocks", "scales")}
    for name, stack in stacks.items():
        prefix, _, kind = name.rpartition(".")
        for expert, matrix in enumerate(stack.swapaxes(1, 2)):
            parts = {"down_proj": matrix}
            if kind == "gate_up_proj":
                parts = {"gate_proj": matrix[0::2], "up_proj": matrix[1::2]}
            for part, values in parts.items():
                tensor = tensors.pop(f"{prefix}.{expert}.{part}.weight")
                assert tensor.format == "MXFP4"
                assert len(tensor.data) == tensor.nbytes
                got = dequantize(tensor.data, tensor.format, tensor.shape)
                np.testing.assert_array_equal(got, values)
    assert not tensors


def test_a_model_of_mxfp4_experts(saved: dict[str, Any], backend: NativeBackend, tmp_path: Path) -> None:
    """The whole model from blocks is the one from the numbers that they mean.

    With int8 activations most tokens are close; some choose other experts by a hair.
    """
    stacks, folder = mxfp4_folder(tmp_path, saved["gpt_oss"])
    plain = tmp_path / "plain"
    write_tensors(plain, read_tensors(plain) | stacks)
    tokens = CASES["gpt_oss"].tokens()
    expected = Model(open_checkpoint(plain), backend).at_once(tokens)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensors["layers.1.experts.2.up"].format == "MXFP4"
    assert_relative(Model(checkpoint, backend).at_once(tokens), expected, 1e-5)
    got = Model(checkpoint, backend, activations="auto").at_once(tokens)
    errors = np.abs(got - expected).mean(-1) / expected.std()
    assert 1e-4 < np.median(errors) < 3e-2


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("scales", None, "has no scales beside it"),
        ("scales", np.zeros((6, 64, 2), np.uint8), "are not MXFP4"),
        ("blocks", np.zeros((6, 64, 48), np.uint8), "are not MXFP4"),
    ],
)
def test_mxfp4_that_does_not_fit(
    part: str, values: Any, message: str, saved: dict[str, Any], tmp_path: Path
) -> None:
    _, folder = mxfp4_folder(tmp_path, saved["gpt_oss"])
    tensors = read_tensors(folder)
    name = f"model.layers.1.mlp.experts.down_proj_{part}"
    others = {key: tensor for key, tensor in tensors.items() if key != name}
    write_tensors(folder, others if values is None else {**others, name: values})
    with pytest.raises(ModelFileError, match=message):
        open_checkpoint(folder)


# --- transformers itself ---------------------------------------------------------------------------


@pytest.mark.oracle
def test_what_mxfp4_means_to_transformers(saved: dict[str, Any], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    stacks, folder = mxfp4_folder(tmp_path, saved["gpt_oss"])
    tensors = read_tensors(folder)
    for name, stack in stacks.items():
        blocks, scales = (torch.from_numpy(tensors[f"{name}_{part}"].copy()) for part in ("blocks", "scales"))
        theirs = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        np.testing.assert_array_equal(theirs.numpy(), stack)
