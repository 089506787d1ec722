"""The Llama family: pre-norm layers of grouped-query attention with rotary positions, and a SwiGLU feed-forward.

Touvron et al. 2023, arXiv:2302.13971 and 2307.09288; Dubey et al. 2024, arXiv:2407.21783. The same arithmetic runs
what differs by configuration and weights alone: Yi, SmolLM, DeepSeek distills, InternLM 2 and 3; Mistral's sliding
window (Jiang et al. 2023, arXiv:2310.06825); the biases of Qwen 1.5, 2 and 2.5 (arXiv:2309.16609, 2407.10671) and of
ERNIE 4.5; the first GLM-4's heads that are rotated by half (arXiv:2406.12793); Phi-3's and Phi-4's LongRoPE
(arXiv:2404.14219); SmolLM3's layers without positions (Kazemnejad et al. 2023, arXiv:2305.19466).
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
        x = attention(
            ops, config, layer, h, layer=i, angles=angles if config.is_rotated(i) else None, residual=x
        )
        h = norm(x, layer.vector("mlp_norm"))
        x = swiglu(ops, layer, h, residual=x)
    return logits(ops, config, w, x)
