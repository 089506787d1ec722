"""Qwen3: the Llama layout, with a norm of each query and key head before rotation (arXiv:2505.09388)."""

from __future__ import annotations

from functools import partial

from tokentrail.checkpoints import ModelConfig
from tokentrail.models.blocks import attention, embedding, logits, rotary, swiglu
from tokentrail.models.rope import RopeAngles
from tokentrail.models.weights import Weights
from tokentrail.ops.program import Recorder, Value


def forward(ops: Recorder, config: ModelConfig, w: Weights, rope: RopeAngles) -> Value:
    """Tokens of a step → logits [logit rows, vocab]."""
    norm = partial(ops.rms_norm, eps=config.rms_norm_eps)
    angles = rotary(ops, rope)
    x = embedding(ops, config, w)
    for i in range(config.num_layers):
        layer = w.layer(i)
        h = norm(x, layer.vector("attn_norm"))
        x = attention(ops, config, layer, h, layer=i, angles=angles, head_norms=True, residual=x)
        h = norm(x, layer.vector("mlp_norm"))
        x = swiglu(ops, layer, h, residual=x)
    return logits(ops, config, w, x)
