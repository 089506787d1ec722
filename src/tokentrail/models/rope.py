"""Rotary frequencies and their scalings, computed once at load in double precision.

Scalings that depend on a text's length elsewhere (dynamic NTK, LongRoPE) depend on the longest context served here: a
token's keys are the same bits however long the text becomes, and blocks of the prefix cache stay true.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints import RopeConfig
from tokentrail.ops.backend import Backend


@dataclass(frozen=True)
class RopeAngles:
    """`frequencies` [dim / 2] in radians a position; cos and sin are multiplied by `magnitude`."""

    frequencies: tuple[float, ...]
    magnitude: float = 1.0
    growth: float = 0.0
    """Queries are also multiplied by 1 + growth · ln(1 + ⌊position / period⌋)."""
    period: int = 1
    windowed: RopeAngles | None = None
    """Those of layers with a sliding window, where they differ."""


def rope_angles(
    config: RopeConfig,
    backend: Backend,
    factors: npt.NDArray[np.float32] | None = None,
    *,
    context: int,
) -> RopeAngles:
    """Frequencies theta^(-2i/dim) under the model's scaling, for contexts of at most `context` tokens.

    `factors` [dim / 2] divide them first (how GGUF stores Llama 3's scaling).
    """
    if config.scaling == "dynamic":
        config = _dynamic(config, context)
    base = backend.rope_frequencies(config.dim, config.theta)
    if factors is not None:
        base = _divided(base, factors)
    if config.scaling == "none":
        return RopeAngles(base, config.attention_factor)
    if config.scaling == "linear":
        return RopeAngles(tuple(f / config.factor for f in base), config.attention_factor)
    if config.scaling == "llama3":
        return RopeAngles(tuple(_llama3(f, config) for f in base), config.attention_factor)
    if config.scaling == "yarn":
        angles = RopeAngles(_yarn(base, config), config.attention_factor)
        return replace(angles, growth=config.query_growth, period=config.original_max_position)
    if config.scaling == "longrope":
        long = context > config.original_max_position
        stretch = config.long_factors if long else config.short_factors
        return RopeAngles(_divided(base, stretch), config.attention_factor)
    raise ValueError(f"unknown RoPE scaling {config.scaling!r}")


def _divided(frequencies: tuple[float, ...], by: Iterable[float]) -> tuple[float, ...]:
    return tuple(f / float(divisor) for f, divisor in zip(frequencies, by, strict=True))


def _dynamic(config: RopeConfig, context: int) -> RopeConfig:
    """Dynamic NTK (bloc97 and emozilla, 2023): a larger base for longer contexts, as if one of `context` tokens ran."""
    original, factor = config.original_max_position, config.factor
    stretch = factor * max(context, original) / original - (factor - 1)
    theta = config.theta * stretch ** (config.dim / (config.dim - 2))
    return replace(config, theta=theta, scaling="none")


def _llama3(frequency: float, config: RopeConfig) -> float:
    """Llama 3.1: long waves are stretched by `factor`, short ones kept, those between mixed."""
    wavelength = 2 * math.pi / frequency
    low, high = config.low_freq_factor, config.high_freq_factor
    if wavelength < config.original_max_position / high:
        return frequency
    if wavelength > config.original_max_position / low:
        return frequency / config.factor
    smooth = (config.original_max_position / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / config.factor + smooth * frequency


def _yarn(base: tuple[float, ...], config: RopeConfig) -> tuple[float, ...]:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): interpolate dimensions that turn few times within the context."""
    original = config.original_max_position

    def dimension(turns: float) -> float:
        return config.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.dim - 1)
    frequencies = []
    for i, f in enumerate(base):
        ramp = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        frequencies.append(f / config.factor * ramp + f * (1 - ramp))
    return tuple(frequencies)
