"""Routing and grouped experts: against the reference in float64, and bit for bit whatever is computed beside a row."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_harness import (
    EPS,
    F32,
    FLOAT_FORMATS,
    FORMATS,
    INTEGER_FORMATS,
    ISAS,
    Harness,
    Run,
    Step,
    assert_within,
    bits,
    feed,
    forward,
    matrix,
    native,
    reference,
    rows_step,
)

from random_blocks import BLOCKS, random_blocks
from tokentrail.ops.backend import Backend, Limits
from tokentrail.ops.program import ACTIVATIONS, SCORINGS, Expert, Linear, Recorder, Value

SEEDS = st.integers(0, 2**32 - 1)


def routing(scores: F32, **options: Any) -> Harness:
    def record(backend: Backend, ops: Recorder) -> Value:
        return ops.route(feed(backend, ops, scores), **options)

    return Harness(record, vocab=len(scores))


# --- routing ---------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    experts=st.integers(1, 140),
    rows=st.integers(1, 8),
    seed=SEEDS,
    scoring=st.sampled_from(SCORINGS),
    corrected=st.booleans(),
    normalize=st.booleans(),
    scale=st.sampled_from([1.0, 2.5]),
)
def test_route(
    experts: int, rows: int, seed: int, scoring: str, *, corrected: bool, normalize: bool, scale: float
) -> None:
    random = np.random.default_rng(seed)
    scores = (3 * random.standard_normal((rows, experts))).astype(np.float32)
    correction = random.uniform(-0.5, 0.5, experts).astype(np.float32) if corrected else None
    options = {
        "chosen": int(random.integers(1, experts + 1)),
        "scoring": scoring,
        "correction": correction,
        "normalize": normalize,
        "scale": scale,
    }
    harness, step = routing(scores, **options), rows_step(rows)
    expected = forward(harness.compile(reference()), step).astype(np.float64)
    for isa in ISAS:
        got = forward(harness.compile(native(isa)), step)
        np.testing.assert_array_equal(got != 0, expected != 0, f"{isa}: other experts, seed {seed}")
        assert ((got != 0).sum(-1) <= options["chosen"]).all()
        # exp is good to 2^-22, and softmax has two of them; scores are added up in another order.
        assert_within(got, expected, (40 + experts / 8) * EPS * np.abs(expected), f"{isa} seed {seed}")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scoring", SCORINGS)
def test_of_equal_scores_the_lower_id_is_chosen(isa: str, scoring: str) -> None:
    scores = np.zeros((4, 37), np.float32)
    scores[1, [5, 20, 36]] = 1
    scores[2, 30:] = 2
    scores[3] = -5
    got = forward(routing(scores, chosen=4, scoring=scoring).compile(native(isa)), rows_step(4))
    chosen = [np.flatnonzero(row).tolist() for row in got]
    assert chosen == [[0, 1, 2, 3], [0, 5, 20, 36], [30, 31, 32, 33], [0, 1, 2, 3]]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("corrected", [False, True])
def test_scores_that_are_no_numbers(isa: str, scoring: str, corrected: bool) -> None:
    """A row with a NaN chooses as many experts as any other, with weights that are none; no neighbour notices."""
    random = np.random.default_rng(3)
    scores = random.standard_normal((9, 19)).astype(np.float32)
    bad = scores.copy()
    bad[1], bad[3, 18], bad[5, 0], bad[7] = np.nan, np.nan, np.nan, [*[np.nan] * 18, 1]
    correction = random.standard_normal(19).astype(np.float32) if corrected else None
    options: dict[str, Any] = {"chosen": 5, "scoring": scoring, "correction": correction}
    clean = forward(routing(scores, **options).compile(native(isa)), rows_step(9))
    got = forward(routing(bad, **options).compile(native(isa)), rows_step(9))
    np.testing.assert_array_equal(bits(got[::2][[0, 1, 3, 4]]), bits(clean[::2][[0, 1, 3, 4]]))
    for row in (1, 3, 5, 7):
        assert np.isnan(got[row]).sum() == 5
        assert (got[row][~np.isnan(got[row])] == 0).all()
    infinite = scores.copy()
    infinite[0, 3], infinite[1, 3], infinite[2] = np.inf, -np.inf, -np.inf
    got = forward(routing(infinite, **options).compile(native(isa)), rows_step(9))
    assert ((got != 0).sum(-1) <= 5).all()
    np.testing.assert_array_equal(bits(got[3:]), bits(clean[3:]))
    assert got[1, 3] < 1e-30
    assert np.isfinite(got[1]).all()


def test_impossible_choices_are_refused() -> None:
    scores = np.zeros((2, 8), np.float32)
    for options in (
        {"chosen": 0},
        {"chosen": 9},
        {"chosen": 2, "scoring": "tanh"},
        {"chosen": 2, "correction": np.zeros(7, np.float32)},
    ):
        with pytest.raises(ValueError):
            routing(scores, **options).compile(native(ISAS[0]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chosen"):
        routing(np.zeros((2, 300), np.float32), chosen=257).compile(native(ISAS[0]))


# --- experts ---------------------------------------------------------------------------------------


class Mixture:
    """Experts of random weights over random rows, and the router's choice fed as weights."""

    def __init__(
        self,
        formats: tuple[str, str, str],
        *,
        rows: int = 40,
        dim: int = 64,
        inner: int = 96,
        experts: int = 7,
        chosen: int = 3,
        activation: str = "silu",
        biases: bool = False,
        seed: int = 0,
    ) -> None:
        random = np.random.default_rng(seed)
        self.formats, self.activation, self.rows, self.chosen = formats, activation, rows, chosen
        self.x = (random.standard_normal((rows, dim)) * random.lognormal(0, 1, (rows, 1))).astype(np.float32)
        self.x[:, dim // 2] *= 20  # outliers
        self.scores = (2 * random.standard_normal((rows, experts))).astype(np.float32)

        def layer(n: int, k: int) -> tuple[F32, F32 | None]:
            weight = (random.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)
            return weight, random.standard_normal(n).astype(np.float32) if biases else None

        self.layers = [(layer(inner, dim), layer(inner, dim), layer(dim, inner)) for _ in range(experts)]

    def record(self, backend: Backend, ops: Recorder) -> Value:
        x = feed(backend, ops, self.x)
        # Through a norm, as in models: what feeds an integer product is quantized where it is made.
        x = ops.rms_norm(x, np.ones(x.dim, np.float32), eps=1e-6)
        weights = ops.route(feed(backend, ops, self.scores), chosen=self.chosen)
        experts = tuple(
            Expert(
                *(
                    Linear(matrix(backend, weight, format), bias)
                    for (weight, bias), format in zip(parts, self.formats, strict=True)
                )
            )
            for parts in self.layers
        )
        return ops.experts(x, weights, experts, activation=self.activation)

    def harness(self) -> Harness:
        return Harness(self.record, vocab=self.rows)


def assert_close(got: F32, expected: F32, limit: float, what: str) -> None:
    """Relative to each row's largest value: what is added up is not smaller."""
    error = np.abs(got - expected).max(-1) / np.abs(expected).max(-1)
    assert error.max() < limit, f"{what}: {error.max():.2g} in row {error.argmax()}"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_experts(isa: str, format: str, activation: str) -> None:
    mixture = Mixture((format, format, format), activation=activation, biases=True, seed=1)
    expected = forward(mixture.harness().compile(reference()), rows_step(40))
    got = forward(mixture.harness().compile(native(isa)), rows_step(40))
    # Hidden values are rounded to int8 steps before integer weights; one in a few hundred falls to the other side of a
    # half.
    assert_close(got, expected, 1e-5 if format in FLOAT_FORMATS else 1e-2, format)
    assert np.abs(got - expected).mean() < np.abs(expected).mean() * (
        1e-6 if format in FLOAT_FORMATS else 5e-4
    )


@pytest.mark.parametrize("format", [*BLOCKS, "G4_32", "G4_128", "G8_128", "G3_64", "G2_32"])
def test_an_expert_is_what_plain_ops_make_of_it(format: str) -> None:
    """To the bit, in every format: rows that choose one expert each, with a weight of 1, against linear layers."""
    random = np.random.default_rng(6)
    rows, dim, inner, count = 33, 256, 512, 3
    x = random.standard_normal((rows, dim)).astype(np.float32)
    choice = np.arange(rows) * 7 % count
    stored = [
        [random_blocks(format, n, k, random) for n, k in ((inner, dim), (inner, dim), (dim, inner))]
        for _ in range(count)
    ]

    def layers(backend: Backend, expert: int) -> Expert:
        gate, up, down = stored[expert]
        return Expert(
            Linear(backend.matrix(format, gate, inner, dim)),
            Linear(backend.matrix(format, up, inner, dim)),
            Linear(backend.matrix(format, down, dim, inner)),
        )

    def mixed(backend: Backend, ops: Recorder) -> Value:
        scores = feed(backend, ops, np.eye(count, dtype=np.float32)[choice])
        weights = ops.route(scores, chosen=1)
        normed = ops.rms_norm(feed(backend, ops, x), np.ones(dim, np.float32), eps=1e-6)
        experts = tuple(layers(backend, expert) for expert in range(count))
        return ops.add(ops.experts(normed, weights, experts), feed(backend, ops, x))

    def plain(expert: int, backend: Backend, ops: Recorder) -> Value:
        normed = ops.rms_norm(feed(backend, ops, x), np.ones(dim, np.float32), eps=1e-6)
        layer = layers(backend, expert)
        hidden = ops.silu_mul(ops.linear(normed, layer.gate), ops.linear(normed, layer.up))
        return ops.add(ops.linear(hidden, layer.down), feed(backend, ops, x))

    for isa in (ISAS[0], ISAS[-1]):
        got = bits(forward(Harness(mixed, vocab=rows).compile(native(isa, 2)), rows_step(rows)))
        assert np.isfinite(got.view(np.float32)).all()
        for expert in range(count):
            record = partial(plain, expert)
            expected = bits(forward(Harness(record, vocab=rows).compile(native(isa)), rows_step(rows)))
            own = choice == expert
            np.testing.assert_array_equal(got[own], expected[own], isa)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_experts_of_any_shape(seed: int) -> None:
    """Sizes that fill no panel, few rows and many, one expert and dozens, formats mixed."""
    random = np.random.default_rng(seed)
    integer = bool(random.integers(2))
    pool = FORMATS if integer else FLOAT_FORMATS
    formats = tuple(str(random.choice(pool)) for _ in range(3))
    dim, inner = (
        int(32 * random.integers(1, 6)) if integer else int(random.integers(1, 150)) for _ in range(2)
    )
    experts = int(random.choice([1, 2, 5, 16, 33]))
    mixture = Mixture(
        formats,  # type: ignore[arg-type]
        rows=int(random.choice([1, 2, 9, 150])),
        dim=dim,
        inner=inner,
        experts=experts,
        chosen=int(random.integers(1, experts + 1)),
        activation=str(random.choice(ACTIVATIONS)),
        biases=bool(random.integers(2)),
        seed=seed,
    )
    step = rows_step(mixture.rows)
    expected = forward(mixture.harness().compile(reference()), step)
    threads = int(random.integers(1, 4))
    got = forward(mixture.harness().compile(native(ISAS[0], threads)), step)
    exact = not set(formats) & set(INTEGER_FORMATS)
    assert_close(got, expected, 2e-5 if exact else 3e-2, f"seed {seed}")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("formats", [("Q4_0",) * 3, ("Q8_0", "Q4_1", "F16"), ("BF16", "F32", "Q8_0")])
def test_rows_do_not_depend_on_the_batch(isa: str, formats: tuple[str, str, str]) -> None:
    """Each row alone, then some together in any order, then more than an expert takes at once, on 1 to 4 threads."""
    rows = 400
    mixture = Mixture(formats, rows=rows, dim=96, inner=160, experts=5, chosen=2, seed=2)
    harness = mixture.harness()
    alone = harness.compile(native(isa))
    expected = np.concatenate([bits(forward(alone, Step([Run([row])]))) for row in range(rows)])
    random = np.random.default_rng(1)
    for threads in (1, 2, 3, 4):
        for eager in (False, True):
            executable = harness.compile(native(isa, threads), eager=eager)
            np.testing.assert_array_equal(bits(forward(executable, rows_step(rows))), expected)
            for count in (1, 2, 3, 5, 17, 60, 150):
                ids = random.permutation(rows)[:count].tolist()
                got = bits(forward(executable, Step([Run(ids, 0, [0] * 30)])))
                np.testing.assert_array_equal(got, expected[ids], f"{count} rows on {threads} threads")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", FORMATS)
def test_all_rows_to_one_expert(isa: str, format: str) -> None:
    """Nothing is dropped: more rows than a task takes, all with the same experts."""
    mixture = Mixture((format,) * 3, rows=300, experts=9, chosen=2, seed=3)
    mixture.scores[:] = [0, 0, 3, 0, 0, 0, 0, 2, 0]
    harness = mixture.harness()
    expected = forward(harness.compile(reference()), rows_step(300))
    got = forward(harness.compile(native(isa, 2)), rows_step(300))
    assert_close(got, expected, 1e-5 if format in FLOAT_FORMATS else 1e-2, format)
    alone = harness.compile(native(isa))
    for row in (0, 125, 126, 252, 299):
        np.testing.assert_array_equal(bits(forward(alone, Step([Run([row])])))[0], bits(got)[row])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("format", ["Q4_0", "F32"])
def test_rows_that_are_not_numbers_stay_by_themselves(isa: str, activation: str, format: str) -> None:
    mixture = Mixture((format,) * 3, rows=20, activation=activation, seed=4)
    clean = bits(forward(mixture.harness().compile(native(isa)), rows_step(20)))
    mixture.x[[3, 9]], mixture.x[15] = np.nan, np.inf
    mixture.scores[[3, 11]] = np.nan
    got = forward(mixture.harness().compile(native(isa, 2)), rows_step(20))
    bad = [3, 9, 11, 15]
    assert np.isnan(got[bad]).all()
    rest = [row for row in range(20) if row not in bad]
    np.testing.assert_array_equal(bits(got)[rest], clean[rest])


def test_garbage_in_the_weights_touches_nothing_else() -> None:
    """The buffer of weights is within Python's reach: more experts than were promised are cut off, not followed."""
    mixture = Mixture(("Q8_0",) * 3, rows=30, experts=20, chosen=2)
    executable: Any = mixture.harness().compile(native(ISAS[0], 2))
    forward(executable, rows_step(30))
    program = executable.program
    names = [timing.name.split()[0] for timing in program.timings()]
    route, first, second = names.index("route"), *(i for i, n in enumerate(names) if n == "experts")
    step = rows_step(30).arrays()
    for fill in (1.0, np.nan, np.inf):
        program.run(*step)
        for buffer in range(40):  # whichever it is
            try:
                if program.array(buffer, 30).shape == (30, 20):
                    program.array(buffer, 30)[:] = fill
            except ValueError:
                break
        program.run(*step, only=second)
        program.run(*step, only=first)
        program.run(*step, only=second)
    program.run(*step, only=route)


def test_an_expert_that_nobody_chose_is_not_read() -> None:
    """Its weights may be garbage; and the timings count the experts that had rows."""
    mixture = Mixture(("F32",) * 3, rows=4, experts=6, chosen=2, seed=5)
    mixture.scores[:] = [0, 5, 0, 0, 4, 0]
    clean = forward(mixture.harness().compile(native(ISAS[0])), rows_step(4))
    for unused in (0, 2, 3, 5):
        for weight, _ in mixture.layers[unused]:
            weight[:] = np.nan
    executable: Any = mixture.harness().compile(native(ISAS[0]))
    np.testing.assert_array_equal(bits(forward(executable, rows_step(4))), bits(clean))
    executable.program.set_timing(True)
    for _ in range(3):
        forward(executable, rows_step(4))
    timings = {t.name: t for t in executable.program.timings()}
    gate, down = timings["experts in 96x64"], timings["experts out 64x96"]
    assert gate.weight_bytes == 2 * 2 * 96 * 64 * 4
    assert gate.macs_per_row == 2 * 2 * 96 * 64
    assert down.weight_bytes == 2 * 96 * 64 * 4
    assert down.macs_per_row == 2 * 96 * 64
    assert gate.seconds > 0
    assert down.seconds > 0


def test_buffers_are_counted() -> None:
    """Those of pairs are sized for the largest step; layers of one shape share them."""
    mixture = Mixture(("Q4_0",) * 3, experts=8, chosen=4)

    def nbytes(layers: int, tokens: int) -> int:
        def record(backend: Backend, ops: Recorder) -> Value:
            x = feed(backend, ops, mixture.x)
            weights = ops.route(feed(backend, ops, mixture.scores), chosen=4)
            experts = tuple(
                Expert(*(Linear(matrix(backend, weight, "Q4_0")) for weight, _ in parts))
                for parts in mixture.layers
            )
            for _ in range(layers):
                y = ops.experts(x, weights, experts)
                x = ops.rms_norm(y, np.ones(64, np.float32), eps=1e-6)
            return x

        harness = Harness(record, vocab=40, limits=Limits(tokens, 1, 1))
        return int(harness.compile(native(ISAS[0], 2)).nbytes)

    hidden = 4 * 96 * (4 + 2 + 13 / 32)
    assert nbytes(1, 2000) - nbytes(1, 1000) > 1000 * hidden
    assert nbytes(5, 1000) - nbytes(2, 1000) < 1000 * hidden
