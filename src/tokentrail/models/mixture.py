"""Mixtures of experts (Shazeer et al. 2017, arXiv:1701.06538): a router chooses a few networks for each token.

What differs between families is in `MoeConfig`: how scores become weights, and whether some experts are shared by all
tokens (DeepSeekMoE, arXiv:2401.06066), behind a gate or not.
"""

from __future__ import annotations

from tokentrail.checkpoints import ModelConfig
from tokentrail.models.blocks import swiglu
from tokentrail.models.weights import Weights
from tokentrail.ops.program import Expert, Recorder, Value


def mixture(
    ops: Recorder, config: ModelConfig, w: Weights, h: Value, *, residual: Value, activation: str = "silu"
) -> Value:
    """The chosen experts of `h`, weighted, and the shared ones, added to `residual`."""
    moe = config.moe
    assert moe is not None
    weights = ops.route(
        ops.linear(h, w.linear("router")),
        chosen=moe.experts_per_token,
        scoring=moe.scoring,
        correction=w.optional_vector("router_correction"),
        normalize=moe.normalize,
        scale=moe.scale,
    )
    experts = tuple(expert(w.part(f"experts.{e}")) for e in range(moe.num_experts))
    x = ops.add(residual, ops.experts(h, weights, experts, activation=activation))
    if not moe.shared_intermediate_size:
        return x
    if not moe.shared_gate:
        return swiglu(ops, w.part("shared"), h, residual=x)
    gate = ops.linear(h, w.linear("shared_gate"))
    return ops.add(x, ops.sigmoid_mul(gate, swiglu(ops, w.part("shared"), h)))


def expert(w: Weights) -> Expert:
    return Expert(gate=w.linear("gate"), up=w.linear("up"), down=w.linear("down"))
