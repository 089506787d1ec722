"""Embeddings of random checkpoints: those of transformers' hidden states; the same bytes in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokentrail.engine.config import EngineConfig
from tokentrail.engine.local import LocalEngine
from tokentrail.protocol import GenerateRequest, Pooling, SamplingParams

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16},
    "mixtral": {"num_local_experts": 4},
}
EXACT = {"activation_dtype": "float32", "kv_cache_dtype": "float32"}


def embed(id: str, prompt: list[int], kind: str) -> GenerateRequest:
    sampling = SamplingParams(temperature=0, max_tokens=1, seed=0)
    return GenerateRequest(id=id, group=id, prompt=prompt, sampling=sampling, pooling=Pooling(kind=kind))


def vectors(engine: LocalEngine, items: list[GenerateRequest]) -> dict[str, bytes]:
    deltas = [delta for step in engine.generate(items) for delta in step.deltas]
    return {d.id: d.finish.embedding for d in deltas if d.finish is not None and d.finish.embedding}


@pytest.mark.oracle
@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    settings = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        **FAMILIES[family],
    }
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    model.save_pretrained(tmp_path)
    prompts = [np.random.default_rng(n).integers(0, 96, 5 + 9 * n).tolist() for n in range(4)]
    engine = LocalEngine(EngineConfig(model=str(tmp_path), max_num_batched_tokens=16, threads=2, **EXACT))
    try:
        items = [
            embed(f"{kind} {n}", p, kind) for n, p in enumerate(prompts) for kind in ("last", "mean", "cls")
        ]
        got = vectors(engine, items)
    finally:
        engine.close()
    for number, prompt in enumerate(prompts):
        with torch.no_grad():
            states = (
                model.eval()(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0].numpy()
            )
        pooled = {"last": states[-1], "mean": states.mean(0), "cls": states[0]}
        for kind, expected in pooled.items():
            ours = np.frombuffer(got[f"{kind} {number}"], "<f4")
            error = np.abs(ours - expected / np.linalg.norm(expected)).max()
            assert error < 1e-5, f"{kind} of {len(prompt)} tokens: {error:.2g}"


def test_same_bytes_in_any_company(demo_path: Path) -> None:
    rng = np.random.default_rng(3)
    items = [
        embed(f"{kind} {n}", rng.integers(100, 9000, length).tolist(), kind)
        for n, length in enumerate((1, 17, 40, 90))
        for kind in ("last", "mean")
    ]
    config = {"model": str(demo_path), "max_model_len": 256, "threads": 2}
    alone = LocalEngine(EngineConfig(**config, enable_prefix_caching=False))
    try:
        expected = {item.id: vectors(alone, [item])[item.id] for item in items}
    finally:
        alone.close()
    chunked = LocalEngine(EngineConfig(**config, max_num_batched_tokens=24, max_num_seqs=5))
    try:
        generating = [
            GenerateRequest(
                id=f"g{n}",
                group="g",
                prompt=item.prompt,
                sampling=SamplingParams(temperature=0, max_tokens=9, seed=0),
            )
            for n, item in enumerate(items[::2])
        ]
        mixed = [one for pair in zip(items, [*generating, *generating], strict=False) for one in pair]
        mixed = list({one.id: one for one in [*generating, *mixed]}.values())
        assert vectors(chunked, mixed) == expected
        assert vectors(chunked, items) == expected  # now from the prefix cache, where it may be used
    finally:
        chunked.close()
