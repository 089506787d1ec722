"""Rotary frequencies and their scalings, computed once at load in double precision."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints import RopeConfig
from tokentrail.ops.backend import Backend


@dataclass(frozen=True)
class RopeAngles:
    """`frequencies` [dim / 2] in radians a position; cos and sin are multiplied by `magnitude`."""

    frequencies: tuple[float, ...]
    magnitude: float = 1.0


def rope_angles(
    config: RopeConfig, backend: Backend, factors: npt.NDArray[np.float32] | None = None
) -> RopeAngles:
    """Frequencies theta^(-2i/dim) under the model's scaling. `factors` [dim / 2] divide them (Llama 3, LongRoPE)."""
    base = backend.rope_frequencies(config.dim, config.theta)
    if factors is not None:
        base = tuple(f / float(by) for f, by in zip(base, factors, strict=True))
    if config.scaling == "none":
        return RopeAngles(base, config.attention_factor)
    if config.scaling == "linear":
        return RopeAngles(tuple(f / config.factor for f in base), config.attention_factor)
    if config.scaling == "llama3":
        return RopeAngles(tuple(_llama3(f, config) for f in base), config.attention_factor)
    if config.scaling == "yarn":
        return _yarn(base, config)
    raise ValueError(f"unknown RoPE scaling {config.scaling!r}")


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


def _yarn(base: tuple[float, ...], config: RopeConfig) -> RopeAngles:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): interpolate dimensions that turn few times within the context."""
    original = config.original_max_position

    def dimension(turns: float) -> float:
        return config.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low = max(math.floor(dimension(config.beta_fast)), 0)
    high = min(math.ceil(dimension(config.beta_slow)), config.dim - 1)
    frequencies = []
    for i, f in enumerate(base):
        ramp = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        frequencies.append(f / config.factor * ramp + f * (1 - ramp))
    return RopeAngles(tuple(frequencies), config.attention_factor)
