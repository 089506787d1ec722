"""Mixtures of experts in GGUF files: the same models as from Hugging Face folders, and as llama.cpp computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from family_cases import write_folder
from mixture_cases import CASES
from model_harness import Model, assert_relative

from gguf_files import model_keys, write_model
from random_models import F32
from tokentrail.checkpoints import Checkpoint, open_checkpoint
from tokentrail.ops.native import NativeBackend
from tokentrail.protocol import ModelFileError

ARCHITECTURES = {
    "mixtral": "llama",
    "mixtral-one-expert": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "ernie4_5_moe": "ernie4_5-moe",
    "gpt_oss": "gpt-oss",
}
"""Cases of `mixture_cases.py`, and what llama.cpp calls them. It knows no layers without experts but ERNIE's first."""
NAMES = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "sinks": "attn_sinks",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "router": "ffn_gate_inp",
    "router_correction": "exp_probs_b",
    "experts.gate": "ffn_gate_exps",
    "experts.up": "ffn_up_exps",
    "experts.down": "ffn_down_exps",
    "shared.gate": "ffn_gate_shexp",
    "shared.up": "ffn_up_shexp",
    "shared.down": "ffn_down_shexp",
    "shared_gate": "ffn_gate_inp_shexp",
}
TOP_NAMES = {"embed": "token_embd", "norm": "output_norm", "head": "output"}

Quantize = Callable[[str, npt.NDArray[Any]], gguf.GGMLQuantizationType]


def folder_of(name: str, saved: dict[str, Any], path: Path) -> Checkpoint:
    return open_checkpoint(write_folder(path, saved[name]["config"], saved[name]["shapes"]))


def to_gguf(
    source: Checkpoint,
    architecture: str,
    path: Path,
    *,
    single: bool = False,
    quantize: Quantize | None = None,
) -> Path:
    """Write a checkpoint in float32 as a GGUF file. `single`: experts one by one, as the first files had them."""
    config, moe = source.config, source.config.moe
    assert moe is not None
    names = {**NAMES, "mlp_norm": "post_attention_norm"} if architecture == "gpt-oss" else NAMES
    tensors: dict[str, npt.NDArray[Any]] = {}
    stacks: dict[str, dict[int, F32]] = {}
    for name, tensor in source.tensors.items():
        values = tensor.data.view(np.float32).reshape(tensor.shape)
        stem, kind = (name.removesuffix(".bias"), "bias") if name.endswith(".bias") else (name, "weight")
        if stem in TOP_NAMES:
            tensors[f"{TOP_NAMES[stem]}.{kind}"] = values
            continue
        _, layer, part = stem.split(".", 2)
        if architecture == "llama" and part in ("q", "k"):
            halves = values.reshape(-1, 2, config.head_dim // 2, *values.shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        if part == "shared_gate":
            values = values[0]
        if part == "router_correction":
            kind = "bias"
        if part.startswith("experts."):
            _, expert, part = part.split(".")
            if single:
                tensors[f"blk.{layer}.ffn_{part}.{expert}.weight"] = values
                continue
            stack = stacks.setdefault(f"blk.{layer}.{names['experts.' + part]}.{kind}", {})
            stack[int(expert)] = values
            continue
        tensors[f"blk.{layer}.{names[part]}.{kind}"] = values
    tensors |= {name: np.stack([stack[expert] for expert in sorted(stack)]) for name, stack in stacks.items()}
    keys: dict[str, Any] = {
        **model_keys(config),
        "expert_count": moe.num_experts,
        "expert_used_count": moe.experts_per_token,
    }
    if architecture != "llama":
        keys["expert_feed_forward_length"] = moe.intermediate_size
    if moe.shared_intermediate_size:
        keys["expert_shared_feed_forward_length"] = moe.shared_intermediate_size
    if architecture == "ernie4_5-moe":
        keys |= {"leading_dense_block_count": 1, "interleave_moe_layer_step": 1, "expert_shared_count": 2}
    if config.rope.scaling == "yarn":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": config.rope.factor,
            "rope.scaling.original_context_length": config.rope.original_max_position,
        }
    return write_model(
        path,
        tokens=[chr(0x100 + i) for i in range(config.vocab_size)],
        architecture=architecture,
        metadata={f"{architecture}.{key}": value for key, value in keys.items()},
        tensors=tensors,
        quantize=quantize,
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gguf_file_is_the_folder_s_model(
    name: str, saved: dict[str, Any], golden: dict[str, F32], backend: NativeBackend, tmp_path: Path
) -> None:
    source = folder_of(name, saved, tmp_path / "folder")
    checkpoint = open_checkpoint(to_gguf(source, ARCHITECTURES[name], tmp_path / "model.gguf"))
    assert set(checkpoint.tensors) == set(source.tensors)
    assert checkpoint.config.moe is not None
    model = Model(checkpoint, backend)
    assert_relative(model.at_once(CASES[name].tokens()), golden[name])


def test_experts_one_by_one(
    saved: dict[str, Any], golden: dict[str, F32], backend: NativeBackend, tmp_path: Path
) -> None:
    source = folder_of("mixtral", saved, tmp_path / "folder")
    checkpoint = open_checkpoint(to_gguf(source, "llama", tmp_path / "model.gguf", single=True))
    assert_relative(Model(checkpoint, backend).at_once(CASES["mixtral"].tokens()), golden["mixtral"])


def test_stacks_of_quantized_experts(
    saved: dict[str, Any], golden: dict[str, F32], backend: NativeBackend, tmp_path: Path
) -> None:
    """Integer products, cut out of stacks: not exact, but the same model; and each expert its own bytes."""
    source = folder_of("qwen3_moe", saved, tmp_path / "folder")

    def quantize(name: str, values: npt.NDArray[Any]) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType.Q8_0 if "_exps" in name else gguf.GGMLQuantizationType.F32

    checkpoint = open_checkpoint(to_gguf(source, "qwen3moe", tmp_path / "model.gguf", quantize=quantize))
    for part in ("gate", "up", "down"):
        for expert in range(6):
            tensor = checkpoint.tensors[f"layers.1.experts.{expert}.{part}"]
            plain = source.tensors[tensor.name].data.view(np.float32).reshape(tensor.shape)
            quantized = gguf.quantize(plain, gguf.GGMLQuantizationType.Q8_0)
            np.testing.assert_array_equal(tensor.data, quantized.reshape(-1))
    got = Model(checkpoint, backend, activations="auto").at_once(CASES["qwen3_moe"].tokens())
    expected = golden["qwen3_moe"]
    assert 1e-4 < np.abs(got - expected).mean() / expected.std() < 3e-2


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"qwen3moe.expert_count": 5}, "but the metadata say 5 experts"),
        ({"qwen3moe.expert_count": 1 << 20}, "an integer from 0 to"),
        ({"qwen3moe.expert_used_count": 7}, "an integer from 1 to 6"),
        ({"qwen3moe.expert_count": None}, "the metadata say 0 experts"),
        ({"qwen3moe.expert_feed_forward_length": 64}, "ask for"),
    ],
)
def test_stacks_that_do_not_fit(
    metadata: dict[str, Any],
    message: str,
    saved: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = folder_of("qwen3_moe", saved, tmp_path / "folder")
    whole = write_model

    def changed(path: Path, **options: Any) -> Path:
        return whole(path, **{**options, "metadata": {**options["metadata"], **metadata}})

    monkeypatch.setitem(to_gguf.__globals__, "write_model", changed)
    with pytest.raises(ModelFileError, match=message):
        open_checkpoint(to_gguf(source, "qwen3moe", tmp_path / "model.gguf"))


# --- llama.cpp ------------------------------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_llama_cpp_agrees(name: str, saved: dict[str, Any], backend: NativeBackend, tmp_path: Path) -> None:
    """Log-probabilities behind prompts of some lengths.

    Of gpt-oss llama.cpp widens the range of mixed dimensions to whole numbers, as YaRN has it; the model has not.
    """
    oracle = pytest.importorskip("llama_oracle", exc_type=ImportError)
    source = folder_of(name, saved, tmp_path / "folder")
    path = to_gguf(source, ARCHITECTURES[name], tmp_path / "model.gguf")
    tokens = CASES[name].tokens()
    checkpoint = open_checkpoint(path)
    if name == "gpt_oss":
        assert not checkpoint.config.rope.truncate
        rope = replace(checkpoint.config.rope, truncate=True)
        checkpoint = replace(checkpoint, config=replace(checkpoint.config, rope=rope))
    logits = Model(checkpoint, backend).at_once(tokens).astype(np.float64)
    expected = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    server = oracle.LlamaCpp(path)
    for length in (1, 7, 20, 40):
        got = server.logprobs(tokens[:length], len(expected[0]))
        assert np.abs(got - expected[length - 1]).max() < 1e-4, length
