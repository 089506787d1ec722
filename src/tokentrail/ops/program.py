"""The op set, and the recorder that turns a model's forward pass into a flat list of calls.

A model writes `forward` once over `Recorder`; it is run once, at load. The values it passes around are symbolic: their
number of rows (tokens of a step, or rows whose logits are needed) is known only when a step runs, so they refuse to
be used as numbers or conditions, and a forward pass cannot depend on them by accident.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn, Protocol


class Matrix(Protocol):
    """A weight matrix [n, k] in a backend's own layout."""

    @property
    def n(self) -> int: ...
    @property
    def integer(self) -> bool:
        """Whether products with it take int8 activations."""
        ...

    @property
    def nbytes(self) -> int: ...


OUTLIERS, FINE_OUTLIERS = 0.4, 0.15
"""See Program.outlier_limit."""


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to a linear layer: scale · b(a(x)) (LoRA: Hu et al. 2021, arXiv:2106.09685)."""

    a: Any
    """[rank, in]"""
    b: Any
    """[out, rank]"""
    scale: float


@dataclass(frozen=True)
class Linear:
    """A linear layer: `weight` [out, in] and, where the model has one, `bias` [out].

    Where the weight's columns are stored in another order, `columns` [in] (int32) says which ones they are.
    """

    weight: Any
    bias: Any = None
    columns: Any = None
    adapters: tuple[LowRank | None, ...] = ()
    """What each adapter that is loaded adds to it; empty: none adds anything."""


@dataclass(frozen=True)
class Expert:
    """A gated feed-forward network: down(activation(gate(x), up(x)))."""

    gate: Linear
    up: Linear
    down: Linear


ACTIVATIONS = ("silu", "gelu_tanh", "swiglu_oai")
"""Of gated feed-forward networks, of g = gate(x) and u = up(x): g · sigmoid(g) · u; Gaussian error linear units by
tanh, 0.5 · g · (1 + tanh(sqrt(2/π) · (g + 0.044715 · g³))) · u (Hendrycks & Gimpel 2016, arXiv:1606.08415); and
gpt-oss's, with g capped at 7 and u held within ±7: g · sigmoid(1.702 · g) · (u + 1)."""

SCORINGS = ("softmax", "sigmoid", "softmax_of_chosen")
"""How a router's scores become weights: over all experts, each by itself, or over the chosen ones."""


class Value:
    """A symbolic activation: `dim` float32 values a row, one row a token of the step (or a logit row)."""

    __slots__ = ("dim", "id", "rows")

    def __init__(self, id: int, rows: str, dim: int) -> None:
        self.id, self.rows, self.dim = id, rows, dim

    def __repr__(self) -> str:
        return f"Value({self.id}: [{self.rows}, {self.dim}])"

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            "a recorded value has no number: forward passes are recorded once, for every step size; "
            "decide by the model's configuration instead"
        )

    __bool__ = __int__ = __float__ = __index__ = __len__ = _refuse


@dataclass(frozen=True)
class Call:
    """One kernel call: `inputs` and `output` are value ids, `weights` backend objects, `params` plain numbers."""

    kernel: str
    inputs: tuple[int, ...]
    output: int | None
    weights: tuple[Any, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def takes_integers(self) -> bool:
        """Whether the first input is a factor of products with integer weights."""
        if self.kernel == "experts":
            return any(layer.weight.integer for e in self.weights for layer in (e.gate, e.up))
        return self.kernel == "linear" and bool(self.weights[0].integer)


@dataclass(frozen=True)
class Program:
    """A recorded forward pass. `values[i]` describes value i; value `logits` holds the logits."""

    calls: tuple[Call, ...]
    values: tuple[Value, ...]
    logits: int
    states: int | None = None
    """The value that the last call makes for steps that ask for it: each token's last hidden state."""

    def last_use(self, value: int) -> int:
        """Index of the last call that reads `value`; logits and states live to the end."""
        if value in (self.logits, self.states):
            return len(self.calls)
        return self._last_uses.get(value, -1)

    @cached_property
    def _adapted(self) -> dict[int, int]:
        """From a product to the same one with what adapters add to it: who reads that, reads the product."""
        return {c.inputs[1]: c.output for c in self.calls if c.kernel == "lora" and c.output is not None}

    @cached_property
    def _last_uses(self) -> dict[int, int]:
        return {value: index for index, call in enumerate(self.calls) for value in call.inputs}

    def outlier_limit(self, value: int) -> float:
        """What a group's squared int8 step comes to, in row means, where it has outliers.

        A group whose squared step is over four times that takes the smaller step, and its outliers a second byte.
        Attention's inputs and the logits get the finer limit: errors there reach the answer undamped, and few products
        read them.
        """
        for call in self.calls:
            if call.kernel == "linear" and call.inputs == (value,):
                assert call.output is not None
                output = self._adapted.get(call.output, call.output)
                readers = {c.kernel for c in self.calls if output in c.inputs}
                if output == self.logits or readers & {"rope", "kv_store", "attention", "softcap"}:
                    return FINE_OUTLIERS
                if "route" in readers and call.takes_integers:
                    return FINE_OUTLIERS
        return OUTLIERS


class Recorder:
    """Records calls. Each method is an op; its docstring is the op's definition, in exact arithmetic."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._values: list[Value] = []
        self._gathered: dict[tuple[int, bytes], Value] = {}
        self._states: Value | None = None

    def finish(self, logits: Value) -> Program:
        states = self._states
        if states is not None and self._calls[-1].output != states.id:
            raise ValueError("states are recorded last: steps that do not ask for them leave them out")
        return Program(
            tuple(self._calls), tuple(self._values), logits.id, None if states is None else states.id
        )

    def states(self, x: Value, weight: Any, *, eps: float, weight_offset: float = 0.0) -> None:
        """The normed rows of x are what embeddings are made of: [tokens, dim]. Only computed where a step asks."""
        self._states = self.rms_norm(x, weight, eps=eps, weight_offset=weight_offset)

    def embedding(self, table: Any, *, dim: int, scale: float = 1.0) -> Value:
        """Row `token` of the table [vocab, dim] for each token of the step, times `scale`."""
        return self._record("embedding", (), "tokens", dim, (table,), scale=scale)

    def rms_norm(
        self, x: Value, weight: Any, *, eps: float, weight_offset: float = 0.0, heads: int = 1
    ) -> Value:
        """x / sqrt(mean(x²) + eps) · (weight + weight_offset) (Zhang & Sennrich 2019, arXiv:1910.07467).

        With `heads`, of each head by itself; `weight` [dim / heads] is the same for all.
        """
        return self._record(
            "rms_norm", (x,), x.rows, x.dim, (weight,), eps=eps, weight_offset=weight_offset, heads=heads
        )

    def linear(self, x: Value, layer: Linear, *, residual: Value | None = None) -> Value:
        """x Wᵀ (+ bias) (+ residual), and what adapters add to it."""
        ordered = x if layer.columns is None else self.gather_columns(x, layer.columns)
        inputs = (ordered,) if residual is None else (ordered, residual)
        y = self._record("linear", inputs, x.rows, layer.weight.n, (layer.weight, layer.bias))
        return self.lora(x, y, layer.adapters) if any(layer.adapters) else y

    def lora(self, x: Value, y: Value, adapters: tuple[LowRank | None, ...]) -> Value:
        """y + scale · (x Aᵀ) Bᵀ, with `adapters`[i] for the rows of sequences that have adapter i; y for the others."""
        return self._record("lora", (x, y), y.rows, y.dim, adapters)

    def gather_columns(self, x: Value, columns: Any) -> Value:
        """x[:, columns], for a permutation `columns` [dim] (int32). Recorded once for equal permutations of x."""
        key = x.id, columns.tobytes()
        if key not in self._gathered:
            self._gathered[key] = self._record("gather_columns", (x,), x.rows, x.dim, (columns,))
        return self._gathered[key]

    def rope_angles(
        self, frequencies: tuple[float, ...], *, magnitude: float = 1.0, growth: float = 0.0, period: int = 1
    ) -> Value:
        """cos and sin of position · frequency: [tokens, 2 · len(frequencies)], cosines first.

        They are multiplied by magnitude · (1 + growth · ln(1 + ⌊position / period⌋)).
        """
        return self._record(
            "rope_angles",
            (),
            "tokens",
            2 * len(frequencies),
            frequencies=frequencies,
            magnitude=magnitude,
            growth=growth,
            period=period,
        )

    def rope(self, x: Value, angles: Value, *, heads: int, interleaved: bool) -> Value:
        """Rotate the first `angles.dim` values of each head: pairs (2i, 2i+1) interleaved, else (i, i + dim/2)."""
        return self._record("rope", (x, angles), x.rows, x.dim, heads=heads, interleaved=interleaved)

    def kv_store(self, k: Value, v: Value, *, layer: int) -> None:
        """Write keys and values [tokens, kv_heads · head_dim] of the step to the paged cache."""
        self._calls.append(Call("kv_store", (k.id, v.id), None, (), {"layer": layer}))

    def attention(
        self,
        q: Value,
        *,
        layer: int,
        heads: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Any = None,
    ) -> Value:
        """softmax(scale · q Kᵀ, capped, causal, within `window`) V over everything cached of the row's sequence.

        `sinks` [heads] or None: one more score for each head, which takes its part of the softmax and has no value.
        """
        return self._record(
            "attention",
            (q,),
            q.rows,
            q.dim,
            () if sinks is None else (sinks,),
            layer=layer,
            heads=heads,
            scale=scale,
            window=window,
            softcap=softcap,
        )

    def silu_mul(self, gate: Value, up: Value) -> Value:
        """gate · sigmoid(gate) · up (SwiGLU: Shazeer 2020, arXiv:2002.05202)."""
        return self._record("silu_mul", (gate, up), gate.rows, gate.dim)

    def gelu_mul(self, gate: Value, up: Value) -> Value:
        """`gelu_tanh` of ACTIVATIONS (GeGLU: Shazeer 2020, arXiv:2002.05202)."""
        return self._record("gelu_mul", (gate, up), gate.rows, gate.dim)

    def softcap(self, x: Value, cap: float) -> Value:
        """cap · tanh(x / cap)."""
        return self._record("softcap", (x,), x.rows, x.dim, cap=cap)

    def sigmoid_mul(self, gate: Value, x: Value) -> Value:
        """sigmoid(gate) · x, where `gate` has one value a row."""
        return self._record("sigmoid_mul", (gate, x), x.rows, x.dim)

    def route(
        self,
        scores: Value,
        *,
        chosen: int,
        scoring: str = "softmax",
        correction: Any = None,
        normalize: bool = True,
        scale: float = 1.0,
    ) -> Value:
        """Scores [rows, experts] → weights [rows, experts]: zero but for the `chosen` best of each row.

        Chosen by the scores after `scoring` (before it for `softmax_of_chosen`), plus `correction` [experts] where
        there is one; of equals the lower id. Weights are without the correction, divided by their sum (1e-20 where
        it is less) where `normalize` says so, times `scale`. A row with a score that is no number gets weights that
        are none.
        """
        weights = () if correction is None else (correction,)
        return self._record(
            "route",
            (scores,),
            scores.rows,
            scores.dim,
            weights,
            chosen=chosen,
            scoring=scoring,
            normalize=normalize,
            scale=scale,
        )

    def experts(
        self, x: Value, weights: Value, experts: tuple[Expert, ...], *, activation: str = "silu"
    ) -> Value:
        """Σ over experts e, ascending, of weights[e] · expert e of x. Nothing is computed where the weight is zero."""
        return self._record("experts", (x, weights), x.rows, x.dim, experts, activation=activation)

    def add(self, a: Value, b: Value) -> Value:
        return self._record("add", (a, b), a.rows, a.dim)

    def logit_rows(self, x: Value) -> Value:
        """The rows of x whose logits the step needs."""
        return self._record("logit_rows", (x,), "logits", x.dim)

    def _record(
        self,
        kernel: str,
        inputs: tuple[Value, ...],
        rows: str,
        dim: int,
        weights: tuple[Any, ...] = (),
        **params: Any,
    ) -> Value:
        value = Value(len(self._values), rows, dim)
        self._values.append(value)
        self._calls.append(Call(kernel, tuple(v.id for v in inputs), value.id, weights, params))
        return value
