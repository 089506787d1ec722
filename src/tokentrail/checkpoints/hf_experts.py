"""Mixtures of experts in Hugging Face checkpoints: keys of config.json, and what tensors are called.

Checkpoints hold a matrix an expert and part, or stacks [experts, …] of them, gate and up together, as transformers 5
has them in memory; both are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokentrail.checkpoints.hf_tensors import Cut, Table
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import ModelConfig, MoeConfig

MAX_EXPERTS = 1 << 12


def _gate_up_stack(config: ModelConfig) -> Sequence[Cut]:
    """[experts, 2 · intermediate, hidden]: rows of gate, then of up."""
    inner = _moe(config).intermediate_size
    return [
        cut
        for e in _ids(config)
        for cut in (
            Cut(f"experts.{e}.gate", stop=inner, index=e),
            Cut(f"experts.{e}.up", start=inner, stop=2 * inner, index=e),
        )
    ]


def _down_stack(config: ModelConfig) -> Sequence[Cut]:
    return [Cut(f"experts.{e}.down", index=e) for e in _ids(config)]


def _interleaved(suffix: str, *, transposed: bool = False) -> Table:
    """gpt-oss: rows of gate and up in turn. Its stacks of matrices are [in, out], those of biases vectors."""

    def gate_up(config: ModelConfig) -> Sequence[Cut]:
        return [
            Cut(f"experts.{e}.{part}{suffix}", start=start, step=2, index=e, transposed=transposed)
            for e in _ids(config)
            for start, part in enumerate(("gate", "up"))
        ]

    def down(config: ModelConfig) -> Sequence[Cut]:
        return [Cut(f"experts.{e}.down{suffix}", index=e, transposed=transposed) for e in _ids(config)]

    ending = suffix.replace(".", "_")
    return {f"mlp.experts.gate_up_proj{ending}": gate_up, f"mlp.experts.down_proj{ending}": down}


def _correction(config: ModelConfig) -> Sequence[Cut]:
    """[1, experts]"""
    return (Cut("router_correction", index=0),)


def _moe(config: ModelConfig) -> MoeConfig:
    assert config.moe is not None
    return config.moe


def _ids(config: ModelConfig) -> range:
    return range(_moe(config).num_experts)


MIXTURE_TENSORS: Table = {
    "mlp.gate": "router",
    "mlp.experts.{e}.gate_proj": "experts.{e}.gate",
    "mlp.experts.{e}.up_proj": "experts.{e}.up",
    "mlp.experts.{e}.down_proj": "experts.{e}.down",
    "mlp.experts.gate_up_proj": _gate_up_stack,
    "mlp.experts.down_proj": _down_stack,
}
"""As Qwen named them, and most others after it."""

QWEN_TENSORS: Table = {
    **MIXTURE_TENSORS,
    "mlp.shared_expert.gate_proj": "shared.gate",
    "mlp.shared_expert.up_proj": "shared.up",
    "mlp.shared_expert.down_proj": "shared.down",
    "mlp.shared_expert_gate": "shared_gate",
}
MIXTRAL_TENSORS: Table = {
    **MIXTURE_TENSORS,
    "block_sparse_moe.gate": "router",
    "block_sparse_moe.experts.{e}.w1": "experts.{e}.gate",
    "block_sparse_moe.experts.{e}.w3": "experts.{e}.up",
    "block_sparse_moe.experts.{e}.w2": "experts.{e}.down",
    "block_sparse_moe.experts.gate_up_proj": _gate_up_stack,
    "block_sparse_moe.experts.down_proj": _down_stack,
}
ERNIE_TENSORS: Table = {
    **MIXTURE_TENSORS,
    "mlp.moe_statics.e_score_correction_bias": _correction,
    "mlp.gate.moe_statics.e_score_correction_bias": _correction,
    "mlp.shared_experts.gate_proj": "shared.gate",
    "mlp.shared_experts.up_proj": "shared.up",
    "mlp.shared_experts.down_proj": "shared.down",
}
GPT_OSS_TENSORS: Table = {
    "self_attn.sinks": "sinks",
    "mlp.router": "router",
    **_interleaved("", transposed=True),
    **_interleaved(".bias"),
    # Where they were MXFP4: see mxfp4.py.
    "mlp.experts.{e}.gate_proj": "experts.{e}.gate",
    "mlp.experts.{e}.up_proj": "experts.{e}.up",
    "mlp.experts.{e}.down_proj": "experts.{e}.down",
}


def _experts(values: Metadata, key: str, other: str, default: int) -> int:
    """The number of experts: `key`, or what another version calls it."""
    given = values.integer(other, low=1, high=MAX_EXPERTS, default=default)
    return values.integer(key, low=1, high=MAX_EXPERTS, default=given)


def _chosen(values: Metadata, key: str, experts: int, default: int) -> int:
    return values.integer(key, low=1, high=min(experts, 256), default=default)


def mixtral(values: Metadata, config: ModelConfig) -> MoeConfig:
    experts = _experts(values, "num_local_experts", "num_experts", 8)
    return MoeConfig(experts, _chosen(values, "num_experts_per_tok", experts, 2), config.intermediate_size)


def qwen(values: Metadata, config: ModelConfig, *, shared: bool) -> MoeConfig:
    """Qwen2-MoE (`shared`) and Qwen3-MoE."""
    experts = _experts(values, "num_experts", "num_local_experts", 60 if shared else 128)
    dense = values.integers("mlp_only_layers", low=0, high=1 << 16)
    step = values.integer("decoder_sparse_step", low=1, high=1 << 16, default=1)
    layers = tuple(i not in dense and (i + 1) % step == 0 for i in range(config.num_layers))
    size = values.integer(
        "shared_expert_intermediate_size", low=1, high=1 << 20, default=5632 if shared else 1
    )
    return MoeConfig(
        experts,
        _chosen(values, "num_experts_per_tok", experts, 4 if shared else 8),
        values.integer("moe_intermediate_size", low=1, high=1 << 20, default=1408 if shared else 768),
        normalize=values.flag("norm_topk_prob", False),
        shared_intermediate_size=size if shared else 0,
        shared_gate=shared,
        layers=layers,
    )


def ernie(values: Metadata, config: ModelConfig) -> MoeConfig:
    experts = _experts(values, "moe_num_experts", "num_experts", 64)
    inner = values.integer("moe_intermediate_size", low=1, high=1 << 20, default=1536)
    shared = values.integer("moe_num_shared_experts", low=0, high=1 << 10, default=2)
    first = values.integer("moe_layer_start_index", low=0, high=1 << 16, default=1)
    last = values.integer("moe_layer_end_index", low=-1, high=1 << 16, default=-1)
    step = values.integer("moe_layer_interval", low=1, high=1 << 16, default=1)
    last = config.num_layers - 1 if last == -1 else last
    return MoeConfig(
        experts,
        _chosen(values, "moe_k", experts, 6),
        inner,
        shared_intermediate_size=inner * shared,
        layers=tuple((i + 1) % step == 0 and first <= i <= last for i in range(config.num_layers)),
    )


def gpt_oss(values: Metadata, config: ModelConfig) -> MoeConfig:
    for key, expected in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
        if values.number(key, low=0, high=1e6, default=expected) != expected:
            values.fail(key, f"{expected:g}")
    experts = _experts(values, "num_local_experts", "num_experts", 128)
    return MoeConfig(
        experts,
        _chosen(values, "num_experts_per_tok", experts, 4),
        config.intermediate_size,
        scoring="softmax_of_chosen",
    )
