"""Kernels that work on one row at a time, against float64: norms, rotary embedding, SwiGLU, sums, embeddings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_harness import (
    EPS,
    F32,
    F64,
    FLOAT_FORMATS,
    FORMATS,
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

from random_models import store
from tokentrail.checkpoints import dequantize
from tokentrail.ops.backend import Backend, KvLayout
from tokentrail.ops.program import Linear, Recorder, Value

SEEDS = st.integers(0, 2**32 - 1)


def exact(harness: Harness, step: Step) -> F64:
    """The reference's result before it is rounded to float32."""
    oracle = harness.compile(reference())
    oracle.forward(*step.arrays())
    values: F64 = oracle.values[oracle.program.logits]  # type: ignore[attr-defined]
    return values


def normal(random: np.random.Generator, *shape: int) -> F32:
    """Values of many magnitudes and both signs."""
    return (random.standard_normal(shape) * random.lognormal(0, 2, shape)).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 300),
    heads=st.integers(1, 4),
    rows=st.integers(1, 8),
    seed=SEEDS,
    eps=st.sampled_from([1e-6, 1e-5, 1e-2]),
    offset=st.sampled_from([0.0, 1.0]),
    again=st.booleans(),
)
def test_rms_norm(
    n: int, heads: int, rows: int, seed: int, eps: float, offset: float, *, again: bool
) -> None:
    """Of whole rows and of heads; in place, and where the input is needed `again`."""
    random = np.random.default_rng(seed)
    x, weight = normal(random, rows, heads * n), normal(random, n)
    x[0] = 0

    def record(backend: Backend, ops: Recorder) -> Value:
        value = feed(backend, ops, x)
        normed = ops.rms_norm(value, weight, eps=float(np.float32(eps)), weight_offset=offset, heads=heads)
        return ops.add(normed, value) if again else normed

    harness, step = Harness(record, vocab=rows), rows_step(rows)
    expected = exact(harness, step)
    # The sum has n / 16 + 4 roundings, of which a square root halves the effect; weight + offset may cancel.
    squares = np.square(x.astype(np.float64)).reshape(rows, heads, n)
    unit = np.abs(expected) + np.abs(x) / np.sqrt(squares.mean(-1) + eps).repeat(n, axis=-1)
    if again:
        unit += np.abs(x)
    for isa in ISAS:
        got = forward(harness.compile(native(isa)), step)
        assert_within(got, expected, (n / 16 + 12) * EPS * unit, f"{isa} n {n} seed {seed}")


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 100), rows=st.integers(1, 8), seed=SEEDS)
def test_silu_mul(n: int, rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    gate, up = normal(random, rows, n), normal(random, rows, n)
    gate[0, 0] = random.choice([-1e30, -90, -87.4, -87.3, -88.4, 0, 88.4, 1e30])

    def record(backend: Backend, ops: Recorder) -> Value:
        return ops.silu_mul(feed(backend, ops, gate), feed(backend, ops, up))

    harness, step = Harness(record, vocab=rows), rows_step(rows)
    with np.errstate(over="ignore"):
        expected = exact(harness, step)
    # exp is good to 2^-22. Where it leaves the range of float32 (a gate below -88) the result is not exactly 0 yet.
    bound = 24 * EPS * np.abs(expected) + 1e-36 * np.abs(up.astype(np.float64) * gate)
    for isa in ISAS:
        assert_within(
            forward(harness.compile(native(isa)), step), expected, bound, f"{isa} n {n} seed {seed}"
        )


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 100), rows=st.integers(1, 8), seed=SEEDS)
def test_gelu_mul(n: int, rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    gate, up = normal(random, rows, n), normal(random, rows, n)
    gate[0, 0] = random.choice([-1e30, -100, -10.3, -9.9, -5, -1e-20, 0, 5, 1e30])

    def record(backend: Backend, ops: Recorder) -> Value:
        return ops.gelu_mul(feed(backend, ops, gate), feed(backend, ops, up))

    harness, step = Harness(record, vocab=rows), rows_step(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = exact(harness, step)
    # Far below zero the factor is exp of a rounded cube: relative errors of up to 88 roundings. The reference cancels.
    g = gate.astype(np.float64)
    bound = 300 * EPS * np.abs(expected) + (1e-15 * np.minimum(np.abs(g), 20) + 1e-36 * np.abs(g)) * np.abs(
        up
    )
    for isa in ISAS:
        got = forward(harness.compile(native(isa)), step)
        assert_within(got, expected, bound, f"{isa} n {n} seed {seed}")


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 100), rows=st.integers(1, 8), seed=SEEDS, cap=st.sampled_from([0.5, 30.0, 50.0]))
def test_softcap(n: int, rows: int, seed: int, cap: float) -> None:
    random = np.random.default_rng(seed)
    x = normal(random, rows, n) * np.float32(cap)
    x[0, 0] = random.choice([-1e36, -100, -0.6, -1e-30, 0, 0.59, 0.6, 0.61, 1e36]) * cap

    harness = Harness(lambda backend, ops: ops.softcap(feed(backend, ops, x), cap), vocab=rows)
    step = rows_step(rows)
    expected = exact(harness, step)
    for isa in ISAS:
        got = forward(harness.compile(native(isa)), step)
        assert_within(got, expected, 10 * EPS * np.abs(expected) + 1e-45, f"{isa} n {n} seed {seed}")


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 100), rows=st.integers(1, 8), seed=SEEDS)
def test_sigmoid_mul(n: int, rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    gate, x = normal(random, rows, 1), normal(random, rows, n)
    gate[0] = random.choice([-1e30, -90, -87.4, -20, 0, 20, 90, 1e30])

    def record(backend: Backend, ops: Recorder) -> Value:
        return ops.sigmoid_mul(feed(backend, ops, gate), feed(backend, ops, x))

    harness, step = Harness(record, vocab=rows), rows_step(rows)
    with np.errstate(over="ignore"):
        expected = exact(harness, step)
    bound = 10 * EPS * np.abs(expected) + 1e-36 * np.abs(x.astype(np.float64))
    for isa in ISAS:
        assert_within(
            forward(harness.compile(native(isa)), step), expected, bound, f"{isa} n {n} seed {seed}"
        )


def test_what_is_no_number_stays_none() -> None:
    """Where exp is capped, a NaN must not become a number on the way."""
    nan, ones = np.full((1, 20), np.nan, np.float32), np.ones((1, 20), np.float32)
    records = {
        "softcap": lambda backend, ops: ops.softcap(feed(backend, ops, nan), 30.0),
        "silu_mul": lambda backend, ops: ops.silu_mul(feed(backend, ops, nan), feed(backend, ops, ones)),
        "gelu_mul": lambda backend, ops: ops.gelu_mul(feed(backend, ops, nan), feed(backend, ops, ones)),
        "sigmoid_mul": lambda backend, ops: ops.sigmoid_mul(
            feed(backend, ops, nan[:, :1]), feed(backend, ops, ones)
        ),
    }
    for name, record in records.items():
        for isa in ISAS:
            got = forward(Harness(record, vocab=1).compile(native(isa)), rows_step(1))
            assert np.isnan(got).all(), (name, isa)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 100), rows=st.integers(1, 8), seed=SEEDS)
def test_add_is_one_rounding(n: int, rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = normal(random, rows, n), normal(random, rows, n)

    def record(backend: Backend, ops: Recorder) -> Value:
        return ops.add(feed(backend, ops, a), feed(backend, ops, b))

    harness, step = Harness(record, vocab=rows), rows_step(rows)
    for isa in ISAS:
        np.testing.assert_array_equal(bits(forward(harness.compile(native(isa)), step)), bits(a + b), isa)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=30, deadline=None)
@given(vocab=st.integers(1, 70), width=st.integers(1, 6), seed=SEEDS, scale=st.sampled_from([1.0, 8.0, 0.3]))
def test_embedding_is_dequantization(format: str, vocab: int, width: int, seed: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    dim = int(random.integers(1, 200)) if format in FLOAT_FORMATS else 32 * width
    table = normal(random, vocab, dim)
    expected = dequantize(store(table, format), format, (vocab, dim)) * np.float32(scale)
    ids = random.integers(0, vocab, 20).tolist()

    def record(backend: Backend, ops: Recorder) -> Value:
        return ops.embedding(matrix(backend, table, format), dim=dim, scale=scale)

    harness = Harness(record, vocab=vocab)
    for isa in ISAS:
        got = forward(harness.compile(native(isa)), Step([Run(ids, 0, [0, 0])]))
        np.testing.assert_array_equal(got, expected[ids], isa)  # numbers: a zero may have either sign


@settings(max_examples=60, deadline=None)
@given(
    heads=st.integers(1, 5),
    half=st.integers(1, 40),
    rest=st.integers(0, 20),
    interleaved=st.booleans(),
    start=st.integers(0, 150_000),
    theta=st.sampled_from([1e4, 1e5, 5e5, 1e6]),
    magnitude=st.sampled_from([1.0, 1.2]),
    growth=st.sampled_from([0.0, 0.0, 0.1]),
    seed=SEEDS,
)
def test_rope(
    heads: int,
    half: int,
    rest: int,
    interleaved: bool,
    start: int,
    theta: float,
    magnitude: float,
    growth: float,
    seed: int,
) -> None:
    """Both pairings, heads of which only the first part is rotated, and positions far out."""
    rows, head_dim = 5, 2 * half + rest
    x = normal(np.random.default_rng(seed), rows, heads * head_dim)
    frequencies = native(ISAS[0]).rope_frequencies(2 * half, theta)

    def record(backend: Backend, ops: Recorder) -> Value:
        angles = ops.rope_angles(frequencies, magnitude=magnitude, growth=growth, period=1000)
        return ops.rope(feed(backend, ops, x), angles, heads=heads, interleaved=interleaved)

    blocks = [0] * ((start + rows) // 256 + 1)
    harness = Harness(record, vocab=rows, kv=KvLayout("float32", 1, 1, 256, 1, 16))
    step = Step([Run(range(rows), start, blocks)])
    expected = exact(harness, step)
    reach = np.abs(x.astype(np.float64)).reshape(rows, heads, -1).max(-1, keepdims=True)
    bound = np.broadcast_to(
        8 * EPS * magnitude * (1 + growth * math.log(200)) * reach, (rows, heads, head_dim)
    ).reshape(rows, -1)
    for isa in ISAS:
        got = forward(harness.compile(native(isa)), step)
        assert_within(got, expected, bound, f"{isa} start {start} seed {seed}")
        untouched = slice(2 * half, None)
        np.testing.assert_array_equal(
            bits(got.reshape(rows, heads, -1)[..., untouched]),
            bits(x.reshape(rows, heads, -1)[..., untouched]),
        )


def test_rope_keeps_lengths_and_depends_on_distance_alone() -> None:
    """The two properties the embedding exists for (arXiv:2104.09864, section 3.2)."""
    head_dim = 64
    random = np.random.default_rng(9)
    q, k = (random.standard_normal(head_dim).astype(np.float32) for _ in range(2))

    def record(backend: Backend, ops: Recorder) -> Value:
        angles = ops.rope_angles(backend.rope_frequencies(head_dim, 1e4))
        return ops.rope(feed(backend, ops, np.stack([q, k])), angles, heads=1, interleaved=True)

    harness = Harness(record, vocab=2, kv=KvLayout("float32", 1, 1, 256, 1, 16))
    for isa in ISAS:
        executable = harness.compile(native(isa))

        def at(token: int, position: int, executable=executable) -> F64:
            step = Step([Run([token], position, [0] * 40)])
            return forward(executable, step)[0].astype(np.float64)

        assert abs(np.linalg.norm(at(0, 777)) - np.linalg.norm(q)) < 1e-5
        near, far = at(0, 107) @ at(1, 100), at(0, 9007) @ at(1, 9000)
        assert abs(near - far) < 1e-4 * np.linalg.norm(q) * np.linalg.norm(k)


@pytest.mark.parametrize("dim", [2, 16, 64, 128, 200])
@pytest.mark.parametrize("theta", [1.0, 2.0, 1e4, 5e5, 1e6, 1e12])
def test_rope_frequencies(dim: int, theta: float) -> None:
    got = native(ISAS[0]).rope_frequencies(dim, theta)
    assert len(got) == dim // 2
    for i, frequency in enumerate(got):
        assert math.isclose(frequency, theta ** (-2 * i / dim), rel_tol=1e-13)


def test_logit_rows_are_picked_in_the_order_asked() -> None:
    x = normal(np.random.default_rng(2), 20, 33)
    harness = Harness(lambda backend, ops: feed(backend, ops, x), vocab=20)
    wanted = [19, 0, 7, 7, 3]
    for isa in ISAS:
        executable = harness.compile(native(isa))
        got = forward(executable, Step(rows_step(20).runs, logits=wanted))
        np.testing.assert_array_equal(bits(got), bits(x[wanted]))
        assert forward(executable, Step(rows_step(20).runs, logits=[])).shape == (0, 33)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 6), rows=st.integers(1, 8), seed=SEEDS, integer=st.booleans())
def test_columns_are_gathered_before_a_product(n: int, rows: int, seed: int, *, integer: bool) -> None:
    """A layer whose columns are stored in another order gives the bits of the same layer in order, of x in that order;
    and layers with equal orders share what is gathered."""
    random = np.random.default_rng(seed)
    dim = 32 * n
    order = random.permutation(dim).astype(np.int32)
    x, weight = normal(random, rows, dim), normal(random, 8, dim)
    format = "Q8_0" if integer else "F32"

    def record(backend: Backend, ops: Recorder) -> Value:
        value = feed(backend, ops, x)
        layer = Linear(matrix(backend, weight, format), None, order)
        first, second = ops.linear(value, layer), ops.linear(value, Linear(layer.weight, None, order.copy()))
        return ops.add(first, second)

    def in_order(backend: Backend, ops: Recorder) -> Value:
        value = feed(backend, ops, np.ascontiguousarray(x[:, order]))
        layer = Linear(matrix(backend, weight, format))
        return ops.add(ops.linear(value, layer), ops.linear(value, layer))

    harness, plain, step = Harness(record, vocab=rows), Harness(in_order, vocab=rows), rows_step(rows)
    program = harness.compile(reference()).program  # type: ignore[attr-defined]
    assert [call.kernel for call in program.calls].count("gather_columns") == 1
    for isa in ISAS:
        got, expected = (forward(h.compile(native(isa)), step) for h in (harness, plain))
        assert np.array_equal(bits(got), bits(expected))
    got, expected = exact(harness, step), exact(plain, step)  # sums in two orders, of terms that may cancel
    assert np.allclose(got, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
