"""GGUF metadata keys and tensor names → `ModelConfig` and canonical tensor names: one entry an architecture.

Key names and defaults: docs/gguf.md in the ggml repository, and what llama.cpp's converter writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from tokentrail.checkpoints import gguf_experts
from tokentrail.checkpoints.errors import file_error, quoted
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import ModelConfig, MoeConfig, RopeConfig

GLOBAL_TENSORS = {
    "token_embd": "embed",
    "output_norm": "norm",
    "output": "head",
    "rope_freqs": "rope_freqs",
    "rope_factors_short": "rope_factors_short",
    "rope_factors_long": "rope_factors_long",
}
LAYER_TENSORS = {
    "attn_norm": "attn_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_qkv": "qkv",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_output": "o",
    "post_attention_norm": "attn_post_norm",
    "ffn_norm": "mlp_norm",
    "post_ffw_norm": "mlp_post_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "ffn_gate_inp": "router",
    "exp_probs_b": "router_correction",
    "ffn_gate_exps": "experts.gate",
    "ffn_up_exps": "experts.up",
    "ffn_down_exps": "experts.down",
    "ffn_gate_shexp": "shared.gate",
    "ffn_up_shexp": "shared.up",
    "ffn_down_shexp": "shared.down",
    "ffn_gate_inp_shexp": "shared_gate",
}
"""`experts.*` are stacks of all experts' matrices, which `gguf_experts.py` takes apart."""
GATE_WITH_UP = {"ffn_up": "gate_up"}
"""Where there is no `ffn_gate`, its rows stand before those of `ffn_up`."""
IGNORED_LAYER_TENSORS = frozenset({"attn_rot_embd"})
"""Rotary frequencies that old converters stored; they follow from the metadata."""
IGNORED = ""

_LAYER_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z0-9_]+)\.(weight|bias)")
_EXPERT_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.ffn_(gate|up|down)\.(0|[1-9][0-9]{0,5})\.weight")
"""How the first files of Mixtral had its experts, one by one."""
_GLOBAL_NAME = re.compile(r"([a-z0-9_]+)\.(weight|bias)")


def _as_it_is(metadata: Metadata, prefix: str, config: ModelConfig) -> ModelConfig:
    return config


@dataclass(frozen=True)
class GGUFArchitecture:
    """How one value of `general.architecture` is read."""

    family: str
    """`ModelConfig.architecture`: which model in `models/` runs it."""
    rope_interleaved: bool = False
    """GGUF's llama files store q and k permuted, so that rotated pairs are neighbours; most others do not."""
    finish: Callable[[Metadata, str, ModelConfig], ModelConfig] = _as_it_is
    """(metadata, key prefix, what all decoders' keys say) → the configuration, with what this architecture adds."""
    moe: Callable[[Metadata, str, ModelConfig], MoeConfig] | None = None
    """The same for its experts; None: it has none."""
    moe_family: str = ""
    """Which family runs a model that has experts, where that is another than `family`."""
    layer_tensors: Mapping[str, str] = field(default_factory=dict)
    """Names of tensors that mean something else here than in `LAYER_TENSORS`, or nothing elsewhere."""


def canonical_name(stored: str, entry: GGUFArchitecture) -> str | None:
    """`blk.3.attn_q.weight` → `layers.3.q`; `IGNORED` for a tensor not needed; None for one not known."""
    if match := _LAYER_NAME.fullmatch(stored):
        layer, base, suffix = match.groups()
        if base in IGNORED_LAYER_TENSORS:
            return IGNORED
        name = entry.layer_tensors.get(base) or LAYER_TENSORS.get(base)
        prefix = f"layers.{layer}."
    elif match := _GLOBAL_NAME.fullmatch(stored):
        base, suffix = match.groups()
        name, prefix = GLOBAL_TENSORS.get(base), ""
    elif match := _EXPERT_NAME.fullmatch(stored):
        layer, part, expert = match.groups()
        return f"layers.{layer}.experts.{expert}.{part}"
    else:
        return None
    if name is None:
        return None
    if name == "router_correction":
        suffix = "weight"  # called a bias, of nothing
    return prefix + name if suffix == "weight" else f"{prefix}{name}.bias"


def find_architecture(metadata: Metadata) -> GGUFArchitecture:
    """The entry of the file's architecture."""
    name = metadata.text("general.architecture")
    entry = ARCHITECTURES.get(name)
    if entry is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise file_error(
            metadata.path,
            f"architecture {quoted(name)} is not supported (supported: {known})",
            "Use a model of these.",
        )
    return entry


def read_config(metadata: Metadata, entry: GGUFArchitecture, *, vocab_size: int, tied: bool) -> ModelConfig:
    """The configuration, every value checked."""
    prefix = metadata.text("general.architecture") + "."
    config = _decoder(metadata, prefix, entry, vocab_size, tied)
    experts = metadata.integer(prefix + "expert_count", low=0, high=gguf_experts.MAX_EXPERTS, default=0)
    if experts and entry.moe is None:
        problem = f"is a mixture of {experts} experts, which cannot be run for this architecture"
        raise file_error(metadata.path, problem, "Use a dense model.")
    if experts and entry.moe is not None:
        config = replace(
            config, moe=entry.moe(metadata, prefix, config), architecture=entry.moe_family or entry.family
        )
    return entry.finish(metadata, prefix, config)


def _decoder(
    metadata: Metadata, prefix: str, entry: GGUFArchitecture, vocab_size: int, tied: bool
) -> ModelConfig:
    """The keys that all decoders share."""
    hidden = metadata.integer(prefix + "embedding_length", low=1, high=1 << 17)
    heads = metadata.integer(prefix + "attention.head_count", low=1, high=1 << 12)
    kv_heads = metadata.integer(prefix + "attention.head_count_kv", low=1, high=heads, default=heads)
    if heads % kv_heads:
        metadata.fail(prefix + "attention.head_count_kv", f"a divisor of the head count {heads}")
    if prefix + "attention.key_length" not in metadata and hidden % heads:
        metadata.fail(prefix + "attention.head_count", f"a divisor of the embedding length {hidden}")
    head_dim = metadata.integer(prefix + "attention.key_length", low=2, high=1024, default=hidden // heads)
    if head_dim % 2 or not 2 <= head_dim <= 1024:
        raise file_error(
            metadata.path,
            f"heads have {head_dim} dimensions; an even number from 2 to 1024 is needed",
            "Use another model.",
        )
    metadata.integer(prefix + "attention.value_length", low=head_dim, high=head_dim, default=head_dim)
    context = metadata.integer(prefix + "context_length", low=1, high=1 << 28)
    window = metadata.integer(prefix + "attention.sliding_window", low=0, high=1 << 28, default=0)
    return ModelConfig(
        architecture=entry.family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=metadata.integer(prefix + "feed_forward_length", low=1, high=1 << 20),
        num_layers=metadata.integer(prefix + "block_count", low=1, high=4096),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=context,
        rms_norm_eps=metadata.number(
            prefix + "attention.layer_norm_rms_epsilon", low=0, high=1, open_low=True
        ),
        rope=_rope(metadata, prefix, entry, head_dim, context),
        tie_embeddings=tied,
        sliding_window=window or None,
        attention_scale=metadata.number(prefix + "attention.scale", low=0, high=1e6, default=0.0) or None,
        attention_softcap=metadata.number(prefix + "attn_logit_softcapping", low=0, high=1e6, default=0.0),
        logit_softcap=metadata.number(prefix + "final_logit_softcapping", low=0, high=1e6, default=0.0),
    )


def _rope(
    metadata: Metadata, prefix: str, entry: GGUFArchitecture, head_dim: int, context: int
) -> RopeConfig:
    dim = metadata.integer(prefix + "rope.dimension_count", low=2, high=head_dim, default=head_dim)
    if dim % 2:
        metadata.fail(prefix + "rope.dimension_count", "an even number")
    theta = metadata.number(prefix + "rope.freq_base", low=1, high=1e12, open_low=True, default=10000.0)
    # `rope.scale_linear` is what files from before `rope.scaling.*` call it. A factor of 0 means none.
    factor = metadata.number(prefix + "rope.scale_linear", low=0, high=1e6, default=0.0)
    factor = metadata.number(prefix + "rope.scaling.factor", low=0, high=1e6, default=factor) or 1.0
    default = "linear" if factor != 1.0 else "none"
    scaling = metadata.text(prefix + "rope.scaling.type", default=default)
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise file_error(
            metadata.path,
            f"rope scaling {quoted(scaling)} is not supported (none, linear, yarn, longrope are)",
            "Use another model.",
        )
    # LongRoPE's factors are tensors. Some files have them without its name; then they make it so when they are loaded.
    if scaling == "none" or (scaling == "linear" and factor == 1.0):
        scaling, factor = "none", 1.0
    own = metadata.number(prefix + "rope.scaling.attn_factor", low=0, high=100, open_low=True, default=1.0)
    rope = RopeConfig(
        dim=dim,
        theta=theta,
        interleaved=entry.rope_interleaved,
        scaling=scaling,
        factor=factor,
        original_max_position=metadata.integer(
            prefix + "rope.scaling.original_context_length", low=0, high=1 << 28, default=0
        ),
        attention_factor=own,
    )
    if scaling != "yarn":
        return rope
    # YaRN (arXiv:2309.00071): cos and sin are multiplied by 0.1 ln(factor) + 1, times the file's own factors. Models
    # that have such a factor for scores beside divide by it: the logarithm's multiplier is of that one.
    log = math.log(factor) if factor > 1.0 else 0.0
    own /= 1.0 + 0.1 * log * metadata.number(
        prefix + "rope.scaling.yarn_log_multiplier", low=0, high=100, default=0.0
    )
    own *= metadata.number(
        prefix + "rope.scaling.yarn_attn_factor", low=0, high=100, open_low=True, default=1.0
    )
    return replace(
        rope,
        original_max_position=rope.original_max_position or context,
        attention_factor=own * (0.1 * log + 1.0),
        beta_fast=metadata.number(
            prefix + "rope.scaling.yarn_beta_fast", low=0, high=1e6, open_low=True, default=32.0
        ),
        beta_slow=metadata.number(
            prefix + "rope.scaling.yarn_beta_slow", low=0, high=1e6, open_low=True, default=1.0
        ),
    )


def _windows(metadata: Metadata, prefix: str, layers: int, period: int) -> tuple[bool, ...]:
    """Which layers are windowed: all but the last of each `period`; the file may say another, or so layer by layer."""
    key = prefix + "attention.sliding_window_pattern"
    given = metadata.values.get(key)
    if isinstance(given, np.ndarray) and given.dtype.kind == "b":
        if given.size != layers:
            metadata.fail(key, f"an array of {layers} booleans")
        return tuple(bool(windowed) for windowed in given)
    period = metadata.integer(key, low=1, high=4096, default=period)
    return tuple((layer + 1) % period != 0 for layer in range(layers))


def _gemma1(metadata: Metadata, prefix: str, config: ModelConfig) -> ModelConfig:
    return _gemma(config)


def _gemma2(metadata: Metadata, prefix: str, config: ModelConfig) -> ModelConfig:
    return replace(
        _gemma(config, largest=46), windowed_layers=_windows(metadata, prefix, config.num_layers, 2)
    )


def _gemma3(metadata: Metadata, prefix: str, config: ModelConfig) -> ModelConfig:
    theta = metadata.number(prefix + "rope.freq_base_swa", low=1, high=1e12, open_low=True, default=10000.0)
    return replace(
        _gemma(config, largest=62),
        windowed_layers=_windows(metadata, prefix, config.num_layers, 6),
        rope_local=RopeConfig(dim=config.rope.dim, theta=theta),
    )


def _gemma(config: ModelConfig, *, largest: int = 0) -> ModelConfig:
    """Weights of norms are stored with their 1 added.

    The largest model of the later generations, known by its number of layers, scales scores by its hidden size over its
    heads: files do not say so.
    """
    scale = config.attention_scale
    if scale is None and config.num_layers == largest:
        scale = 1 / math.sqrt(config.hidden_size / config.num_heads)
    return replace(config, embedding_scale=math.sqrt(config.hidden_size), attention_scale=scale)


def _gpt_oss(metadata: Metadata, prefix: str, config: ModelConfig) -> ModelConfig:
    """Every other layer is windowed, the first one included; RoPE's mixed dimensions are not whole numbers."""
    return replace(
        config,
        windowed_layers=_windows(metadata, prefix, config.num_layers, 2),
        rope=replace(config.rope, truncate=False),
    )


def _mistral3(metadata: Metadata, prefix: str, config: ModelConfig) -> ModelConfig:
    """Ministral 3, whose queries grow with the position."""
    growth = metadata.number(prefix + "attention.temperature_scale", low=0, high=100, default=0.0)
    if growth and (config.rope.scaling != "yarn" or config.rope.dim != config.head_dim):
        metadata.fail(prefix + "attention.temperature_scale", "0 without YaRN over whole heads")
    return replace(config, rope=replace(config.rope, query_growth=growth))


def _smollm3(metadata: Metadata, prefix: str, config: ModelConfig) -> ModelConfig:
    """Each fourth layer has no positions; files do not say which."""
    layers = tuple((layer + 1) % 4 == 0 for layer in range(config.num_layers))
    return replace(config, unrotated_layers=layers)


ARCHITECTURES: dict[str, GGUFArchitecture] = {
    "chatglm": GGUFArchitecture("llama", rope_interleaved=True, layer_tensors=GATE_WITH_UP),
    "ernie4_5": GGUFArchitecture("llama", rope_interleaved=True),
    "ernie4_5-moe": GGUFArchitecture("mixtral", rope_interleaved=True, moe=gguf_experts.ernie),
    "gemma": GGUFArchitecture("gemma1", finish=_gemma1),
    "gemma2": GGUFArchitecture("gemma2", finish=_gemma2),
    "gemma3": GGUFArchitecture("gemma3", finish=_gemma3),
    "glm4": GGUFArchitecture("glm4", rope_interleaved=True, layer_tensors=GATE_WITH_UP),
    "internlm2": GGUFArchitecture("llama", rope_interleaved=True),
    "gpt-oss": GGUFArchitecture(
        "gpt_oss",
        finish=_gpt_oss,
        moe=gguf_experts.gpt_oss,
        layer_tensors={"post_attention_norm": "mlp_norm", "attn_sinks": "sinks"},
    ),
    "llama": GGUFArchitecture("llama", rope_interleaved=True, moe=gguf_experts.mixtral, moe_family="mixtral"),
    "phi3": GGUFArchitecture("llama", layer_tensors=GATE_WITH_UP),
    "mistral3": GGUFArchitecture("llama", rope_interleaved=True, finish=_mistral3),
    "qwen2": GGUFArchitecture("llama"),
    "qwen2moe": GGUFArchitecture("mixtral", moe=partial(gguf_experts.qwen, shared=True)),
    "qwen3": GGUFArchitecture("qwen3"),
    "qwen3moe": GGUFArchitecture("qwen3_moe", moe=partial(gguf_experts.qwen, shared=False)),
    "smollm3": GGUFArchitecture("llama", rope_interleaved=True, finish=_smollm3),
}
"""By `general.architecture`."""
