"""GGUF metadata keys and tensor names → `ModelConfig` and canonical tensor names: one entry an architecture.

Key names and defaults: docs/gguf.md in the ggml repository, and what llama.cpp's converter writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokentrail.checkpoints.errors import file_error, quoted
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import ModelConfig, RopeConfig

GLOBAL_TENSORS = {"token_embd": "embed", "output_norm": "norm", "output": "head", "rope_freqs": "rope_freqs"}
LAYER_TENSORS = {
    "attn_norm": "attn_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
IGNORED_LAYER_TENSORS = frozenset({"attn_rot_embd"})
"""Rotary frequencies that old converters stored; they follow from the metadata."""
IGNORED = ""

_LAYER_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z0-9_]+)\.(weight|bias)")
_GLOBAL_NAME = re.compile(r"([a-z0-9_]+)\.(weight|bias)")


@dataclass(frozen=True)
class GGUFArchitecture:
    """How one value of `general.architecture` is read."""

    family: str
    """`ModelConfig.architecture`: which model in `models/` runs it."""
    rope_interleaved: bool
    """GGUF's llama files store q and k permuted, so that rotated pairs are neighbours; most others do not."""
    config: Callable[[Metadata, str, GGUFArchitecture, int, bool], ModelConfig]
    """(metadata, key prefix, this entry, vocabulary size, tied embeddings) → configuration."""


def canonical_name(stored: str) -> str | None:
    """`blk.3.attn_q.weight` → `layers.3.q`; `IGNORED` for a tensor not needed; None for one not known."""
    if match := _LAYER_NAME.fullmatch(stored):
        layer, base, suffix = match.groups()
        if base in IGNORED_LAYER_TENSORS:
            return IGNORED
        name, prefix = LAYER_TENSORS.get(base), f"layers.{layer}."
    elif match := _GLOBAL_NAME.fullmatch(stored):
        base, suffix = match.groups()
        name, prefix = GLOBAL_TENSORS.get(base), ""
    else:
        return None
    if name is None:
        return None
    return prefix + name if suffix == "weight" else f"{prefix}{name}.bias"


def read_config(metadata: Metadata, path: Path, *, vocab_size: int, tied: bool) -> ModelConfig:
    """The configuration of the file's architecture, every value checked."""
    name = metadata.text("general.architecture")
    entry = ARCHITECTURES.get(name)
    if entry is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise file_error(
            path,
            f"architecture {quoted(name)} is not supported (supported: {known})",
            "Use a model of these.",
        )
    return entry.config(metadata, name + ".", entry, vocab_size, tied)


def _dense_decoder(
    metadata: Metadata, prefix: str, entry: GGUFArchitecture, vocab_size: int, tied: bool
) -> ModelConfig:
    """The keys that all dense decoders of the Llama kind share."""
    experts = metadata.integer(prefix + "expert_count", low=0, high=1 << 16, default=0)
    if experts:
        raise file_error(
            metadata.path, f"is a mixture of {experts} experts, which cannot be run yet", "Use a dense model."
        )
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
    if scaling not in ("none", "linear", "yarn"):
        raise file_error(
            metadata.path,
            f"rope scaling {quoted(scaling)} is not supported (none, linear, yarn are)",
            "Use another model.",
        )
    if scaling == "none" or (scaling == "linear" and factor == 1.0):
        return RopeConfig(dim=dim, theta=theta, interleaved=entry.rope_interleaved)
    if scaling == "linear":
        return RopeConfig(
            dim=dim, theta=theta, interleaved=entry.rope_interleaved, scaling=scaling, factor=factor
        )
    # YaRN (arXiv:2309.00071): cos and sin are multiplied by 0.1 ln(factor) + 1, times the file's own factor.
    own = metadata.number(
        prefix + "rope.scaling.yarn_attn_factor", low=0, high=100, open_low=True, default=1.0
    )
    own *= metadata.number(prefix + "rope.scaling.attn_factor", low=0, high=100, open_low=True, default=1.0)
    return RopeConfig(
        dim=dim,
        theta=theta,
        interleaved=entry.rope_interleaved,
        scaling=scaling,
        factor=factor,
        original_max_position=metadata.integer(
            prefix + "rope.scaling.original_context_length", low=1, high=1 << 28, default=context
        ),
        attention_factor=own * (0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0),
        beta_fast=metadata.number(
            prefix + "rope.scaling.yarn_beta_fast", low=0, high=1e6, open_low=True, default=32.0
        ),
        beta_slow=metadata.number(
            prefix + "rope.scaling.yarn_beta_slow", low=0, high=1e6, open_low=True, default=1.0
        ),
    )


ARCHITECTURES: dict[str, GGUFArchitecture] = {
    "llama": GGUFArchitecture(family="llama", rope_interleaved=True, config=_dense_decoder),
}
"""By `general.architecture`."""
