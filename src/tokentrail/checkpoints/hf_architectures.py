"""config.json of a Hugging Face model → `ModelConfig`, and the names of its tensors: one entry a `model_type`.

Keys, their defaults and meaning: the configuration classes of the transformers library, versions 4 and 5 (which puts
all that concerns RoPE into one object, `rope_parameters`, and leaves out what equals a class's default).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokentrail.checkpoints import hf_experts
from tokentrail.checkpoints.errors import file_error, quoted
from tokentrail.checkpoints.fused import gate_up, grouped_qkv, qkv
from tokentrail.checkpoints.hf_tensors import GLOBAL_TENSORS, Table
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import ModelConfig, MoeConfig, RopeConfig

REMEDY = "Use another model, or download this one again."

DENSE_TENSORS: Table = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
"""What most dense decoders call the tensors of a layer."""
HEAD_NORMS: Table = {"self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm"}
"""Norms of each query and key head."""
GLM_TENSORS: Table = {**DENSE_TENSORS, "mlp.gate_up_proj": gate_up}
GEMMA_TENSORS: Table = {
    **DENSE_TENSORS,
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_post_norm",
}

_SHARED_KEYS = ("vocab_size", "bos_token_id", "eos_token_id", "quantization_config")
"""Of a multimodal model's own level, used where its text model does not have them."""
_GENERATORS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ForImageTextToText")
"""Endings of `architectures` that generate text."""


@dataclass(frozen=True)
class HFArchitecture:
    """How models of one `model_type` are read."""

    family: str
    """`ModelConfig.architecture`: which model in `models/` runs it."""
    config: Callable[[Metadata, HFArchitecture], ModelConfig]
    """(values of config.json, this entry) → configuration; `tie_embeddings` is seen to by `read_config`."""
    layer_tensors: Table = field(default_factory=lambda: DENSE_TENSORS)
    global_tensors: Table = field(default_factory=lambda: GLOBAL_TENSORS)
    ignored: tuple[str, ...] = ()
    """Patterns of further tensors that are not needed, by their names without prefix."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that config.json leaves out, where they are not those that `dense_decoder` has."""
    tied: bool = False
    """`tie_word_embeddings` where config.json leaves it out."""
    rope_interleaved: bool = False
    activations: frozenset[str] = frozenset({"silu", "swish"})
    """Values of `hidden_act` that the family's forward pass computes."""


def text_values(
    path: Path, values: Mapping[str, Any], *, embeds: bool = False
) -> tuple[HFArchitecture, Metadata]:
    """The entry for a config.json, and the values of its text model.

    Raises `ModelFileError` for a model that does not generate text, or is of a type that is not known. `embeds`: models
    without an output layer will do, too.
    """
    outer = Metadata(path, values, word="key", remedy=REMEDY)
    architectures = outer.texts("architectures")
    wanted = (*_GENERATORS, "Model") if embeds else _GENERATORS
    if architectures and not any(name.endswith(wanted) for name in architectures):
        problem = f"describes a {quoted(architectures[0])}, which does not generate text"
        raise file_error(path, problem, "Use a model for text generation (…ForCausalLM).")
    model_type = outer.text("model_type")
    text = outer.nested("text_config")
    inner: dict[str, Any] = dict(values)
    if text is not None:
        inner = {key: values[key] for key in _SHARED_KEYS if key in values} | dict(text.values)
        if "tie_word_embeddings" in values:
            inner["tie_word_embeddings"] = values["tie_word_embeddings"]
        model_type = text.text("model_type", default=model_type)
    if inner.get("is_causal") is False or inner.get("use_bidirectional_attention") in (True, "all"):
        problem = "describes a model whose tokens also attend to those behind them, which is not supported"
        raise file_error(path, problem, "Use a model whose attention is causal.")
    entry = ARCHITECTURES.get(model_type)
    if entry is None:
        known = ", ".join(sorted(ARCHITECTURES))
        problem = f"model type {quoted(model_type)} is not supported (supported: {known})"
        raise file_error(path, problem, "Use a model of these.")
    return entry, Metadata(path, {**entry.defaults, **inner}, word="key", remedy=REMEDY)


def read_config(values: Metadata, entry: HFArchitecture) -> tuple[ModelConfig, bool | None]:
    """The configuration, every value checked; and whether embeddings are tied, or None where nothing says so."""
    config = entry.config(values, entry)
    tied = values.boolean("tie_word_embeddings")
    return config, (True if entry.tied else None) if tied is None else tied


def dense_decoder(values: Metadata, entry: HFArchitecture) -> ModelConfig:
    """The keys that all decoders of the Llama kind share. Families with more replace fields of what it returns."""
    activation = values.text("hidden_act", default=min(entry.activations))
    if activation not in entry.activations:
        values.fail("hidden_act", " or ".join(sorted(entry.activations)))
    hidden = values.integer("hidden_size", low=1, high=1 << 17)
    heads = values.integer("num_attention_heads", low=1, high=1 << 12)
    kv_heads = values.integer("num_key_value_heads", low=1, high=heads, default=heads)
    if heads % kv_heads:
        values.fail("num_key_value_heads", f"a divisor of the {heads} attention heads")
    if values.values.get("head_dim") is None and hidden % heads:
        values.fail("num_attention_heads", f"a divisor of the hidden size {hidden}")
    head_dim = values.integer("head_dim", low=2, high=1024, default=hidden // heads)
    if head_dim % 2 or not 2 <= head_dim <= 1024:
        problem = f"heads have {head_dim} dimensions; an even number from 2 to 1024 is needed"
        raise file_error(values.path, problem, "Use another model.")
    layers = values.integer("num_hidden_layers", low=1, high=4096)
    context = values.integer("max_position_embeddings", low=1, high=1 << 28, default=2048)
    angles = rope(values, entry, head_dim, context)
    window, windowed = sliding_window(values, layers)
    return ModelConfig(
        architecture=entry.family,
        vocab_size=values.integer("vocab_size", low=1, high=1 << 24),
        hidden_size=hidden,
        intermediate_size=values.integer("intermediate_size", low=1, high=1 << 20),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=_stretched(context, angles),
        rms_norm_eps=values.number("rms_norm_eps", low=0, high=1, open_low=True, default=1e-6),
        rope=angles,
        sliding_window=window,
        windowed_layers=windowed,
    )


def _stretched(context: int, rope: RopeConfig) -> int:
    """The context that a scaling of RoPE makes of the one in config.json, as vLLM reads it."""
    if rope.scaling in ("linear", "dynamic"):
        return int(context * max(rope.factor, 1.0))
    if rope.scaling == "yarn":
        return max(context, int(rope.original_max_position * rope.factor))
    return context


def sliding_window(values: Metadata, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """(window, which layers have it; none: all): `sliding_window`, `use_sliding_window`, and then `layer_types` or
    `max_window_layers`, the first layer that has it.
    """
    window = values.integer("sliding_window", low=0, high=1 << 28, default=0)
    if not window or values.boolean("use_sliding_window") is False:
        return None, ()
    kinds = values.texts("layer_types")
    if kinds:
        if len(kinds) < layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
            values.fail("layer_types", f"sliding_attention or full_attention for each of the {layers} layers")
        windowed = tuple(kind == "sliding_attention" for kind in kinds[:layers])
    else:
        first = values.integer("max_window_layers", low=0, high=1 << 16, default=0)
        windowed = tuple(layer >= first for layer in range(layers))
    if not any(windowed):
        return None, ()
    return window, () if all(windowed) else windowed


def rope(
    values: Metadata, entry: HFArchitecture, head_dim: int, context: int, *, layers: str | None = None
) -> RopeConfig:
    """RoPE as either version writes it: `rope_theta` beside `rope_scaling`, or both in `rope_parameters`.

    `layers`: the kind of layers (`sliding_attention`) where `rope_parameters` has an object for each kind.
    """
    given = values.nested("rope_parameters") or values.nested("rope_scaling")
    if given is not None and layers is not None:
        given = given.nested(layers) or given
    given = Metadata(values.path, {}, remedy=values.remedy) if given is None else given

    def number(key: str, low: float, high: float, default: float, *, open_low: bool = True) -> float:
        source = given if given.values.get(key) is not None else values
        return source.number(key, low=low, high=high, open_low=open_low, default=default)

    theta = number("rope_theta", 1, 1e12, 10000.0)
    dim = int(head_dim * number("partial_rotary_factor", 0, 1, 1.0))
    if dim < 2 or dim % 2:
        problem = f"{dim} of {head_dim} dimensions of a head are rotated; an even number from 2 is needed"
        raise file_error(values.path, problem, values.remedy)
    plain = RopeConfig(dim=dim, theta=theta, interleaved=entry.rope_interleaved)
    kind = given.text("rope_type", default=given.text("type", default="default"))
    kind = {"su": "longrope", "mrope": "default"}.get(
        kind, kind
    )  # text alone: all axes of mrope are the position
    if kind == "default":
        return plain

    # What the model was trained for, where that is not the whole context.
    source = given if given.values.get("original_max_position_embeddings") is not None else values
    if values.values.get("original_max_position_embeddings") is not None:
        source = values  # Phi-3 has it beside; so transformers prefers it
    original = source.integer("original_max_position_embeddings", low=1, high=1 << 28, default=context)
    changes: dict[str, Any] = {"scaling": kind, "original_max_position": original}
    stretch = max(context / original, 1.0)
    factor = number("factor", 0, 1e6, stretch) if kind in ("yarn", "longrope") else 1.0
    if kind in ("linear", "dynamic", "llama3"):
        factor = given.number("factor", low=0, high=1e6, open_low=True)
    changes["factor"] = factor
    if kind == "llama3":
        changes["low_freq_factor"] = given.number("low_freq_factor", low=0, high=1e6, open_low=True)
        changes["high_freq_factor"] = given.number("high_freq_factor", low=0, high=1e6, open_low=True)
        if changes["high_freq_factor"] <= changes["low_freq_factor"]:
            given.fail("high_freq_factor", f"above low_freq_factor ({changes['low_freq_factor']:g})")
    elif kind == "yarn":
        changes["beta_fast"] = given.number("beta_fast", low=0, high=1e6, default=0) or 32.0
        changes["beta_slow"] = given.number("beta_slow", low=0, high=1e6, default=0) or 1.0
        changes["truncate"] = given.flag("truncate", True)
        changes["attention_factor"] = _yarn_attention_factor(given, factor)
        growth = given.number("llama_4_scaling_beta", low=0, high=100, default=0)
        if growth and dim != head_dim:
            given.fail("llama_4_scaling_beta", "0 where only a part of each head is rotated")
        changes["query_growth"] = growth
    elif kind == "longrope":
        half = dim // 2
        changes["short_factors"] = given.numbers("short_factor", low=1e-6, high=1e6, length=half)
        changes["long_factors"] = given.numbers("long_factor", low=1e-6, high=1e6, length=half)
        for key, name in (("short_factor", "short_factors"), ("long_factor", "long_factors")):
            if not changes[name]:
                raise file_error(values.path, f"key {key!r} is missing, which longrope needs", values.remedy)
        spread = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
        changes["attention_factor"] = given.number(
            "attention_factor", low=0, high=100, open_low=True, default=spread
        )
    elif kind not in ("linear", "dynamic"):
        problem = f"rope type {quoted(kind)} is not supported (default, linear, dynamic, llama3, yarn, longrope are)"
        raise file_error(values.path, problem, "Use another model.")
    if kind == "linear" and factor == 1.0:
        return plain
    return RopeConfig(dim=dim, theta=theta, interleaved=entry.rope_interleaved, **changes)


def _yarn_attention_factor(given: Metadata, factor: float) -> float:
    """YaRN (arXiv:2309.00071) multiplies cos and sin by 0.1 ln(factor) + 1; DeepSeek's files by a quotient of two."""

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    numerator = given.number("mscale", low=0, high=100, default=0)
    denominator = given.number("mscale_all_dim", low=0, high=100, default=0)
    default = magnitude(numerator) / magnitude(denominator) if numerator and denominator else magnitude(1.0)
    return given.number("attention_factor", low=0, high=100, open_low=True, default=default)


def _gemma1(values: Metadata, entry: HFArchitecture) -> ModelConfig:
    return _gemma(values, entry, period=1)


def _gemma2(values: Metadata, entry: HFArchitecture) -> ModelConfig:
    return _gemma(values, entry, period=2)


def _gemma3(values: Metadata, entry: HFArchitecture) -> ModelConfig:
    period = values.integer("sliding_window_pattern", low=1, high=4096, default=6)
    config = _gemma(values, entry, period=period)
    context = values.integer("max_position_embeddings", low=1, high=1 << 28)
    if values.nested("rope_parameters"):
        local = rope(values, entry, config.head_dim, context, layers="sliding_attention")
        config = replace(config, rope=rope(values, entry, config.head_dim, context, layers="full_attention"))
    else:
        theta = values.number("rope_local_base_freq", low=1, high=1e12, open_low=True, default=10000.0)
        local = RopeConfig(dim=config.head_dim, theta=theta)
    return replace(config, rope_local=local, max_position=context)


def _gemma(values: Metadata, entry: HFArchitecture, *, period: int) -> ModelConfig:
    """A full layer closes each `period`, where nothing else is said. Weights of norms are stored without their 1."""
    if values.boolean("use_bidirectional_attention"):
        values.fail("use_bidirectional_attention", "false or null")
    # Old files also have a `hidden_act`, of no meaning.
    activation = values.values.get("hidden_activation") or min(entry.activations)
    values = Metadata(
        values.path, {**values.values, "hidden_act": activation}, word="key", remedy=values.remedy
    )
    config = dense_decoder(values, entry)
    windowed = config.windowed_layers
    if config.sliding_window is not None and not values.texts("layer_types"):
        windowed = tuple((layer + 1) % period != 0 for layer in range(config.num_layers))
    scalar = values.number("query_pre_attn_scalar", low=0, high=1e6, default=0.0)
    return replace(
        config,
        windowed_layers=windowed,
        attention_scale=1 / math.sqrt(scalar) if scalar else None,
        attention_softcap=values.number("attn_logit_softcapping", low=0, high=1e6, default=0.0),
        logit_softcap=values.number("final_logit_softcapping", low=0, high=1e6, default=0.0),
        embedding_scale=math.sqrt(config.hidden_size),
        norm_offset=1.0,
    )


def _smollm3(values: Metadata, entry: HFArchitecture) -> ModelConfig:
    config = dense_decoder(values, entry)
    interval = values.integer("no_rope_layer_interval", low=1, high=4096, default=4)
    rotated = values.integers("no_rope_layers", low=0, high=1)
    rotated = rotated or tuple(int((layer + 1) % interval != 0) for layer in range(config.num_layers))
    if len(rotated) < config.num_layers:
        values.fail("no_rope_layers", f"0 or 1 for each of the {config.num_layers} layers")
    return replace(config, unrotated_layers=tuple(not r for r in rotated[: config.num_layers]))


def _with_experts(
    moe: Callable[[Metadata, ModelConfig], MoeConfig],
) -> Callable[[Metadata, HFArchitecture], ModelConfig]:
    """What dense decoders have, and experts."""

    def config(values: Metadata, entry: HFArchitecture) -> ModelConfig:
        dense = dense_decoder(values, entry)
        return replace(dense, moe=moe(values, dense))

    return config


def _gpt_oss(values: Metadata, entry: HFArchitecture) -> ModelConfig:
    """Windows in every other layer, the first one included, where nothing else is said."""
    config = _with_experts(hf_experts.gpt_oss)(values, entry)
    if config.sliding_window is None or values.texts("layer_types"):
        return config
    return replace(config, windowed_layers=tuple(i % 2 == 0 for i in range(config.num_layers)))


_GLM = HFArchitecture(
    family="llama",
    config=dense_decoder,
    layer_tensors=GLM_TENSORS,
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 128,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-7,
    },
    rope_interleaved=True,
)
_GEMMA3 = HFArchitecture(
    family="gemma3",
    config=_gemma3,
    layer_tensors={**GEMMA_TENSORS, **HEAD_NORMS},
    defaults={  # multimodal files leave out most of the text model's
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "rope_theta": 1e6,
    },
    tied=True,
    activations=frozenset({"gelu_pytorch_tanh"}),
)
_MISTRAL = HFArchitecture(
    family="llama",
    config=dense_decoder,
    defaults={"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 4096 * 32},
)

ARCHITECTURES: dict[str, HFArchitecture] = {
    "ernie4_5_moe": HFArchitecture(
        family="mixtral",
        config=_with_experts(hf_experts.ernie),
        layer_tensors={**DENSE_TENSORS, **hf_experts.ERNIE_TENSORS},
        ignored=(r"mtp.*",),  # predictors of further tokens, for speculation
        defaults={"rope_theta": 500000.0, "max_position_embeddings": 131072, "num_key_value_heads": 4},
        tied=True,
        rope_interleaved=True,
    ),
    "gpt_oss": HFArchitecture(
        family="gpt_oss",
        config=_gpt_oss,
        layer_tensors={**DENSE_TENSORS, **hf_experts.GPT_OSS_TENSORS},
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
            "max_position_embeddings": 131072,
            "rope_theta": 150000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
    ),
    "mixtral": HFArchitecture(
        family="mixtral",
        config=_with_experts(hf_experts.mixtral),
        layer_tensors={**DENSE_TENSORS, **hf_experts.MIXTRAL_TENSORS},
        defaults={"num_key_value_heads": 8, "rope_theta": 1e6, "max_position_embeddings": 4096 * 32},
    ),
    "qwen2_moe": HFArchitecture(
        family="mixtral",
        config=_with_experts(partial(hf_experts.qwen, shared=True)),
        layer_tensors={**DENSE_TENSORS, **hf_experts.QWEN_TENSORS},
        defaults={
            "num_key_value_heads": 16,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "max_position_embeddings": 32768,
        },
    ),
    "qwen3_moe": HFArchitecture(
        family="qwen3_moe",
        config=_with_experts(partial(hf_experts.qwen, shared=False)),
        layer_tensors={**DENSE_TENSORS, **hf_experts.QWEN_TENSORS, **HEAD_NORMS},
        defaults={
            "num_key_value_heads": 4,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "max_position_embeddings": 32768,
        },
    ),
    "ernie4_5": HFArchitecture(
        family="llama",
        config=dense_decoder,
        defaults={
            "num_key_value_heads": 2,
            "head_dim": 128,
            "rope_theta": 500000.0,
            "max_position_embeddings": 131072,
        },
        tied=True,
        rope_interleaved=True,
    ),
    "gemma": HFArchitecture(
        family="gemma1",
        config=_gemma1,
        defaults={"head_dim": 256, "max_position_embeddings": 8192},
        tied=True,
        activations=frozenset({"gelu_pytorch_tanh"}),
    ),
    "gemma2": HFArchitecture(
        family="gemma2",
        config=_gemma2,
        layer_tensors=GEMMA_TENSORS,
        defaults={
            "head_dim": 256,
            "num_key_value_heads": 4,
            "max_position_embeddings": 8192,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        tied=True,
        activations=frozenset({"gelu_pytorch_tanh"}),
    ),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "glm": _GLM,
    "glm4": replace(
        _GLM,
        family="glm4",
        layer_tensors={
            **GLM_TENSORS,
            "post_self_attn_layernorm": "attn_post_norm",
            "post_mlp_layernorm": "mlp_post_norm",
        },
    ),
    "internlm2": HFArchitecture(
        family="llama",
        config=dense_decoder,
        layer_tensors={
            "attention_norm": "attn_norm",
            "attention.wqkv": grouped_qkv,
            "attention.wo": "o",
            "ffn_norm": "mlp_norm",
            "feed_forward.w1": "gate",
            "feed_forward.w3": "up",
            "feed_forward.w2": "down",
        },
        global_tensors={"tok_embeddings": "embed", "norm": "norm", "output": "head"},
    ),
    "internlm3": HFArchitecture(
        family="llama",
        config=dense_decoder,
        defaults={"head_dim": 128, "num_key_value_heads": 2, "max_position_embeddings": 32768},
    ),
    "llama": HFArchitecture(family="llama", config=dense_decoder),
    "ministral": _MISTRAL,
    "ministral3": HFArchitecture(
        family="llama",
        config=dense_decoder,
        defaults={"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144},
    ),
    "mistral": _MISTRAL,
    "phi3": HFArchitecture(
        family="llama",
        config=dense_decoder,
        layer_tensors={**DENSE_TENSORS, "self_attn.qkv_proj": qkv, "mlp.gate_up_proj": gate_up},
        defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    ),
    "qwen2": HFArchitecture(
        family="llama",
        config=dense_decoder,
        defaults={
            "num_key_value_heads": 32,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "max_position_embeddings": 32768,
        },
    ),
    "qwen3": HFArchitecture(
        family="qwen3",
        config=dense_decoder,
        layer_tensors={**DENSE_TENSORS, **HEAD_NORMS},
        defaults={
            "num_key_value_heads": 32,
            "head_dim": 128,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "max_position_embeddings": 32768,
        },
    ),
    "smollm3": HFArchitecture(
        family="llama",
        config=_smollm3,
        defaults={
            "num_key_value_heads": 4,
            "use_sliding_window": False,
            "max_position_embeddings": 32768,
            "rope_theta": 2e6,
        },
        tied=True,
    ),
}
"""By `model_type`."""
