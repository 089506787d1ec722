"""Tensors that files store as one and models take as several: which rows are whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokentrail.checkpoints.errors import CONVERT_AGAIN, file_error, quoted
from tokentrail.checkpoints.hf_tensors import Cut, Fused, cut_tensor
from tokentrail.checkpoints.model import ModelConfig, Tensor


def qkv(config: ModelConfig) -> Sequence[Cut]:
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return Cut("q", 0, q), Cut("k", q, q + kv), Cut("v", q + kv)


def grouped_qkv(config: ModelConfig) -> Sequence[Cut]:
    """For each key and value head: its query heads, then itself."""
    d = config.head_dim
    queries = config.num_heads // config.num_kv_heads * d
    period = queries + 2 * d
    return (
        Cut("q", 0, queries, period=period),
        Cut("k", queries, queries + d, period=period),
        Cut("v", queries + d, period, period=period),
    )


def gate_up(config: ModelConfig) -> Sequence[Cut]:
    return Cut("gate", 0, config.intermediate_size), Cut("up", config.intermediate_size)


FUSED: Mapping[str, Fused] = {"qkv": qkv, "gate_up": gate_up}
"""By the name that a layer's tensor has before it is cut."""


def cut_fused(
    path: Path, config: ModelConfig, tensors: Mapping[str, Tensor], stored_names: Mapping[str, str]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """`layers.3.qkv`, `layers.3.qkv.bias` … as tensors of their own, views; and the names of all in the file.

    Raises `ModelFileError` where a tensor has too few rows, or the file also has a part of it by itself.
    """
    out: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(".bias")
        prefix, _, part = stem.rpartition(".")
        parts = {name: tensor}
        if part in FUSED:
            parts = {
                own: cut_tensor(path, tensor, cut, own)
                for cut in FUSED[part](config)
                for own in (f"{prefix}.{cut.name}{name[len(stem) :]}",)
            }
        for own in parts:
            if own in out:
                problem = f"tensors {quoted(names[own])} and {quoted(stored_names[name])} are the same one"
                raise file_error(path, problem, CONVERT_AGAIN)
            names[own] = stored_names[name]
        out |= parts
    return out, names
