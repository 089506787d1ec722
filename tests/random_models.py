"""Llama checkpoints with random weights, built in memory: small enough to run in milliseconds, of any shape and format.

Weights come from `RandomState`, whose streams NumPy keeps for good (NEP 19): golden files need not hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints import Checkpoint, ModelConfig, RopeConfig, Tensor
from tokentrail.checkpoints.layout import tensor_shapes
from tokentrail.checkpoints.model import TokenizerSource

F32 = npt.NDArray[np.float32]


def store(values: F32, format: str) -> npt.NDArray[np.uint8]:
    """A float32 array as the bytes of a GGUF type, flat."""
    values = np.ascontiguousarray(values, np.float32)
    if format == "F32":
        return values.view(np.uint8).reshape(-1)
    return gguf.quantize(values, gguf.GGMLQuantizationType[format]).view(np.uint8).reshape(-1)


def small_config(**changes: Any) -> ModelConfig:
    """Two layers, four query heads over two KV heads; `changes` replace fields."""
    config = ModelConfig(
        architecture="llama",
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position=4096,
        rms_norm_eps=1e-5,
        rope=RopeConfig(dim=16),
    )
    return replace(config, **changes)


def random_weights(config: ModelConfig, *, seed: int = 0, biases: bool = False) -> dict[str, F32]:
    """Canonical name → float32 array, scaled so that activations stay near 1 and attention is not flat."""
    random = np.random.RandomState(seed)
    required, optional = tensor_shapes(config)
    shapes = dict(required)
    if biases:
        layers = {name: shape for name, shape in optional.items() if name.startswith("layers.")}
        shapes |= {name: shape for name, shape in layers.items() if name.endswith(".bias")}
    weights = {}
    for name in sorted(shapes):
        shape = shapes[name]
        values = random.standard_normal(shape).astype(np.float32)
        if len(shape) == 2:
            gain = 2.0 if name.endswith((".q", ".k")) else 1.0
            weights[name] = values if name == "embed" else values * np.float32(gain / np.sqrt(shape[1]))
        else:
            weights[name] = values * np.float32(0.1) + np.float32(0 if name.endswith("bias") else 1)
    return weights


def checkpoint_of(
    config: ModelConfig, weights: dict[str, F32], format: str | Callable[[str], str] = "F32"
) -> Checkpoint:
    """The weights as a checkpoint; `format` is that of the matrices, one for all or by name. Vectors are F32."""
    tensors = {}
    for name, values in weights.items():
        stored = ("F32" if values.ndim == 1 else format) if isinstance(format, str) else format(name)
        tensors[name] = Tensor(name, values.shape, stored, store(values, stored))
    return Checkpoint(
        path=Path("random.gguf"),
        name="random",
        config=config,
        tensors=tensors,
        tokenizer=TokenizerSource(kind="gpt2"),
        chat_template=None,
        eos_token_ids=(),
        fingerprint="random",
    )


def random_checkpoint(
    config: ModelConfig | None = None,
    *,
    format: str | Callable[[str], str] = "F32",
    seed: int = 0,
    biases: bool = False,
) -> Checkpoint:
    config = small_config() if config is None else config
    return checkpoint_of(config, random_weights(config, seed=seed, biases=biases), format)
