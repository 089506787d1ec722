"""gpt-oss (OpenAI 2025, arXiv:2508.10925): experts everywhere, biases everywhere, windows in every other layer.

Each head has a sink, a score that takes its part of the softmax and has no value (Xiao et al. 2023, arXiv:2309.17453).
The gate of an expert is capped, and what it scales is held within limits and moved by one: `swiglu_oai` of
`ops.program.ACTIVATIONS`. Weights of the chosen experts are the softmax of their scores alone.
"""

from __future__ import annotations

from functools import partial

from tokentrail.checkpoints import ModelConfig
from tokentrail.models.blocks import attention, embedding, logits, rotary
from tokentrail.models.mixture import mixture
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
        x = attention(ops, config, layer, h, layer=i, angles=angles, sinks=True, residual=x)
        h = norm(x, layer.vector("mlp_norm"))
        x = mixture(ops, config, layer, h, residual=x, activation="swiglu_oai")
    return logits(ops, config, w, x)
