"""The Llama models that are compared with transformers: one a feature of the family. Small, with random weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from random_models import F32, checkpoint_of, random_weights, small_config
from tokentrail.checkpoints import Checkpoint, ModelConfig, RopeConfig

LENGTH = 40
"""Tokens of the text that is compared."""


@dataclass(frozen=True)
class Case:
    config: ModelConfig
    """With `rope.interleaved` False: weights in the order of Hugging Face's files."""
    biases: bool = False
    formats: dict[str, str] = field(default_factory=dict)
    """Format of a matrix by the last part of its name; F32 where not named."""
    seed: int = 0

    def checkpoint(self) -> Checkpoint:
        weights = random_weights(self.config, seed=self.seed, biases=self.biases)
        return checkpoint_of(self.config, weights, lambda name: self.formats.get(name.split(".")[-1], "F32"))

    def tokens(self) -> list[int]:
        random = np.random.RandomState(1000 + self.seed)
        return random.randint(0, self.config.vocab_size, LENGTH).tolist()


CASES: dict[str, Case] = {
    "grouped_queries": Case(small_config(), seed=1),
    "one_kv_head": Case(small_config(num_kv_heads=1), seed=2),
    "as_many_kv_heads": Case(small_config(num_kv_heads=4), seed=3),
    "tied": Case(small_config(tie_embeddings=True), seed=4),
    "biases": Case(small_config(), biases=True, seed=5),
    "wide_heads": Case(small_config(head_dim=32, rope=RopeConfig(dim=32, theta=500000.0)), seed=6),
    "sliding_window": Case(small_config(sliding_window=8), seed=7),
    "linear_rope": Case(small_config(rope=RopeConfig(dim=16, scaling="linear", factor=2.0)), seed=8),
    "llama3_rope": Case(
        small_config(rope=RopeConfig(dim=16, scaling="llama3", factor=8.0, original_max_position=32)), seed=9
    ),
    "yarn_rope": Case(
        small_config(
            rope=RopeConfig(
                dim=16,
                scaling="yarn",
                factor=4.0,
                original_max_position=1024,
                attention_factor=0.1 * math.log(4.0) + 1.0,
                beta_fast=8.0,
            )
        ),
        seed=10,
    ),
    "stored_formats": Case(
        small_config(num_layers=3),
        formats={
            "embed": "Q8_0",
            "q": "Q4_0",
            "k": "Q4_1",
            "v": "F16",
            "o": "BF16",
            "gate": "Q4_0",
            "up": "Q4_1",
            "down": "Q8_0",
            "head": "Q4_1",
        },
        seed=11,
    ),
}


def in_gguf_order(case: Case) -> Checkpoint:
    """The same model as GGUF's converter stores it: rows of q and k permuted so that rotated pairs are neighbours."""
    config = case.config
    weights = random_weights(config, seed=case.seed, biases=case.biases)

    def permuted(values: F32, heads: int) -> F32:
        halves = values.reshape(heads, 2, config.head_dim // 2, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)

    for name in weights:
        part = name.removesuffix(".bias").split(".")[-1]
        if part in ("q", "k"):
            weights[name] = permuted(weights[name], config.num_heads if part == "q" else config.num_kv_heads)
    interleaved = replace(config, rope=replace(config.rope, interleaved=True))
    return checkpoint_of(interleaved, weights)


def with_rope_factors(case: Case) -> Checkpoint:
    """Llama 3's scaling as GGUF has it: a tensor of divisors instead of numbers in the configuration."""
    rope = case.config.rope
    factors = []
    for i in range(rope.dim // 2):
        wavelength = 2 * math.pi * rope.theta ** (2 * i / rope.dim)
        turns = rope.original_max_position / wavelength
        share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        share = min(max(share, 0.0), 1.0)
        factors.append(1 / ((1 - share) / rope.factor + share))
    plain = replace(case.config, rope=RopeConfig(dim=rope.dim, theta=rope.theta))
    weights = random_weights(case.config, seed=case.seed, biases=case.biases)
    return checkpoint_of(plain, {**weights, "rope_freqs": np.array(factors, np.float32)})
