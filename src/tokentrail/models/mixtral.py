"""Llama's layers with a mixture of experts in place of the feed-forward network, in all layers or some.

Mixtral (Jiang et al. 2024, arXiv:2401.04088). The same arithmetic runs what differs by configuration and weights
alone: Qwen1.5-MoE and Qwen2-MoE, with a gated shared expert and biases of q, k and v (arXiv:2407.10671); ERNIE 4.5,
with shared experts and a correction of scores that counts for the choice only.
"""

from __future__ import annotations

from functools import partial

from tokentrail.checkpoints import ModelConfig
from tokentrail.models.blocks import attention, embedding, logits, rotary, swiglu
from tokentrail.models.mixture import mixture
from tokentrail.models.rope import RopeAngles
from tokentrail.models.weights import Weights
from tokentrail.ops.program import Recorder, Value


def forward(
    ops: Recorder, config: ModelConfig, w: Weights, rope: RopeAngles, *, head_norms: bool = False
) -> Value:
    """Tokens of a step → logits [logit rows, vocab]."""
    norm = partial(ops.rms_norm, eps=config.rms_norm_eps)
    angles = rotary(ops, rope)
    x = embedding(ops, config, w)
    for i in range(config.num_layers):
        layer = w.layer(i)
        h = norm(x, layer.vector("attn_norm"))
        x = attention(ops, config, layer, h, layer=i, angles=angles, head_norms=head_norms, residual=x)
        h = norm(x, layer.vector("mlp_norm"))
        feed_forward = partial(mixture, ops, config) if config.has_experts(i) else partial(swiglu, ops)
        x = feed_forward(layer, h, residual=x)
    return logits(ops, config, w, x)


qwen3_moe = partial(forward, head_norms=True)
"""Qwen3-MoE (arXiv:2505.09388): heads of queries and keys are normed, and no expert is shared."""
