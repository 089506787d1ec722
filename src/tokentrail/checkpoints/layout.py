"""Canonical tensor names, and the one place where tensors are checked against the configuration.

embed                        (vocab, hidden)
layers.{i}.attn_norm         (hidden,)
layers.{i}.q                 (heads · head_dim, hidden)
layers.{i}.k, .v             (kv_heads · head_dim, hidden)
layers.{i}.o                 (hidden, heads · head_dim)
layers.{i}.mlp_norm          (hidden,)
layers.{i}.gate, .up         (intermediate, hidden)
layers.{i}.down              (hidden, intermediate)
layers.{i}.{matrix}.bias     (rows of the matrix,)                 optional; so are biases of `head` and of experts
layers.{i}.q_norm, .k_norm   (head_dim,)                           of each head: Qwen3, Gemma 3
layers.{i}.attn_post_norm    (hidden,)                             of what attention gives: GLM-4, Gemma
layers.{i}.mlp_post_norm     (hidden,)                             of what the feed-forward network gives
layers.{i}.sinks             (heads,)                              scores that take part in softmax alone: gpt-oss
layers.{i}.router            (experts, hidden)                     instead of gate, up, down, where there are experts
layers.{i}.router_correction (experts,)                            added to scores for the choice only: ERNIE 4.5
layers.{i}.experts.{e}.gate, .up, .down                            as gate, up, down, of one expert
layers.{i}.shared.gate, .up, .down                                 of the experts that every token has
layers.{i}.shared_gate       (1, hidden)                           Qwen2-MoE
norm                         (hidden,)
head                         (vocab, hidden)                       absent when tied to `embed`
rope_freqs                   (rope.dim / 2,)                       optional: divisors of the frequencies
rope_factors_short, _long    (rope.dim / 2,)                       optional, both: LongRoPE's
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tokentrail.checkpoints.dequantize import RUNNABLE_FORMATS, is_runnable
from tokentrail.checkpoints.errors import CONVERT_AGAIN, DOWNLOAD_AGAIN, file_error, quoted
from tokentrail.checkpoints.model import ModelConfig, Tensor

Shapes = dict[str, tuple[int, ...]]

VECTOR_FORMATS = frozenset({"F32", "F16", "BF16"})
"""Norms and biases are never quantized."""


REQUANTIZE = "Convert it: llama-quantize --allow-requantize IN.gguf OUT.gguf Q8_0 (or Q4_0, Q4_1)."

ROPE_TENSORS = ("rope_freqs", "rope_factors_short", "rope_factors_long")

FAMILY_TENSORS: dict[str, tuple[str, ...]] = {
    "gemma2": ("attn_post_norm", "mlp_post_norm"),
    "gemma3": ("attn_post_norm", "mlp_post_norm", "q_norm", "k_norm"),
    "glm4": ("attn_post_norm", "mlp_post_norm"),
    "gpt_oss": ("sinks",),
    "qwen3": ("q_norm", "k_norm"),
    "qwen3_moe": ("q_norm", "k_norm"),
}
"""What the layers of a family have besides two norms, q, k, v, o and a feed-forward network."""


def tensor_shapes(config: ModelConfig) -> tuple[Shapes, Shapes]:
    """Canonical names and shapes that a model of this configuration (must have, may have)."""
    hidden = config.hidden_size
    required: Shapes = {"embed": (config.vocab_size, hidden), "norm": (hidden,)}
    optional: Shapes = dict.fromkeys(ROPE_TENSORS, (config.rope.dim // 2,))
    if config.rope.scaling == "longrope" and not config.rope.long_factors:
        required |= {name: optional[name] for name in ("rope_factors_short", "rope_factors_long")}
    if not config.tie_embeddings:
        required["head"] = (config.vocab_size, hidden)
        optional["head.bias"] = (config.vocab_size,)
    vectors: Shapes = {
        "attn_post_norm": (hidden,),
        "mlp_post_norm": (hidden,),
        "q_norm": (config.head_dim,),
        "k_norm": (config.head_dim,),
        "sinks": (config.num_heads,),
    }
    for layer in range(config.num_layers):
        shapes: Shapes = {"attn_norm": (hidden,), "mlp_norm": (hidden,)}
        shapes |= _attention(config) | (
            _mixture(config) if config.has_experts(layer) else _feed_forward(config)
        )
        shapes |= {name: vectors[name] for name in FAMILY_TENSORS.get(config.architecture, ())}
        for name, shape in shapes.items():
            required[f"layers.{layer}.{name}"] = shape
            if len(shape) == 2:
                optional[f"layers.{layer}.{name}.bias"] = shape[:1]
        if config.moe is not None and config.has_experts(layer):
            optional[f"layers.{layer}.router_correction"] = (config.moe.num_experts,)
    return required, optional


def _attention(config: ModelConfig) -> Shapes:
    hidden = config.hidden_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {"q": (q_size, hidden), "k": (kv_size, hidden), "v": (kv_size, hidden), "o": (hidden, q_size)}


def _feed_forward(config: ModelConfig) -> Shapes:
    return _gated("", config.hidden_size, config.intermediate_size)


def _gated(prefix: str, hidden: int, inner: int) -> Shapes:
    return {
        f"{prefix}gate": (inner, hidden),
        f"{prefix}up": (inner, hidden),
        f"{prefix}down": (hidden, inner),
    }


def _mixture(config: ModelConfig) -> Shapes:
    moe, hidden = config.moe, config.hidden_size
    assert moe is not None
    shapes: Shapes = {"router": (moe.num_experts, hidden)}
    for expert in range(moe.num_experts):
        shapes |= _gated(f"experts.{expert}.", hidden, moe.intermediate_size)
    if moe.shared_intermediate_size:
        shapes |= _gated("shared.", hidden, moe.shared_intermediate_size)
    if moe.shared_gate:
        shapes["shared_gate"] = (1, hidden)
    return shapes


def check_tensors(
    path: Path,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    stored_names: Mapping[str, str],
    *,
    remedy: str = CONVERT_AGAIN,
    type_remedy: str = REQUANTIZE,
) -> None:
    """Raise `ModelFileError` unless the tensors are those of the configuration, in types that can be run.

    `stored_names` maps canonical names to those in the file, for messages that a user can look up; `remedy` and
    `type_remedy` are what helps where tensors are not those of the configuration, or in a type that cannot be run.
    """
    # Cheap first: a file with few tensors must not make us list the tensors of a million layers.
    if len(tensors) < config.num_layers:
        problem = f"says it has {config.num_layers} layers, but holds only {len(tensors)} tensors"
        raise file_error(path, problem, DOWNLOAD_AGAIN)
    if config.moe is not None:
        experts = config.moe.num_experts * sum(map(config.has_experts, range(config.num_layers)))
        if len(tensors) < 3 * experts:
            problem = f"says it has {experts} experts in all layers, but holds only {len(tensors)} matrices"
            raise file_error(path, problem, DOWNLOAD_AGAIN)
    required, optional = tensor_shapes(config)
    for name in required:
        if name not in tensors:
            raise file_error(path, f"the tensor for {name!r} is missing", DOWNLOAD_AGAIN)
    if ("rope_factors_short" in tensors) != ("rope_factors_long" in tensors):
        raise file_error(path, "holds only one of LongRoPE's two lists of factors", DOWNLOAD_AGAIN)
    for name, tensor in tensors.items():
        stored = quoted(stored_names[name])
        shape = required.get(name) or optional.get(name)
        if shape is None:
            problem = (
                f"tensor {stored} has no place in a {config.architecture} model of {config.num_layers} layers"
            )
            raise file_error(path, problem, remedy)
        if tensor.shape != shape:
            problem = f"tensor {stored} has the shape {tensor.shape}, but the metadata ask for {shape}"
            raise file_error(path, problem, remedy)
        if not is_runnable(tensor.format):
            known = ", ".join(sorted(RUNNABLE_FORMATS))
            raise file_error(
                path,
                f"tensor {stored} has the type {tensor.format}, which cannot be run (supported: {known})",
                type_remedy,
            )
        if len(shape) == 1 and tensor.format not in VECTOR_FORMATS:
            raise file_error(
                path,
                f"tensor {stored} is a vector in the type {tensor.format}; F32, F16 or BF16 is needed",
                remedy,
            )
