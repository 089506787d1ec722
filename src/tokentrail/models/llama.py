"""The Llama family: Llama 1–3, SmolLM, Yi, Mistral, DeepSeek distills of Llama, InternLM-style.

Pre-norm decoder layers of grouped-query attention with rotary positions, and a SwiGLU feed-forward
(Touvron et al. 2023, arXiv:2302.13971 and 2307.09288; Dubey et al. 2024, arXiv:2407.21783; the sliding window is
Mistral's, Jiang et al. 2023, arXiv:2310.06825).
"""

from __future__ import annotations

import math

from tokentrail.checkpoints import ModelConfig
from tokentrail.models.rope import RopeAngles
from tokentrail.models.weights import Weights
from tokentrail.ops.program import Recorder, Value


def forward(ops: Recorder, config: ModelConfig, w: Weights, rope: RopeAngles) -> Value:
    """Tokens of a step → logits [logit rows, vocab]."""
    eps = config.rms_norm_eps
    scale = 1 / math.sqrt(config.head_dim)
    interleaved = config.rope.interleaved
    angles = ops.rope_angles(rope.frequencies, magnitude=rope.magnitude)

    x = ops.embedding(w.matrix("embed"), dim=config.hidden_size)
    for i in range(config.num_layers):
        layer = w.layer(i)

        h = ops.rms_norm(x, layer.vector("attn_norm"), eps=eps)
        q = ops.linear(h, layer.linear("q"))
        k = ops.linear(h, layer.linear("k"))
        v = ops.linear(h, layer.linear("v"))
        q = ops.rope(q, angles, heads=config.num_heads, interleaved=interleaved)
        k = ops.rope(k, angles, heads=config.num_kv_heads, interleaved=interleaved)
        ops.kv_store(k, v, layer=i)
        a = ops.attention(q, layer=i, heads=config.num_heads, scale=scale, window=config.window(i))
        x = ops.linear(a, layer.linear("o"), residual=x)

        h = ops.rms_norm(x, layer.vector("mlp_norm"), eps=eps)
        gate = ops.linear(h, layer.linear("gate"))
        up = ops.linear(h, layer.linear("up"))
        x = ops.linear(ops.silu_mul(gate, up), layer.linear("down"), residual=x)

    x = ops.rms_norm(ops.logit_rows(x), w.vector("norm"), eps=eps)
    return ops.linear(x, w.linear("embed" if config.tie_embeddings else "head"))
