"""Binds recorded programs to the native kernels: which value lives in which buffer, and when it may be reused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrail.ops.backend import F32, I32, KvLayout, Limits, MatrixShape, Stored
from tokentrail.ops.native import _native
from tokentrail.ops.native.resources import default_threads
from tokentrail.ops.program import Call, Program


def available_isas() -> list[str]:
    """Instruction sets this machine can run, best first."""
    return list(_native.available_isas())


def native_digest() -> str:
    """Digest of the built kernels: two builds promise equal bits only when it is equal."""
    return hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()[:16]


class NativeBackend:
    """Kernels in C++. `isa` None: the best there is, or what the environment's TOKENTRAIL_ISA names."""

    name = "native"

    def __init__(self, threads: int | None = None, isa: str | None = None) -> None:
        isas = available_isas()
        self.isa = isa or os.environ.get("TOKENTRAIL_ISA") or isas[0]
        if self.isa not in isas:
            raise ValueError(
                f"instruction set {self.isa!r} is not available here; there is: {', '.join(isas)}"
            )
        self.threads = default_threads() if threads is None else threads
        self._pool = _native.ThreadPool(self.threads)
        self._arena = _native.Arena()

    @property
    def weight_bytes(self) -> int:
        return int(self._arena.used)

    def is_integer(self, format: str) -> bool:
        return bool(_native.is_integer(format))

    def matrix(self, format: str, data: npt.NDArray[np.uint8], n: int, k: int) -> Any:
        return _native.pack(self._arena, self._pool, format, np.ascontiguousarray(data).reshape(-1), n, k)

    def matrices(self, stored: Sequence[Stored]) -> list[Any]:
        flat = [(format, np.ascontiguousarray(data).reshape(-1), n, k) for format, data, n, k in stored]
        return list(_native.pack_all(self._arena, self._pool, flat))

    def packed_bytes(self, format: str, n: int, k: int) -> int:
        return int(_native.packed_bytes(format, n, k))

    def matrix_shape(self, format: str, n: int, k: int) -> MatrixShape:
        nbytes = self.packed_bytes(format, n, k)
        return MatrixShape(n, k, nbytes, self.is_integer(format), _native.layout_name(format))

    def buffer_bytes(self, program: Program, kv: KvLayout, limits: Limits, vocab: int) -> int:
        measured = _Buffers(limits, self.threads)
        _Lowering(measured, program, kv).run()
        heads = max((call.params["heads"] for call in program.calls if call.kernel == "attention"), default=0)
        scratch = _native.thread_bytes(heads // kv.heads, kv.head_dim, vocab)
        return measured.nbytes + self.threads * scratch

    def rope_frequencies(self, dim: int, theta: float) -> tuple[float, ...]:
        return tuple(_native.rope_frequencies(dim, theta))

    def compile(
        self, program: Program, kv: KvLayout, limits: Limits, vocab: int, *, eager: bool = False
    ) -> NativeExecutable:
        return NativeExecutable(self, program, kv, limits, vocab, eager=eager)


class NativeExecutable:
    """A program over buffers sized once. A step is two native calls: `forward` and `sample`."""

    def __init__(
        self,
        backend: NativeBackend,
        program: Program,
        kv: KvLayout,
        limits: Limits,
        vocab: int,
        *,
        eager: bool,
    ) -> None:
        pool = backend._pool
        self._eager = eager
        self._kv = _native.KvCache(kv.dtype, kv.layers, kv.blocks, kv.block_size, kv.heads, kv.head_dim)
        self.program = _native.Program(
            pool, backend.isa, self._kv, limits.tokens, limits.sequences, limits.logit_rows, vocab
        )
        self._sampler = _native.Sampler(pool, backend.isa, vocab)
        self._last_results: tuple[I32, F32, I32, F32] | None = None
        self._logits, self._states = _Lowering(self.program, program, kv).run()

    @property
    def nbytes(self) -> int:
        return int(self.program.nbytes)

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
        step = (tokens, positions, row_starts, block_tables, logit_rows)
        if self._eager:
            for call in range(self.program.calls if states else self.program.calls_without_states):
                self.program.run(*step, only=call, adapters=adapters)
        else:
            self.program.run(*step, adapters=adapters, states=states)
        logits: F32 = self.program.array(self._logits, len(logit_rows))
        return logits

    def states(self, tokens: int) -> F32:
        if self._states is None:
            raise ValueError("the program records no states")
        values: F32 = self.program.array(self._states, tokens)
        return values

    def sample(
        self, logits: F32, top_width: int, **rows: npt.NDArray[Any] | None
    ) -> tuple[I32, F32, I32, F32]:
        tokens, logprobs, top_ids, top_logprobs = results = self._results(len(logits), top_width)
        self._sampler.run(
            logits,
            out_tokens=tokens,
            out_logprobs=logprobs,
            out_top_tokens=top_ids,
            out_top_logprobs=top_logprobs,
            **rows,
        )
        return results

    def _results(self, count: int, top_width: int) -> tuple[I32, F32, I32, F32]:
        """Arrays for what is sampled; those of the call before, where they fit."""
        last = self._last_results
        if last is None or last[2].shape != (count, top_width):
            self._last_results = last = (
                np.empty(count, np.int32),
                np.empty(count, np.float32),
                np.empty((count, top_width), np.int32),
                np.empty((count, top_width), np.float32),
            )
        return last


IN_PLACE = frozenset({"rms_norm", "softcap", "sigmoid_mul", "add"})
"""Kernels that may write over an input: a row's values are read before their places are written."""


class _Buffers:
    """Stands in for a native program while one is planned: adds up the buffers, and ignores all other calls."""

    def __init__(self, limits: Limits, threads: int) -> None:
        self._limits, self._threads = limits, threads
        self._dims: list[int] = []
        self._logits: list[bool] = []
        self._ranks: set[tuple[bool, int]] = set()
        self._experts: set[tuple[int, ...]] = set()
        self.nbytes = 0

    def buffer(self, logits: bool, dim: int, quantized: bool, outlier_limit: float) -> int:
        rows = self._limits.logit_rows if logits else self._limits.tokens
        self.nbytes += int(_native.buffer_bytes(rows, dim, quantized))
        self._dims.append(dim)
        self._logits.append(logits)
        return len(self._dims) - 1

    def experts(
        self, x: int, weights: int, layers: list[tuple[Any, ...]], activation: str, chosen: int, out: int
    ) -> None:
        """Layers of one shape share their hidden values and scratch."""
        first = [layer[at] for layer in layers for at in (0, 2)]
        integers, floats = any(m.integer for m in first), any(not m.integer for m in first)
        quantized = any(layer[4].integer for layer in layers)
        dim, hidden = self._dims[x], int(layers[0][0].n)
        shape = (len(layers), chosen, dim, hidden, integers, floats, quantized)
        if shape not in self._experts:
            self._experts.add(shape)
            rows = self._limits.tokens
            self.nbytes += int(_native.buffer_bytes(rows * chosen, hidden, quantized))
            scratch = _native.experts_thread_bytes(len(layers), rows, chosen, dim, integers, floats)
            self.nbytes += self._threads * int(scratch)

    def lora(self, x: int, adapters: list[tuple[Any, ...] | None], out: int) -> None:
        """Layers of one rank share the buffer between their two products."""
        shape = (self._logits[out], max(int(adapter[0].n) for adapter in adapters if adapter))
        if shape not in self._ranks:
            self._ranks.add(shape)
            self.buffer(*shape, False, 1.0)

    def __getattr__(self, op: str) -> Callable[..., None]:
        return lambda *arguments: None


class _Lowering:
    """Places a program's values in buffers and records its calls natively.

    A buffer is free for another value of its shape once the last reader of the one before has been recorded. A value
    that feeds a product with integer weights is quantized where it is made, by the kernel that makes it.
    """

    def __init__(self, native: Any, program: Program, kv: KvLayout) -> None:
        self.native, self.source, self.kv = native, program, kv
        self.buffer_of: dict[int, int] = {}
        self.free: dict[tuple[str, int, float], list[int]] = {}
        integer = {call.inputs[0] for call in program.calls if call.takes_integers}
        self.outlier_limits = {value: program.outlier_limit(value) for value in integer}
        self.last_use = [program.last_use(v.id) for v in program.values]

    def run(self) -> tuple[int, int | None]:
        """Returns the buffers of logits and states."""
        states = self.source.states
        for index, call in enumerate(self.source.calls):
            if states is not None and call.output == states:
                self.native.begin_states()
            self._lower(index, call)
            for value in set(call.inputs):
                if self.last_use[value] == index:
                    self._release(value)
        return self.buffer_of[self.source.logits], None if states is None else self.buffer_of[states]

    def _shape(self, value: int) -> tuple[str, int, float]:
        v = self.source.values[value]
        return v.rows, v.dim, self.outlier_limits.get(value, 0.0)

    def _allocate(self, value: int) -> int:
        shape = self._shape(value)
        rows, dim, outlier_limit = shape
        free = self.free.get(shape)
        buffer = (
            free.pop()
            if free
            else self.native.buffer(rows == "logits", dim, outlier_limit > 0, outlier_limit)
        )
        self.buffer_of[value] = buffer
        return int(buffer)

    def _release(self, value: int) -> None:
        if value in self.buffer_of:  # else its buffer lives on under another value
            self.free.setdefault(self._shape(value), []).append(self.buffer_of.pop(value))

    def _take_over(self, index: int, source: int, output: int) -> int | None:
        """Let `output` continue in the buffer of `source`, when nobody reads `source` after this call."""
        if self.last_use[source] != index or self._shape(source) != self._shape(output):
            return None
        self.buffer_of[output] = self.buffer_of.pop(source)
        return self.buffer_of[output]

    def _lower(self, index: int, call: Call) -> None:
        native, params = self.native, call.params
        inputs = [self.buffer_of[v] for v in call.inputs]
        if call.kernel == "kv_store":
            native.kv_store(*inputs, params["layer"])
            return
        assert call.output is not None
        if call.kernel == "rope":
            if self._take_over(index, call.inputs[0], call.output) is None:
                raise ValueError("rope works in place: its input must not be used again")
            heads = params["heads"]
            head_dim = self.source.values[call.output].dim // heads
            rotated = self.source.values[call.inputs[1]].dim
            native.rope(inputs[0], heads, head_dim, rotated, params["interleaved"], inputs[1])
            return
        if call.kernel == "linear":
            if call.output in self.outlier_limits:
                raise ValueError("the output of a product cannot feed an integer product directly")
            residual = inputs[1] if len(inputs) > 1 else -1
            # A product may write over its residual, but not over its own input.
            in_place = residual >= 0 and call.inputs[0] != call.inputs[1]
            out = self._take_over(index, call.inputs[1], call.output) if in_place else None
            out = self._allocate(call.output) if out is None else out
            native.linear(inputs[0], call.weights[0], call.weights[1], residual, out)
            return
        if call.kernel == "lora":
            out = self._take_over(index, call.inputs[1], call.output)
            if out is None:
                raise ValueError("adapters add to a product in place: it must not be used again without them")
            native.lora(inputs[0], [None if w is None else (w.a, w.b, w.scale) for w in call.weights], out)
            return
        if call.kernel == "experts" and call.output in self.outlier_limits:
            raise ValueError("the output of experts cannot feed an integer product directly")
        taken = None
        if call.kernel in IN_PLACE:
            for source in reversed(call.inputs):
                taken = self._take_over(index, source, call.output) if taken is None else taken
        out = self._allocate(call.output) if taken is None else taken
        match call.kernel:
            case "embedding":
                native.embedding(call.weights[0], params["scale"], out)
            case "rms_norm":
                eps, offset, heads = params["eps"], params["weight_offset"], params["heads"]
                native.rms_norm(inputs[0], call.weights[0], eps, offset, heads, out)
            case "rope_angles":
                native.rope_angles(
                    list(params["frequencies"]), params["magnitude"], params["growth"], params["period"], out
                )
            case "attention":
                native.attention(
                    inputs[0],
                    params["heads"],
                    params["scale"],
                    params["window"],
                    params["softcap"],
                    call.weights[0] if call.weights else None,
                    params["layer"],
                    out,
                )
            case "silu_mul":
                native.gated("silu", *inputs, out)
            case "gelu_mul":
                native.gated("gelu_tanh", *inputs, out)
            case "softcap":
                native.softcap(inputs[0], params["cap"], out)
            case "sigmoid_mul":
                native.sigmoid_mul(*inputs, out)
            case "add":
                native.add(*inputs, out)
            case "route":
                correction = call.weights[0] if call.weights else None
                native.route(
                    inputs[0],
                    correction,
                    params["chosen"],
                    params["scoring"],
                    params["normalize"],
                    params["scale"],
                    out,
                )
            case "experts":
                layers = [
                    (e.gate.weight, e.gate.bias, e.up.weight, e.up.bias, e.down.weight, e.down.bias)
                    for e in call.weights
                ]
                native.experts(*inputs, layers, params["activation"], self._chosen(call), out)
            case "gather_columns":
                native.gather_columns(inputs[0], call.weights[0], out)
            case "logit_rows":
                native.gather_logit_rows(inputs[0], out)
            case _:
                raise ValueError(f"no native kernel for {call.kernel}")

    def _chosen(self, call: Call) -> int:
        """How many experts a row has at most: what its weights' router chooses, else all there are."""
        makers = [c for c in self.source.calls if c.output == call.inputs[1]]
        return min((c.params["chosen"] for c in makers if c.kernel == "route"), default=len(call.weights))
