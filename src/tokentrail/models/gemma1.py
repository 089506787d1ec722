"""Gemma 1 (arXiv:2403.08295): the Llama layout with GeGLU, scaled embeddings, and heads wider than their share."""

from __future__ import annotations

from functools import partial

from tokentrail.checkpoints import ModelConfig
from tokentrail.models.blocks import attention, embedding, geglu, logits, rotary
from tokentrail.models.rope import RopeAngles
from tokentrail.models.weights import Weights
from tokentrail.ops.program import Recorder, Value


def forward(ops: Recorder, config: ModelConfig, w: Weights, rope: RopeAngles) -> Value:
    """Tokens of a step → logits [logit rows, vocab]."""
    norm = partial(ops.rms_norm, eps=config.rms_norm_eps, weight_offset=config.norm_offset)
    angles = rotary(ops, rope)
    x = embedding(ops, config, w)
    for i in range(config.num_layers):
        layer = w.layer(i)
        h = norm(x, layer.vector("attn_norm"))
        x = attention(ops, config, layer, h, layer=i, angles=angles, residual=x)
        h = norm(x, layer.vector("mlp_norm"))
        x = geglu(ops, layer, h, residual=x)
    return logits(ops, config, w, x)
