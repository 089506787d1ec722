"""Runs recorded programs call by call in float64.

Two roundings belong to an op's definition and are done here too: activations before integer weights are rounded to
int8 groups, and keys, values, queries and attention weights to the cache's type. Everything else is exact
arithmetic as far as float64 goes, so a native kernel must agree to float32's precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrail.ops.backend import F32, I32, Executable, KvLayout, Limits, MatrixShape, Stored
from tokentrail.ops.program import OUTLIERS, Call, Linear, Program
from tokentrail.ops.reference.sampling import sample_row

F64 = npt.NDArray[np.float64]
Dequantize = Callable[[npt.NDArray[np.uint8], str, tuple[int, ...]], F32]

GROUP = 32
FLOAT_FORMATS = frozenset({"F32", "F16", "BF16"})
"""Weights in these are multiplied with activations as they are; before all others activations are rounded."""
SEGMENT = 256
WEIGHT_LEVELS = 2**14 - 1
"""Attention weights over int8 values are whole numbers up to this, in steps of a segment's largest."""


@dataclass(frozen=True)
class ReferenceMatrix:
    values: F64  # [n, k]
    integer: bool

    @property
    def n(self) -> int:
        return int(self.values.shape[0])

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)


class ReferenceBackend:
    """`dequantize` says what stored formats mean (`checkpoints.dequantize`; passed in, since ops know no formats)."""

    name = "reference"
    isa = "numpy"
    threads = 1

    def __init__(self, dequantize: Dequantize) -> None:
        self._dequantize = dequantize

    def is_integer(self, format: str) -> bool:
        return format not in FLOAT_FORMATS

    def matrix(self, format: str, data: npt.NDArray[np.uint8], n: int, k: int) -> ReferenceMatrix:
        return ReferenceMatrix(
            self._dequantize(data, format, (n, k)).astype(np.float64), self.is_integer(format)
        )

    def matrices(self, stored: Sequence[Stored]) -> list[Any]:
        return [self.matrix(*one) for one in stored]

    def packed_bytes(self, format: str, n: int, k: int) -> int:
        return n * k * 8

    def matrix_shape(self, format: str, n: int, k: int) -> MatrixShape:
        return MatrixShape(n, k, self.packed_bytes(format, n, k), self.is_integer(format), "f64")

    def buffer_bytes(self, program: Program, kv: KvLayout, limits: Limits, vocab: int) -> int:
        rows = {"tokens": limits.tokens, "logits": limits.logit_rows}
        return sum(8 * rows[value.rows] * value.dim for value in program.values)

    def rope_frequencies(self, dim: int, theta: float) -> tuple[float, ...]:
        return tuple(theta ** (-2 * i / dim) for i in range(dim // 2))

    def compile(
        self, program: Program, kv: KvLayout, limits: Limits, vocab: int, *, eager: bool = False
    ) -> Executable:
        return ReferenceExecutable(program, kv)


def quantize_rows(x: F64, outlier_limit: float = 1.0) -> F64:
    """Rows as integer products see them: groups of 32 in int8 steps of max|x| / 127.

    Steps over twice sqrt(`outlier_limit` · the row's mean of step²) become that: outliers take two bytes.
    """
    groups = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // GROUP, GROUP)
    top = np.abs(groups).max(-1, keepdims=True)
    step = np.where(top > 1e-20, top / np.float32(127), np.float32(0))
    # In the kernels' order, one after the other: a step that differs in its last bit rounds some values otherwise.
    squares = np.cumsum(step * step, axis=-2, dtype=np.float32)[..., -1:, :]
    limit = np.sqrt(squares / np.float32(step.shape[-2]) * np.float32(outlier_limit))
    step = np.where(step > 2 * limit, np.maximum(limit, step * np.float32(1 / 15)), step)
    rounded = np.rint(groups * np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0))
    seen: F64 = (step.astype(np.float64) * rounded).reshape(x.shape)
    return seen


def int8_steps(x: F64) -> F64:
    """max|x| / 127 of each row [..., n], in float32."""
    top = np.abs(x.astype(np.float32)).max(-1)
    steps: F64 = np.where(top > 1e-20, top / np.float32(127), np.float32(0)).astype(np.float64)
    return steps


def round_int8(x: F64) -> F64:
    """Rows [..., n] in whole steps of max|x| / 127."""
    step = int8_steps(x)[..., None].astype(np.float32)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    rounded: F64 = np.rint(x.astype(np.float32) * inverse).astype(np.float64) * step
    return rounded


def round_bfloat16(x: F64) -> F64:
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    values: F64 = rounded.view(np.float32).astype(np.float64)
    return values


def _product(x: F64, layer: Linear, outlier_limit: float) -> F64:
    if layer.weight.integer:
        x = quantize_rows(x, outlier_limit)
    out: F64 = x @ layer.weight.values.T
    return out if layer.bias is None else out + layer.bias


def _sigmoid(x: F64) -> F64:
    values: F64 = 1 / (1 + np.exp(-x))
    return values


def _gated(gate: F64, up: F64, activation: str) -> F64:
    """As `ops.program.ACTIVATIONS` defines them."""
    if activation == "gelu_tanh":
        product: F64 = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
        return product
    if activation == "swiglu_oai":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return gate * _sigmoid(1.702 * gate) * (up + 1)
    return gate * _sigmoid(gate) * up


@dataclass
class _Step:
    tokens: I32
    positions: I32
    row_starts: I32
    block_tables: I32
    logit_rows: I32
    adapters: I32 | None


class ReferenceExecutable:
    def __init__(self, program: Program, kv: KvLayout) -> None:
        self.program, self.kv = program, kv
        shape = (kv.layers, kv.blocks, kv.block_size, kv.heads, kv.head_dim)
        self.keys, self.cached_values = np.zeros(shape), np.zeros(shape)
        self.value_steps = np.zeros(shape[:-1])
        """Of an int8 cache: what a value's unit stands for."""
        self.values: dict[int, F64] = {}
        """Every value of the last step, by id: what a native kernel's buffer is compared with."""

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes * 2)

    def forward(
        self,
        tokens: I32,
        positions: I32,
        row_starts: I32,
        block_tables: I32,
        logit_rows: I32,
        adapters: I32 | None = None,
        *,
        states: bool = False,
    ) -> F32:
        step = _Step(tokens, positions, row_starts, block_tables, logit_rows, adapters)
        self.values = {}
        for call in self.program.calls:
            result = getattr(self, "_" + call.kernel)(step, call, *(self.values[i] for i in call.inputs))
            if call.output is not None:
                self.values[call.output] = result
        return self.values[self.program.logits].astype(np.float32)

    def states(self, tokens: int) -> F32:
        assert self.program.states is not None
        return self.values[self.program.states].astype(np.float32)

    def sample(
        self, logits: F32, top_width: int, **rows: npt.NDArray[Any] | None
    ) -> tuple[I32, F32, I32, F32]:
        results = [sample_row(logits[i], i, top_width, rows) for i in range(len(logits))]
        tokens, logprobs, top_ids, top_logprobs = zip(*results, strict=True) if results else ([], [], [], [])
        return (
            np.array(tokens, np.int32),
            np.array(logprobs, np.float32),
            np.array(top_ids, np.int32).reshape(len(results), top_width),
            np.array(top_logprobs, np.float32).reshape(len(results), top_width),
        )

    def _embedding(self, step: _Step, call: Call) -> F64:
        rows: F64 = call.weights[0].values[step.tokens] * call.params["scale"]
        return rows

    def _rms_norm(self, step: _Step, call: Call, x: F64) -> F64:
        weight = call.weights[0].astype(np.float64) + call.params["weight_offset"]
        heads = x.reshape(len(x), call.params["heads"], -1)
        normed: F64 = heads / np.sqrt((heads * heads).mean(-1, keepdims=True) + call.params["eps"]) * weight
        return normed.reshape(x.shape)

    def _linear(self, step: _Step, call: Call, x: F64, residual: F64 | None = None) -> F64:
        out = _product(x, Linear(*call.weights), self.program.outlier_limit(call.inputs[0]))
        return out if residual is None else out + residual

    def _gather_columns(self, step: _Step, call: Call, x: F64) -> F64:
        gathered: F64 = x[:, call.weights[0]]
        return gathered

    def _lora(self, step: _Step, call: Call, x: F64, y: F64) -> F64:
        if step.adapters is None:
            return y
        of_row = np.repeat(step.adapters, np.diff(step.row_starts))
        if self.program.values[call.inputs[1]].rows == "logits":
            of_row = of_row[step.logit_rows]
        out: F64 = y.copy()
        for index, adapter in enumerate(call.weights):
            rows = np.flatnonzero(of_row == index)
            if adapter is not None and len(rows):
                out[rows] += adapter.scale * (x[rows] @ adapter.a.values.T @ adapter.b.values.T)
        return out

    def _rope_angles(self, step: _Step, call: Call) -> F64:
        angles = step.positions[:, None] * np.array(call.params["frequencies"])
        grown = 1 + call.params["growth"] * np.log(1 + step.positions // call.params["period"])
        magnitude = call.params["magnitude"] * grown[:, None]
        both: F64 = np.concatenate([np.cos(angles), np.sin(angles)], -1) * magnitude
        return both

    def _rope(self, step: _Step, call: Call, x: F64, angles: F64) -> F64:
        half = angles.shape[-1] // 2
        cos, sin = angles[:, None, :half], angles[:, None, half:]
        heads = x.reshape(len(x), call.params["heads"], -1).copy()
        if call.params["interleaved"]:
            a, b = heads[..., 0 : 2 * half : 2].copy(), heads[..., 1 : 2 * half : 2].copy()
            heads[..., 0 : 2 * half : 2], heads[..., 1 : 2 * half : 2] = a * cos - b * sin, a * sin + b * cos
        else:
            a, b = heads[..., :half].copy(), heads[..., half : 2 * half].copy()
            heads[..., :half], heads[..., half : 2 * half] = a * cos - b * sin, a * sin + b * cos
        rotated: F64 = heads.reshape(x.shape)
        return rotated

    def _stored(self, x: F64) -> F64:
        """Heads [..., head_dim] as the cache keeps them."""
        if self.kv.dtype == "int8":
            return round_int8(x)
        return round_bfloat16(x) if self.kv.dtype == "bfloat16" else x.astype(np.float32).astype(np.float64)

    def _kv_store(self, step: _Step, call: Call, k: F64, v: F64) -> None:
        layer, size = call.params["layer"], self.kv.block_size
        for sequence, (start, end) in enumerate(zip(step.row_starts, step.row_starts[1:], strict=False)):
            for row in range(start, end):
                block, offset = divmod(int(step.positions[row]), size)
                at = (layer, step.block_tables[sequence, block], offset)
                self.keys[at] = self._stored(k[row].reshape(self.kv.heads, -1))
                self.cached_values[at] = self._stored(v[row].reshape(self.kv.heads, -1))
                self.value_steps[at] = int8_steps(v[row].reshape(self.kv.heads, -1))

    def _attention(self, step: _Step, call: Call, q: F64) -> F64:
        heads, layer = call.params["heads"], call.params["layer"]
        group = heads // self.kv.heads
        out = np.zeros_like(q)
        for sequence, (start, end) in enumerate(zip(step.row_starts, step.row_starts[1:], strict=False)):
            blocks = step.block_tables[sequence, : int(step.positions[end - 1]) // self.kv.block_size + 1]
            keys = self.keys[layer, blocks].reshape(-1, self.kv.heads, self.kv.head_dim)
            values = self.cached_values[layer, blocks].reshape(-1, self.kv.heads, self.kv.head_dim)
            steps = self.value_steps[layer, blocks].reshape(-1, self.kv.heads)
            for row in range(start, end):
                position = int(step.positions[row])
                window = call.params["window"]
                first = max(0, position + 1 - window) if window else 0
                query = self._stored(q[row].reshape(heads, -1))
                parts = []
                for h in range(heads):
                    of = np.s_[:, h // group]
                    parts.append(
                        self._head(query[h], keys[of], values[of], steps[of], first, position, call, h)
                    )
                out[row] = np.concatenate(parts)
        return out

    def _head(
        self, q: F64, keys: F64, values: F64, steps: F64, first: int, position: int, call: Call, head: int
    ) -> F64:
        """One query head: weights are rounded within segments of 256 positions, relative to the segment's maximum."""
        tops, sums, outs = [], [], []
        for begin in range(first // SEGMENT * SEGMENT, position + 1, SEGMENT):
            span = slice(max(begin, first), min(begin + SEGMENT, position + 1))
            scores = keys[span] @ q * call.params["scale"]
            cap = call.params["softcap"]
            if cap:
                scores = cap * np.tanh(scores / cap)
            weights = np.exp(scores - scores.max())
            if self.kv.dtype != "int8":
                weights = self._stored(weights)
            tops.append(scores.max())
            sums.append(weights.sum())
            if self.kv.dtype == "int8":
                weights = self._round_weights(weights, steps[span])
            outs.append(weights @ values[span])
        if call.weights:
            tops.append(call.weights[0][head])
            sums.append(1.0)
            outs.append(np.zeros_like(outs[0]))
        scale = np.exp(np.array(tops) - max(tops))
        merged: F64 = (scale[:, None] * np.array(outs)).sum(0) / (scale * np.array(sums)).sum()
        return merged

    @staticmethod
    def _round_weights(weights: F64, steps: F64) -> F64:
        """Weights times their values' steps, in whole parts of the largest such product."""
        scaled = weights * steps
        part = scaled.max() / WEIGHT_LEVELS
        rounded: F64 = np.divide(
            np.rint(scaled / part) * part if part > 0 else scaled,
            steps,
            out=np.zeros_like(scaled),
            where=steps > 0,
        )
        return rounded

    def _silu_mul(self, step: _Step, call: Call, gate: F64, up: F64) -> F64:
        return _gated(gate, up, "silu")

    def _gelu_mul(self, step: _Step, call: Call, gate: F64, up: F64) -> F64:
        return _gated(gate, up, "gelu_tanh")

    def _softcap(self, step: _Step, call: Call, x: F64) -> F64:
        capped: F64 = call.params["cap"] * np.tanh(x / call.params["cap"])
        return capped

    def _sigmoid_mul(self, step: _Step, call: Call, gate: F64, x: F64) -> F64:
        return _sigmoid(gate) * x

    def _route(self, step: _Step, call: Call, scores: F64) -> F64:
        scoring, chosen = call.params["scoring"], call.params["chosen"]
        numbers = ~np.isnan(scores).any(-1, keepdims=True)
        if scoring == "softmax":
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores = scores / scores.sum(-1, keepdims=True)
        elif scoring == "sigmoid":
            scores = _sigmoid(scores)
        by = scores + call.weights[0] if call.weights else scores
        ids = np.argsort(-by, axis=-1, kind="stable")[:, :chosen]
        best = np.take_along_axis(scores, ids, -1)
        if scoring == "softmax_of_chosen":
            best = np.exp(best - best.max(-1, keepdims=True))
            best = best / best.sum(-1, keepdims=True)
        elif call.params["normalize"]:
            best = best / np.maximum(best.sum(-1, keepdims=True), 1e-20)
        best = np.where(numbers, best, np.nan)
        weights = np.zeros_like(scores)
        np.put_along_axis(weights, ids, best * call.params["scale"], -1)
        return weights

    def _experts(self, step: _Step, call: Call, x: F64, weights: F64) -> F64:
        out = np.zeros_like(x)
        limit = self.program.outlier_limit(call.inputs[0])
        for id, expert in enumerate(call.weights):
            rows = np.flatnonzero(weights[:, id])
            gate, up = (_product(x[rows], layer, limit) for layer in (expert.gate, expert.up))
            hidden = _gated(gate, up, call.params["activation"])
            out[rows] += weights[rows, id, None] * _product(hidden, expert.down, OUTLIERS)
        return out

    def _add(self, step: _Step, call: Call, a: F64, b: F64) -> F64:
        return a + b

    def _logit_rows(self, step: _Step, call: Call, x: F64) -> F64:
        return x[step.logit_rows]
