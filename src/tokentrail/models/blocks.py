"""What decoder families share: attention, gated feed-forward networks, and the way from the last layer to logits.

A family's file says where these stand, which norms surround them, and what differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokentrail.checkpoints import ModelConfig
from tokentrail.models.rope import RopeAngles
from tokentrail.models.weights import Weights
from tokentrail.ops.program import Recorder, Value


def embedding(ops: Recorder, config: ModelConfig, w: Weights) -> Value:
    return ops.embedding(w.matrix("embed"), dim=config.hidden_size, scale=config.embedding_scale)


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines for queries and for keys: mostly the same."""

    queries: Value
    keys: Value


def rotary(ops: Recorder, rope: RopeAngles) -> Rotation:
    keys = ops.rope_angles(rope.frequencies, magnitude=rope.magnitude)
    if not rope.growth:
        return Rotation(keys, keys)
    queries = ops.rope_angles(
        rope.frequencies, magnitude=rope.magnitude, growth=rope.growth, period=rope.period
    )
    return Rotation(queries, keys)


def attention(
    ops: Recorder,
    config: ModelConfig,
    w: Weights,
    h: Value,
    *,
    layer: int,
    angles: Rotation | None,
    head_norms: bool = False,
    sinks: bool = False,
    residual: Value | None = None,
) -> Value:
    """Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) of the normed input, projected back.

    `angles` None: queries and keys are not rotated. `head_norms`: they are normed before, head by head. `sinks`: heads
    have a score of their own that takes part in the softmax.
    """
    heads, kv_heads = config.num_heads, config.num_kv_heads
    q, k, v = (ops.linear(h, w.linear(name)) for name in ("q", "k", "v"))
    if head_norms:
        eps, offset = config.rms_norm_eps, config.norm_offset
        q = ops.rms_norm(q, w.vector("q_norm"), eps=eps, weight_offset=offset, heads=heads)
        k = ops.rms_norm(k, w.vector("k_norm"), eps=eps, weight_offset=offset, heads=kv_heads)
    if angles is not None:
        q = ops.rope(q, angles.queries, heads=heads, interleaved=config.rope.interleaved)
        k = ops.rope(k, angles.keys, heads=kv_heads, interleaved=config.rope.interleaved)
    ops.kv_store(k, v, layer=layer)
    a = ops.attention(
        q,
        layer=layer,
        heads=heads,
        scale=1 / math.sqrt(config.head_dim) if config.attention_scale is None else config.attention_scale,
        window=config.window(layer),
        softcap=config.attention_softcap,
        sinks=w.vector("sinks") if sinks else None,
    )
    return ops.linear(a, w.linear("o"), residual=residual)


def swiglu(ops: Recorder, w: Weights, h: Value, *, residual: Value | None = None) -> Value:
    """down(silu(gate(h)) · up(h)) (Shazeer 2020, arXiv:2002.05202)."""
    gate, up = ops.linear(h, w.linear("gate")), ops.linear(h, w.linear("up"))
    return ops.linear(ops.silu_mul(gate, up), w.linear("down"), residual=residual)


def geglu(ops: Recorder, w: Weights, h: Value, *, residual: Value | None = None) -> Value:
    """down(gelu(gate(h)) · up(h)) (Shazeer 2020, arXiv:2002.05202), gelu by tanh."""
    gate, up = ops.linear(h, w.linear("gate")), ops.linear(h, w.linear("up"))
    return ops.linear(ops.gelu_mul(gate, up), w.linear("down"), residual=residual)


def logits(ops: Recorder, config: ModelConfig, w: Weights, x: Value) -> Value:
    """The last norm and the output matrix, of the rows whose logits are wanted: [logit rows, vocab]. And the last norm
    of all rows, for embeddings.
    """
    norm, eps, offset = w.vector("norm"), config.rms_norm_eps, config.norm_offset
    h = ops.rms_norm(ops.logit_rows(x), norm, eps=eps, weight_offset=offset)
    h = ops.linear(h, w.linear("embed" if config.tie_embeddings else "head"))
    h = ops.softcap(h, config.logit_softcap) if config.logit_softcap else h
    ops.states(x, norm, eps=eps, weight_offset=offset)
    return h
