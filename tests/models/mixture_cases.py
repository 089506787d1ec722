"""Mixtures of experts that are compared with transformers; see `family_cases.py`."""

from __future__ import annotations

from family_cases import Case, alternating, rope, settings

QWEN = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ERNIE = {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 32, "num_hidden_layers": 3}
OAI = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "sliding_window": 8,
    "num_hidden_layers": 3,
    **rope(
        "yarn",
        150000.0,
        factor=32.0,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=False,
        original_max_position_embeddings=4096,
    ),
    "max_position_embeddings": 131072,
}

CASES: dict[str, Case] = {
    "mixtral": Case("MixtralConfig", settings(num_local_experts=4, num_experts_per_tok=2)),
    "mixtral-window": Case(
        "MixtralConfig",
        settings(num_local_experts=8, num_experts_per_tok=3, sliding_window=8, head_dim=32),
        matters=({"sliding_window": None}, {"num_experts_per_tok": 2}),
    ),
    "mixtral-one-expert": Case("MixtralConfig", settings(num_local_experts=3, num_experts_per_tok=1)),
    "qwen2_moe": Case(
        "Qwen2MoeConfig",
        settings(**QWEN, shared_expert_intermediate_size=64),
        matters=({"norm_topk_prob": True}, {"num_experts_per_tok": 3}),
    ),
    "qwen2_moe-normalized": Case(
        "Qwen2MoeConfig",
        settings(**QWEN, shared_expert_intermediate_size=32, norm_topk_prob=True, qkv_bias=False),
        matters=({"norm_topk_prob": False},),
    ),
    "qwen2_moe-some-layers": Case(
        "Qwen2MoeConfig",
        settings(
            **QWEN,
            shared_expert_intermediate_size=32,
            num_hidden_layers=4,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
        ),
    ),
    "qwen3_moe": Case(
        "Qwen3MoeConfig",
        settings(**QWEN, head_dim=32, norm_topk_prob=True),
        matters=({"norm_topk_prob": False},),
    ),
    "qwen3_moe-some-layers": Case(
        "Qwen3MoeConfig",
        settings(
            **QWEN,
            head_dim=16,
            attention_bias=True,
            num_hidden_layers=3,
            mlp_only_layers=[1],
            tie_word_embeddings=True,
        ),
        matters=({"norm_topk_prob": True},),
    ),
    "ernie4_5_moe": Case(
        "Ernie4_5_MoeConfig",
        settings(**ERNIE, moe_num_shared_experts=2, tie_word_embeddings=True),
        matters=({"moe_k": 3},),
    ),
    "ernie4_5_moe-some-layers": Case(
        "Ernie4_5_MoeConfig",
        settings(
            **{**ERNIE, "num_hidden_layers": 5},
            moe_num_shared_experts=0,
            moe_layer_interval=2,
            moe_layer_end_index=2,
            use_bias=True,
            head_dim=16,
        ),
    ),
    "gpt_oss": Case(
        "GptOssConfig",
        settings(**OAI),
        matters=(
            {"sliding_window": 40},
            {"num_experts_per_tok": 3},
            {"layer_types": alternating(3, 3)},
            {"rope_parameters": {**OAI["rope_parameters"], "truncate": True}},
        ),
    ),
    "gpt_oss-plain": Case(
        "GptOssConfig", settings(**{**OAI, **rope("default", 150000.0)}, attention_bias=False)
    ),
}
