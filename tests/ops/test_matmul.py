"""Products with packed weights against float64, for every layout, instruction set, and odd shape."""

from __future__ import annotations

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

from random_blocks import BLOCKS, GROUPED, blocks_of, random_blocks, without_quants
from random_models import store
from tokentrail.checkpoints import RUNNABLE_FORMATS, dequantize, is_runnable
from tokentrail.ops.backend import Backend
from tokentrail.ops.program import OUTLIERS, Linear, Recorder, Value
from tokentrail.ops.reference.backend import quantize_rows


def heavy_tailed(random: np.random.Generator, rows: int, columns: int) -> F32:
    """Activations as models have them: most values small, a few channels huge, some groups and rows all zero."""
    x = random.standard_normal((rows, columns)) * random.lognormal(0, 1, (rows, columns))
    x[:, random.integers(columns)] *= 50
    x[random.random(rows) < 0.1] = 0
    x[:, : columns // 32 * 32].reshape(rows, -1, 32)[random.random((rows, columns // 32)) < 0.1] = 0
    return x.astype(np.float32)


OTHER_FORMATS = tuple(sorted({*BLOCKS, *GROUPED} - set(INTEGER_FORMATS)))
"""Integer formats that the other tests of this folder leave out."""


def magnitude(weights: F32, stored: np.ndarray, format: str) -> F64:
    """|w| as the kernel adds it up: minima are added apart, so they count apart."""
    minima = None if format in FLOAT_FORMATS else without_quants(format, stored)
    if minima is None:
        return np.abs(weights).astype(np.float64)
    apart = dequantize(minima, format, weights.shape).astype(np.float64)
    return np.asarray(np.abs(weights - apart) + np.abs(apart))


def check(
    format: str, n: int, k: int, rows: int, seed: int, *, bias: bool, residual: bool, x: F32 | None = None
) -> None:
    random = np.random.default_rng(seed)
    stored = (
        store(random.standard_normal((n, k)).astype(np.float32), format)
        if format in FLOAT_FORMATS
        else random_blocks(format, n, k, random)
    )
    x = heavy_tailed(random, rows, k) if x is None else x
    b = random.standard_normal(n).astype(np.float32) if bias else None
    r = random.standard_normal((rows, n)).astype(np.float32) if residual else None

    def record(backend: Backend, ops: Recorder) -> Value:
        added = None if r is None else feed(backend, ops, r)
        layer = Linear(backend.matrix(format, stored, n, k), b)
        return ops.linear(feed(backend, ops, x), layer, residual=added)

    harness = Harness(record, vocab=rows)
    step = rows_step(rows)
    expected = reference()
    oracle = harness.compile(expected)
    oracle.forward(*step.arrays())
    exact = oracle.values[oracle.program.logits]  # type: ignore[attr-defined]

    weights = dequantize(stored, format, (n, k))
    seen = np.abs(
        quantize_rows(x.astype(np.float64)) if expected.is_integer(format) else x.astype(np.float64)
    )
    total = seen @ magnitude(weights, stored, format).T
    total += 0 if b is None else np.abs(b)
    total += 0 if r is None else np.abs(r)
    # Each of k products and additions may round once (integer layouts: far fewer, but scales and sums round too).
    bound = (2 * k + 8) * EPS * total + 1e-37
    for isa in ISAS:
        got = forward(harness.compile(native(isa)), step)
        assert_within(got, exact, bound, f"{isa} {format} [{rows}, {k}] x [{n}, {k}] seed {seed}")


@pytest.mark.parametrize("format", INTEGER_FORMATS)
@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 130),
    groups=st.integers(1, 6),
    rows=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    bias=st.booleans(),
    residual=st.booleans(),
)
def test_integer_layouts(
    format: str, n: int, groups: int, rows: int, seed: int, bias: bool, residual: bool
) -> None:
    check(format, n, 32 * groups, rows, seed, bias=bias, residual=residual)


@pytest.mark.parametrize("format", OTHER_FORMATS)
@settings(max_examples=8, deadline=None)
@given(
    n=st.integers(1, 50),
    blocks=st.integers(1, 3),
    rows=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    bias=st.booleans(),
    residual=st.booleans(),
)
def test_other_integer_layouts(
    format: str, n: int, blocks: int, rows: int, seed: int, bias: bool, residual: bool
) -> None:
    check(format, n, blocks * blocks_of(format).values, rows, seed, bias=bias, residual=residual)


@pytest.mark.parametrize("format", FLOAT_FORMATS)
@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 130),
    k=st.integers(1, 170),
    rows=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    bias=st.booleans(),
    residual=st.booleans(),
)
def test_float_layouts(format: str, n: int, k: int, rows: int, seed: int, bias: bool, residual: bool) -> None:
    check(format, n, k, rows, seed, bias=bias, residual=residual)


@pytest.mark.parametrize("format", FORMATS)
def test_more_rows_than_one_block_of_rows(format: str) -> None:
    check(format, n=40, k=64, rows=270, seed=7, bias=True, residual=True)


@pytest.mark.parametrize("format", OTHER_FORMATS)
def test_embeddings_and_single_rows(format: str) -> None:
    """Rows of a table are what its format means, and one row's product has the bits that it has among 130."""
    random = np.random.default_rng(2)
    n, k, rows = 37, 2 * max(256, blocks_of(format).values), 130
    stored, x = random_blocks(format, n, k, random), heavy_tailed(random, rows, k)

    def embed(backend: Backend, ops: Recorder) -> Value:
        return ops.embedding(backend.matrix(format, stored, n, k), dim=k)

    def multiply(backend: Backend, ops: Recorder) -> Value:
        return ops.linear(feed(backend, ops, x), Linear(backend.matrix(format, stored, n, k)))

    for isa in ISAS:
        table = forward(Harness(embed, vocab=n).compile(native(isa)), rows_step(n))
        np.testing.assert_array_equal(table, dequantize(stored, format, (n, k)), isa)
        executable = Harness(multiply, vocab=rows).compile(native(isa))
        together = bits(forward(executable, rows_step(rows)))
        for row in (0, 1, 77, 129):
            np.testing.assert_array_equal(
                bits(forward(executable, Step([Run([row])]))), together[row : row + 1]
            )
        for few in (2, 5, 6, 13):
            got = bits(forward(executable, Step([Run(range(few))])))
            np.testing.assert_array_equal(got, together[:few], f"{isa} {few}")


@pytest.mark.parametrize("format", [*INTEGER_FORMATS, *OTHER_FORMATS])
def test_any_bytes_are_read_in_bounds(format: str) -> None:
    """Scales that are no numbers, indices of every kind: columns of numbers stay right beside those that are not."""
    random = np.random.default_rng(3)
    form = blocks_of(format)
    n, k, rows = 64, max(64, form.values), 7
    stored = random.integers(0, 256, n * k // form.values * form.nbytes, dtype=np.uint8)
    x = random.standard_normal((rows, k)).astype(np.float32)

    def record(backend: Backend, ops: Recorder) -> Value:
        return ops.linear(feed(backend, ops, x), Linear(backend.matrix(format, stored, n, k)))

    with np.errstate(all="ignore"):
        weights = dequantize(stored, format, (n, k)).astype(np.float64)
        good = np.isfinite(weights).all(axis=1) & (np.abs(weights).max(axis=1) < 1e30)
        exact = quantize_rows(x.astype(np.float64), OUTLIERS) @ weights.T
        bound = (
            (2 * k + 8) * EPS * (np.abs(x) * 1.1 @ magnitude(weights.astype(np.float32), stored, format).T)
        )
    assert good.any()
    for isa in ISAS:
        got = forward(Harness(record, vocab=rows).compile(native(isa)), rows_step(rows))
        assert_within(got[:, good], exact[:, good], bound[:, good] + 1e-37, f"{isa} {format}")


def test_what_files_may_hold_is_what_kernels_run() -> None:
    assert {*BLOCKS, *FLOAT_FORMATS} == RUNNABLE_FORMATS
    for format in ("Q8_K", "I8", "G4_48", "G4_8", "G5_32"):
        assert not is_runnable(format)
        with pytest.raises(ValueError, match="no packed layout"):
            native(ISAS[0]).packed_bytes(format, 16, 768)
    for format in (*RUNNABLE_FORMATS, *GROUPED):
        assert is_runnable(format)
        assert native(ISAS[0]).is_integer(format) is reference().is_integer(format)


@pytest.mark.parametrize("format", sorted({*BLOCKS, *GROUPED, *FLOAT_FORMATS}))
def test_packed_weights_are_no_larger_than_stored_ones(format: str) -> None:
    """At most 1.1 times the file's bytes, and what the backend says beforehand is what packing takes."""
    n, k = 64, 2048
    stored = (
        store(np.zeros((n, k), np.float32), format)
        if format in FLOAT_FORMATS
        else random_blocks(format, n, k, np.random.default_rng(1))
    )
    backend = native(ISAS[0])
    before = backend.weight_bytes
    packed = backend.matrix(format, stored, n, k)
    assert packed.nbytes == backend.packed_bytes(format, n, k) <= 1.1 * stored.nbytes
    assert backend.weight_bytes - before >= packed.nbytes


@pytest.mark.parametrize("format", INTEGER_FORMATS)
def test_extreme_activations(format: str) -> None:
    """Zeros, lone outliers, equal groups, huge and tiny values: where quantization could divide by zero or overflow."""
    k = 128
    x = np.zeros((10, k), np.float32)
    x[1, 5] = 3.0
    x[2] = 1.0
    x[3] = -1.0
    x[4, :32], x[4, 32:] = 1e6, 1e-6
    x[5] = 1e30
    x[6] = 1e-30
    x[7, ::2], x[7, 1::2] = 127.0, -127.0
    x[8] = np.linspace(-1, 1, k)
    x[9, 40] = -1e-21
    with np.errstate(over="ignore"):  # the square of a step, in the reference as in the kernels
        check(format, n=33, k=k, rows=10, seed=11, bias=False, residual=False, x=x)


@pytest.mark.parametrize("format", INTEGER_FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_stays_visible_in_its_own_row(format: str, bad: float) -> None:
    random = np.random.default_rng(13)
    w, x = (random.standard_normal((n, 64)).astype(np.float32) for n in (20, 8))
    x[3, 40] = bad

    def record(backend: Backend, ops: Recorder) -> Value:
        return ops.linear(feed(backend, ops, x), Linear(matrix(backend, w, format)))

    for isa in ISAS:
        got = forward(Harness(record, vocab=8).compile(native(isa)), rows_step(8))
        assert np.isnan(got).all(axis=1).tolist() == [row == 3 for row in range(8)], isa


def test_outliers_keep_their_remainders() -> None:
    """Rounding to plain int8 groups would be at least twice as wrong on rows with outliers as what kernels do."""
    random = np.random.default_rng(5)
    x = random.standard_normal((16, 256)).astype(np.float32)
    x[:, 77] *= 60

    groups = x.reshape(16, -1, 32).astype(np.float64)
    step = np.abs(groups).max(-1, keepdims=True) / 127
    plain = (np.rint(groups / step) * step).reshape(x.shape)
    kept = quantize_rows(x.astype(np.float64))
    assert np.square(kept - x).mean() * 4 < np.square(plain - x).mean()
    check("Q8_0", n=48, k=256, rows=16, seed=5, bias=False, residual=False, x=x)


def test_a_residual_that_is_read_again_is_not_overwritten() -> None:
    """The lowering may let a product write over its residual, but only if nobody reads that later."""
    random = np.random.default_rng(3)
    w, x = (random.standard_normal((32, 32)).astype(np.float32) for _ in range(2))

    def record(backend: Backend, ops: Recorder) -> Value:
        value = feed(backend, ops, x)
        twice = ops.linear(feed(backend, ops, x), Linear(matrix(backend, w)), residual=value)
        return ops.add(twice, value)

    harness, step = Harness(record, vocab=32), rows_step(32)
    expected = forward(harness.compile(reference()), step)
    for isa in ISAS:
        np.testing.assert_allclose(
            forward(harness.compile(native(isa)), step), expected, rtol=1e-4, atol=1e-4
        )


def test_a_product_may_add_its_own_input() -> None:
    random = np.random.default_rng(4)
    w, x = (random.standard_normal((32, 32)).astype(np.float32) for _ in range(2))

    def record(backend: Backend, ops: Recorder) -> Value:
        value = feed(backend, ops, x)
        return ops.linear(value, Linear(matrix(backend, w)), residual=value)

    harness, step = Harness(record, vocab=32), rows_step(32)
    expected = forward(harness.compile(reference()), step)
    for isa in ISAS:
        np.testing.assert_allclose(
            forward(harness.compile(native(isa)), step), expected, rtol=1e-4, atol=1e-4
        )
