"""GLM-4 of 2025 (GLM-4-0414, GLM-Z1): what attention and feed-forward give is normed before it is added.

Otherwise as the first GLM-4 (arXiv:2406.12793), which `llama` runs: biases of q, k and v, heads rotated by half.
"""

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
        h = attention(ops, config, layer, h, layer=i, angles=angles)
        x = ops.add(x, norm(h, layer.vector("attn_post_norm")))
        h = norm(x, layer.vector("mlp_norm"))
        h = swiglu(ops, layer, h)
        x = ops.add(x, norm(h, layer.vector("mlp_post_norm")))
    return logits(ops, config, w, x)
