"""Every family, mixtures of experts too, against transformers: in float32, to a relative 1e-4, from the folder that
transformers saves.

The golden files come from `scripts/make_golden.py`; tests marked `oracle` ask transformers itself.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_cases import CASES as FAMILIES
from family_cases import opened, write_folder
from mixture_cases import CASES as MIXTURES
from model_harness import Model, assert_relative

import hf_folders
from random_models import F32
from tokentrail.checkpoints import dequantize, open_checkpoint
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.estimate import estimate_memory
from tokentrail.models import load_model
from tokentrail.ops.native import NativeBackend, available_isas
from tokentrail.ops.reference import ReferenceBackend

CASES = {**FAMILIES, **MIXTURES}


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
    least = 2e-3 if name in MIXTURES else 1e-2
    for change in CASES[name].matters:
        model = Model(opened(saved[name], tmp_path, **change), backend, context=CASES[name].context)
        got = model.at_once(CASES[name].tokens())
        assert np.abs(got - golden[name]).max() > least * np.abs(golden[name]).max(), change


def as_version_4(config: dict[str, Any]) -> dict[str, Any]:
    """config.json as transformers 4 wrote it: `rope_theta` beside `rope_scaling`, a pattern, not kinds of layers."""
    config = copy.deepcopy(config)
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = config.pop("layer_types").index("full_attention") + 1
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    config["partial_rotary_factor"] = rope.pop("partial_rotary_factor", 1.0)
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return config


@pytest.mark.parametrize("name", FAMILIES)
def test_configurations_of_transformers_4(name: str, saved: dict[str, Any], tmp_path: Path) -> None:
    new = opened(saved[name], tmp_path / "new").config
    old = {**saved[name], "config": as_version_4(saved[name]["config"])}
    assert opened(old, tmp_path / "old").config == new


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_the_text_model_of_a_multimodal_checkpoint(
    prefix: str, saved: dict[str, Any], golden: dict[str, F32], backend: NativeBackend, tmp_path: Path
) -> None:
    text = saved["gemma3"]
    case = {
        "config": {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": text["config"],
            "vision_config": {"model_type": "siglip_vision_model"},
        },
        "shapes": {name.replace("model.", prefix, 1): shape for name, shape in text["shapes"].items()}
        | {"vision_tower.vision_model.post_layernorm.weight": [8]},
    }
    model = Model(opened(case, tmp_path), backend)
    assert_relative(model.at_once(CASES["gemma3"].tokens()), golden["gemma3"])


def test_internlm2(
    saved: dict[str, Any], golden: dict[str, F32], backend: NativeBackend, tmp_path: Path
) -> None:
    """Not in transformers: its layout is made from Llama's, whose arithmetic it has."""
    llama = opened(saved["llama"], tmp_path / "llama")
    values = {name: dequantize(t.data, t.format, t.shape) for name, t in llama.tensors.items()}
    stored = {
        "model.tok_embeddings.weight": values["embed"],
        "model.norm.weight": values["norm"],
        "output.weight": values["head"],
    }
    names = {"attention_norm": "attn_norm", "attention.wo": "o", "ffn_norm": "mlp_norm"}
    names |= {"feed_forward.w1": "gate", "feed_forward.w3": "up", "feed_forward.w2": "down"}
    for layer in range(llama.config.num_layers):
        heads = [
            values[f"layers.{layer}.{name}"].reshape(llama.config.num_kv_heads, -1, llama.config.hidden_size)
            for name in "qkv"
        ]
        whole = np.concatenate(heads, axis=1).reshape(-1, llama.config.hidden_size)
        stored[f"model.layers.{layer}.attention.wqkv.weight"] = whole
        for name, part in names.items():
            stored[f"model.layers.{layer}.{name}.weight"] = values[f"layers.{layer}.{part}"]
    config = {
        **saved["llama"]["config"],
        "model_type": "internlm2",
        "architectures": ["InternLM2ForCausalLM"],
    }
    folder = hf_folders.write_folder(tmp_path / "internlm2", config=config, tensors=stored)
    model = Model(open_checkpoint(folder), backend)
    assert_relative(model.at_once(CASES["llama"].tokens()), golden["llama"])


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(
    "name",
    [
        "gemma2",
        "gemma3",
        "glm4",
        "qwen3-biases",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
        "ernie4_5_moe",
        "gpt_oss",
    ],
)
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


@pytest.mark.parametrize("name", CASES)
def test_memory_is_as_estimated(
    name: str, saved: dict[str, Any], backend: NativeBackend, tmp_path: Path
) -> None:
    """Weights exactly; buffers but for the sampler's, which the program does not count among its own."""
    checkpoint = opened(saved[name], tmp_path)
    settings = EngineConfig(max_num_batched_tokens=64, max_num_seqs=4)
    estimate = estimate_memory(checkpoint, backend, settings, free=1 << 30)
    model = load_model(checkpoint, backend)
    assert estimate.weights == model.weight_bytes
    vocab = checkpoint.config.vocab_size
    executable = backend.compile(model.program, estimate.models[0].kv, estimate.limits, vocab)
    zero = np.zeros(1, np.int32)
    executable.forward(zero, zero, np.array([0, 1], np.int32), zero[None], zero)
    assert executable.nbytes <= estimate.buffers <= executable.nbytes + backend.threads * 48 * (vocab + 256)
