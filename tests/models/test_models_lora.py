"""Adapters on whole models: as merged into the weights, in float32, to a relative 1e-4; and as PEFT computes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lora_folders import LAYERS, random_pairs, write_adapter
from random_models import F32, checkpoint_of, random_weights, small_config
from tokentrail.checkpoints import (
    Checkpoint,
    LoraAdapter,
    ModelConfig,
    RopeConfig,
    open_checkpoint,
    read_lora,
)
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.estimate import estimate_memory
from tokentrail.models import load_model
from tokentrail.ops.backend import KvLayout, Limits
from tokentrail.ops.native import NativeBackend, available_isas
from tokentrail.protocol import ModelFileError

TOKENS = list(range(5, 25))


def based(config: ModelConfig, weights: dict[str, F32]) -> Checkpoint:
    return replace(checkpoint_of(config, weights), metadata={"general.architecture": "llama"})


def logits(
    checkpoint: Checkpoint, isa: str, adapters: list[LoraAdapter], use: list[int] | None, count: int = 1
) -> F32:
    """[sequence, token, vocab] of `count` sequences of the same tokens, each with its adapter."""
    config, backend = checkpoint.config, NativeBackend(2, isa)
    model = load_model(checkpoint, backend, activation_dtype="float32", adapters=adapters)
    kv = KvLayout("float32", config.num_layers, 2 * count, 16, config.num_kv_heads, config.head_dim)
    limits = Limits(128, 8, 128)
    executable = backend.compile(model.program, kv, limits, config.vocab_size)
    n = len(TOKENS)
    result = executable.forward(
        np.array(TOKENS * count, np.int32),
        np.tile(np.arange(n, dtype=np.int32), count),
        np.arange(0, count * n + 1, n, dtype=np.int32),
        np.arange(2 * count, dtype=np.int32).reshape(count, 2),
        np.arange(count * n, dtype=np.int32),
        None if use is None else np.array(use, np.int32),
    )
    return result.reshape(count, n, -1).copy()


def merged(weights: dict[str, F32], pairs: dict[str, tuple[F32, F32]], scale: float) -> dict[str, F32]:
    parts = {hf: part for part, hf in LAYERS.items()}
    result = dict(weights)
    for name, (a, b) in pairs.items():
        if name == "lm_head":
            key = "head"
        else:
            _, _, layer, rest = name.split(".", 3)
            key = f"layers.{layer}.{parts[rest]}"
        result[key] = (weights[key].astype(np.float64) + scale * b.astype(np.float64) @ a).astype(np.float32)
    return result


def in_gguf_order(name: str, values: F32, config: ModelConfig) -> F32:
    """Rows of queries and keys so that rotated pairs are neighbours, as llama.cpp's converter stores them."""
    part = name.rsplit(".", maxsplit=1)[-1]
    if part not in ("q", "k"):
        return values
    heads = config.num_heads if part == "q" else config.num_kv_heads
    halves = values.reshape(heads, 2, config.head_dim // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def assert_relative(got: F32, expected: F32) -> None:
    assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("interleaved", [False, True])
def test_as_merged_into_the_weights(isa: str, interleaved: bool, tmp_path: Path) -> None:
    """Two adapters and the base in one batch; the second adapts some layers only, and the head."""
    config = small_config(num_kv_heads=2)
    weights = random_weights(config, seed=1)
    first = random_pairs(config, rank=5, seed=2)
    second = random_pairs(config, rank=40, parts="q down", seed=3)
    random = np.random.default_rng(4)
    second["lm_head"] = (
        random.standard_normal((40, 64)).astype(np.float32) / 8,
        random.standard_normal((config.vocab_size, 40)).astype(np.float32) / 8,
    )
    scales = [10 / 5, 10 / 40**0.5]
    write_adapter(tmp_path / "1", first, lora_alpha=10)
    write_adapter(tmp_path / "2", second, lora_alpha=10, use_rslora=True)

    def ordered(weights: dict[str, F32]) -> Checkpoint:
        if not interleaved:
            return based(config, weights)
        permuted = {name: in_gguf_order(name, values, config) for name, values in weights.items()}
        return based(replace(config, rope=RopeConfig(dim=16, interleaved=True)), permuted)

    base = ordered(weights)
    adapters = [read_lora(name, tmp_path / name, base) for name in "12"]
    got = logits(base, isa, adapters, [1, -1, 0], 3)
    for row, changed in enumerate(
        (merged(weights, second, scales[1]), weights, merged(weights, first, scales[0]))
    ):
        expected = logits(ordered(changed), isa, [], None)[0]
        assert_relative(got[row], expected)
    assert np.abs(got[0] - got[1]).max() > 0.1


def test_an_estimate_counts_adapters(tmp_path: Path) -> None:
    config = small_config()
    base = based(config, random_weights(config))
    adapter = read_lora("one", write_adapter(tmp_path, random_pairs(config, rank=32)), base)
    backend = NativeBackend(1)
    settings = EngineConfig(max_num_batched_tokens=64, max_num_seqs=4)
    without, estimate = (
        estimate_memory(base, backend, settings, adapters=adapters, free=1 << 30)
        for adapters in ([], [adapter])
    )
    model = load_model(base, backend, adapters=[adapter])
    assert estimate.weights == model.weight_bytes > without.weights
    executable = backend.compile(model.program, estimate.models[0].kv, estimate.limits, config.vocab_size)
    zero = np.zeros(1, np.int32)
    executable.forward(zero, zero, np.array([0, 1], np.int32), zero[None], zero, zero)
    assert executable.nbytes <= estimate.buffers
    assert estimate.buffers - without.buffers == executable.nbytes - _plain_bytes(base, estimate.limits)


def _plain_bytes(base: Checkpoint, limits: Limits) -> int:
    backend = NativeBackend(1)
    kv = KvLayout("bfloat16", 2, 1, 16, 2, 16)
    executable = backend.compile(load_model(base, backend).program, kv, limits, base.config.vocab_size)
    zero = np.zeros(1, np.int32)
    executable.forward(zero, zero, np.array([0, 1], np.int32), zero[None], zero)
    return executable.nbytes


def test_a_layer_that_is_never_computed_is_refused(tmp_path: Path) -> None:
    config = small_config()
    base = based(config, random_weights(config))
    adapter = read_lora("one", write_adapter(tmp_path, random_pairs(config)), base)
    stray = replace(adapter, modules={**adapter.modules, "layers.0.other": adapter.modules["layers.0.q"]})
    with pytest.raises(ModelFileError, match=r"adapts 'layers\.0\.other'"):
        load_model(base, NativeBackend(1), adapters=[stray])


@pytest.mark.oracle
@pytest.mark.parametrize("rslora", [False, True])
def test_as_peft_computes_it(tmp_path: Path, rslora: bool) -> None:
    """A model and an adapter as transformers and PEFT write them: the same logits as theirs."""
    torch, transformers, peft = (pytest.importorskip(name) for name in ("torch", "transformers", "peft"))
    torch.manual_seed(0)
    settings = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager")
    lora = peft.LoraConfig(
        r=6,
        lora_alpha=9,
        use_rslora=rslora,
        target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"],
        rank_pattern={"down_proj": 3},
        alpha_pattern={"up_proj": 20},
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    model.save_pretrained(tmp_path / "model")
    adapted = peft.get_peft_model(model, lora)
    adapted.save_pretrained(tmp_path / "adapter")
    base = open_checkpoint(tmp_path / "model")
    adapter = read_lora("one", tmp_path / "adapter", base)
    assert {module.rank for module in adapter.modules.values()} == {3, 6}
    got = logits(base, available_isas()[0], [adapter], [0, -1], 2)
    with torch.no_grad():
        ids = torch.tensor([TOKENS])
        assert_relative(got[0], adapted(ids).logits[0].numpy())
        with adapted.disable_adapter():
            assert_relative(got[1], adapted(ids).logits[0].numpy())
    assert np.abs(got[0] - got[1]).max() > 1e-2
