"""Our checkpoints in transformers, in float32: the oracle of the model families. Needs the `oracle` extra."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from tokentrail.checkpoints import Checkpoint, ModelConfig, RopeConfig, dequantize

F32 = npt.NDArray[np.float32]

LAYER_NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}
GLOBAL_NAMES = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}


def load(checkpoint: Checkpoint) -> Any:
    """The checkpoint as `LlamaForCausalLM` (or Mistral's, where there is a sliding window) with dequantized weights."""
    config = checkpoint.config
    state = {
        _name(name): torch.from_numpy(_in_halves(name, dequantize(t.data, t.format, t.shape), config))
        for name, t in checkpoint.tensors.items()
        if name != "rope_freqs"
    }
    if "rope_freqs" in checkpoint.tensors:
        raise ValueError("give the oracle the scaling as numbers")
    biases = any(name.endswith(".bias") for name in checkpoint.tensors)
    settings: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_embeddings,
        "attn_implementation": "eager",
        **_rope(config.rope),
    }
    if config.sliding_window is None:
        settings |= {"attention_bias": biases, "mlp_bias": biases}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    else:
        settings["sliding_window"] = config.sliding_window
        model = transformers.MistralForCausalLM(transformers.MistralConfig(**settings))
    if config.tie_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model.float().eval()


def logits(model: Any, tokens: Sequence[int]) -> F32:
    """[tokens, vocab]"""
    with torch.no_grad():
        values: F32 = model(torch.tensor([list(tokens)])).logits[0].numpy()
    return values


def _name(name: str) -> str:
    stem, kind = (name.removesuffix(".bias"), "bias") if name.endswith(".bias") else (name, "weight")
    if stem in GLOBAL_NAMES:
        return f"{GLOBAL_NAMES[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def _in_halves(name: str, values: F32, config: ModelConfig) -> F32:
    """Rows of q and k in the order of Hugging Face, whichever they are stored in."""
    part = name.removesuffix(".bias").split(".")[-1]
    if not config.rope.interleaved or part not in ("q", "k"):
        return values
    heads = config.num_heads if part == "q" else config.num_kv_heads
    pairs = values.reshape(heads, config.head_dim // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _rope(rope: RopeConfig) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": "default" if rope.scaling == "none" else rope.scaling}
    if rope.scaling != "none":
        scaling["factor"] = rope.factor
    if rope.scaling in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = rope.original_max_position
    if rope.scaling == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.scaling == "yarn":
        scaling |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow}
    if int(transformers.__version__.split(".")[0]) >= 5:
        return {"rope_parameters": {**scaling, "rope_theta": rope.theta}}
    return {"rope_theta": rope.theta, "rope_scaling": None if rope.scaling == "none" else scaling}


def saved(case: Any) -> dict[str, Any]:
    """config.json and the names and shapes of tensors, as transformers saves a model of a case's configuration."""
    config = getattr(transformers, case.config_class)(**case.settings)
    with tempfile.TemporaryDirectory() as folder:
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        values = json.loads((Path(folder) / "config.json").read_text())
        stored = (Path(folder) / "model.safetensors").read_bytes()
    for key in ("transformers_version", "dtype", "torch_dtype"):
        values.pop(key, None)
    header = json.loads(stored[8 : 8 + int.from_bytes(stored[:8], "little")])
    shapes = {name: entry["shape"] for name, entry in sorted(header.items()) if name != "__metadata__"}
    return {"config": values, "shapes": shapes}


def logits_of_folder(folder: Path, tokens: Sequence[int], *, again: Path | None = None) -> F32:
    """[tokens, vocab] of a checkpoint in float32; saved once more, to the folder `again`."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    if info["missing_keys"] or info["unexpected_keys"]:
        raise ValueError(f"the folder does not hold the model: {info}")
    if again is not None:
        model.save_pretrained(again)
    return logits(model.eval(), tokens)
