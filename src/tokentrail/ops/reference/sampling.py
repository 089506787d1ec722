"""Sampling of one row, written for reading: the definition that the native sampler is compared with.

Order: penalties, logit bias, mask, temperature, min-p, top-k, top-p, draw; equal values are ordered by token id;
reported log-probabilities are those of the raw logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = Mapping[str, npt.NDArray[Any] | None]


MASK = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): four 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK, (a >> 32) ^ c3 ^ k1, a & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def philox_uniform(seed: int, choice: int, position: int) -> float:
    """Counter (position, choice, 0, 0) under key `seed` → [0, 1), from the first two words: 53 bits."""
    high, low, _, _ = philox((position & MASK, choice & MASK, 0, 0), (seed & MASK, (seed >> 32) & MASK))
    return float((high << 32 | low) >> 11) * 2.0**-53


def _ragged(rows: Rows, name: str, i: int) -> npt.NDArray[Any]:
    tokens, offsets = rows.get(f"{name}_tokens"), rows.get(f"{name}_offsets")
    if tokens is None or offsets is None:
        return np.zeros(0, np.int32)
    return tokens[offsets[i] : offsets[i + 1]]


def adjusted_logits(raw: npt.NDArray[np.float64], i: int, rows: Rows) -> npt.NDArray[np.float64]:
    """Penalties, biases and mask of row `i` applied to its logits."""
    x: npt.NDArray[np.float64] = raw.copy()
    prompt, output = _ragged(rows, "prompt", i), _ragged(rows, "output", i)
    if rows.get("output_offsets") is not None:
        repetition, frequency, presence = (
            float(rows[f"{kind}_penalty"][i])  # type: ignore[index]
            for kind in ("repetition", "frequency", "presence")
        )
        counts = np.bincount(output, minlength=len(x))
        seen = counts.astype(bool)
        seen[prompt] = True
        x = np.where(seen, np.where(x > 0, x / repetition, x * repetition), x)
        x -= frequency * counts + presence * (counts > 0)
    offsets, values = rows.get("bias_offsets"), rows.get("bias_values")
    if offsets is not None and values is not None:
        np.add.at(x, _ragged(rows, "bias", i), values[offsets[i] : offsets[i + 1]])
    masks, mask_rows = rows.get("masks"), rows.get("mask_rows")
    if masks is not None and mask_rows is not None and mask_rows[i] >= 0:
        bits = np.unpackbits(masks[mask_rows[i]].astype("<u4").view(np.uint8), bitorder="little")
        x[bits[: len(x)] == 0] = -np.inf
    return x


def candidates(
    x: npt.NDArray[np.float64],
    temperature: float,
    min_p: float,
    top_k: int,
    top_p: float,
    typical_p: float = 1.0,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Tokens that may be drawn and their weights, in the order in which the draw walks them: ascending."""
    p = np.exp((x - x.max()) / temperature)
    order = np.lexsort((np.arange(len(p)), -p))
    order = order[p[order] >= max(min_p, float(np.finfo(np.float32).tiny))]
    if top_k >= len(x):
        top_k = 0  # off
    if top_k > 0:
        order = order[:top_k]
    if top_p < 1:
        cumulative = np.cumsum(p[order])
        order = order[: int(np.searchsorted(cumulative, top_p * cumulative[-1])) + 1]
    order = np.sort(order)
    if typical_p < 1:
        q = p[order] / p[order].sum()
        surprise = -np.log(q)
        nearest = np.argsort(np.abs(surprise - (q * surprise).sum()).astype(np.float32), kind="stable")
        kept = int(np.searchsorted(np.cumsum(q[nearest]), typical_p)) + 1
        order = order[np.sort(nearest[:kept])]
    return order, p[order]


def sample_row(
    logits: npt.NDArray[np.float32], i: int, top_width: int, rows: Rows
) -> tuple[int, float, list[int], list[float]]:
    """Token, its log-probability; ids (-1 beyond what the row asked for) and log-probabilities of its alternatives."""

    def of(name: str) -> Any:
        array = rows[name]
        assert array is not None
        return array[i]

    raw = logits.astype(np.float64)
    logprobs = raw - (raw.max() + np.log(np.exp(raw - raw.max()).sum()))
    best = np.lexsort((np.arange(len(raw)), -raw))[: int(of("num_top"))]
    padding = top_width - len(best)
    top_ids = [*best.tolist(), *[-1] * padding]
    top_logprobs = [*logprobs[best].tolist(), *[0.0] * padding]
    token = int(of("target"))
    if token < 0:
        x = adjusted_logits(raw, i, rows)
        if of("temperature") == 0 or x.max() == -np.inf:  # nothing is allowed: what greedy takes
            token = int(np.argmax(x))
        else:
            typical_p = rows.get("typical_p")
            ids, weights = candidates(
                x,
                float(of("temperature")),
                float(of("min_p")),
                int(of("top_k")),
                float(of("top_p")),
                1.0 if typical_p is None else float(typical_p[i]),
            )
            u = philox_uniform(int(of("seed")), int(of("choice")), int(of("position")))
            token = int(
                ids[
                    min(
                        int(np.searchsorted(np.cumsum(weights), u * weights.sum(), side="right")),
                        len(ids) - 1,
                    )
                ]
            )
    return token, float(logprobs[token]), top_ids, top_logprobs
