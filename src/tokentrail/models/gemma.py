"""Gemma 2 and 3: norms around both halves of a layer, GeGLU, scaled embeddings, windows in most layers.

Gemma 2 caps scores and logits softly (arXiv:2408.00118). Gemma 3 (arXiv:2503.19786) norms heads instead, and rotates
those of windowed layers by another base. Where a format stores the weights of norms as trained, 1 is added to them.
"""

from __future__ import annotations

from functools import partial

from tokentrail.checkpoints import ModelConfig
from tokentrail.models.blocks import attention, embedding, geglu, logits, rotary
from tokentrail.models.rope import RopeAngles
from tokentrail.models.weights import Weights
from tokentrail.ops.program import Recorder, Value


def forward(ops: Recorder, config: ModelConfig, w: Weights, rope: RopeAngles, *, head_norms: bool) -> Value:
    """Tokens of a step → logits [logit rows, vocab]."""
    norm = partial(ops.rms_norm, eps=config.rms_norm_eps, weight_offset=config.norm_offset)
    far = rotary(ops, rope)
    near = far if rope.windowed is None else rotary(ops, rope.windowed)
    x = embedding(ops, config, w)
    for i in range(config.num_layers):
        layer = w.layer(i)
        h = norm(x, layer.vector("attn_norm"))
        angles = near if config.window(i) else far
        h = attention(ops, config, layer, h, layer=i, angles=angles, head_norms=head_norms)
        x = ops.add(x, norm(h, layer.vector("attn_post_norm")))
        h = norm(x, layer.vector("mlp_norm"))
        h = geglu(ops, layer, h)
        x = ops.add(x, norm(h, layer.vector("mlp_post_norm")))
    return logits(ops, config, w, x)


gemma2 = partial(forward, head_norms=False)
gemma3 = partial(forward, head_norms=True)
