"""Paged attention against float64: cache types, windows, caps, head groups, block sizes, ways to cut the work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_harness import F32, ISAS, Harness, Run, Step, feed, forward, matrix, native, reference

from tokentrail.ops.backend import KV_DTYPES, Backend, KvLayout, Limits
from tokentrail.ops.program import Linear, Recorder, Value


@dataclass
class Shape:
    dtype: str
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    scale: float = 0.0
    sinks: bool = False

    def harness(self, tokens: int, seed: int, *, blocks: int, nan_token: int | None = None) -> Harness:
        """Queries, keys and values of `tokens` different tokens, drawn at random; those of `nan_token` are NaN."""
        random = np.random.default_rng(seed)
        q = random.standard_normal((tokens, self.heads * self.head_dim)).astype(np.float32)
        k = random.standard_normal((tokens, self.kv_heads * self.head_dim)).astype(np.float32)
        v = random.standard_normal((tokens, self.kv_heads * self.head_dim)).astype(np.float32)
        sinks = random.normal(0, 2, self.heads).astype(np.float32) if self.sinks else None
        if nan_token is not None:
            q[nan_token] = k[nan_token] = v[nan_token] = np.nan

        def record(backend: Backend, ops: Recorder) -> Value:
            ops.kv_store(feed(backend, ops, k), feed(backend, ops, v), layer=0)
            return ops.attention(
                feed(backend, ops, q),
                layer=0,
                heads=self.heads,
                scale=self.scale or self.head_dim**-0.5,
                window=self.window,
                softcap=self.softcap,
                sinks=sinks,
            )

        layout = KvLayout(self.dtype, 1, blocks, self.block_size, self.kv_heads, self.head_dim)
        return Harness(record, vocab=tokens, kv=layout, limits=Limits(1024, 64, 1024))


def check(
    shape: Shape,
    steps: list[Step],
    seed: int,
    *,
    blocks: int,
    tokens: int,
    threads: int = 1,
    few: bool = False,
) -> None:
    """Run the steps one after another on one cache, on each instruction set and on the reference. `few`: with so few
    values that one weight rounded otherwise may show in their mean.
    """
    harness = shape.harness(tokens, seed, blocks=blocks)
    oracle = harness.compile(reference())
    expected = [oracle.forward(*step.arrays()).astype(np.float64) for step in steps]
    for isa in ISAS:
        executable = harness.compile(native(isa, threads))
        for index, (step, want) in enumerate(zip(steps, expected, strict=True)):
            got = forward(executable, step)
            error = np.abs(got - want)
            what = f"{isa} {shape} step {index} seed {seed}: worst {error.max():.3g}, mean {error.mean():.3g}"
            # An exp that differs in its last bit can round a weight to the next bfloat16, 2^-8 away: rarely, and for
            # one of many weights. int8 caches have 2^14 weights. float32 caches have no such step. Values are near 1.
            worst, mean = {
                "bfloat16": (2e-2, 5e-3 if few else 1e-4),
                "int8": (2e-3, 5e-4 if few else 1e-4),
                "float32": (2e-5, 4e-6),
            }[shape.dtype]
            assert not np.isnan(got).any(), what
            assert error.max() <= worst, what
            assert error.mean() <= mean, what


def sequences_in_blocks(
    random: np.random.Generator, lengths: list[int], block_size: int
) -> tuple[list[list[int]], int]:
    """Blocks for each length, in an order of no order; and how many blocks there are."""
    needed = [-(-length // block_size) for length in lengths]
    order = random.permutation(sum(needed) + 3).tolist()
    tables, at = [], 0
    for count in needed:
        tables.append(order[at : at + count])
        at += count
    return tables, sum(needed) + 3


shapes = st.builds(
    lambda dtype, group, kv_heads, head_dim, block_size, window, softcap, sinks: Shape(
        dtype, group * kv_heads, kv_heads, head_dim, block_size, window, softcap, sinks=sinks
    ),
    dtype=st.sampled_from(KV_DTYPES),
    group=st.integers(1, 8),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([16, 32, 48, 64, 80, 96, 112, 128, 256]),
    block_size=st.sampled_from([16, 32, 64, 128, 256]),
    window=st.sampled_from([0, 0, 1, 2, 7, 40, 300]),
    softcap=st.sampled_from([0.0, 0.0, 2.0]),
    sinks=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(
    shape=shapes,
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_prompts_in_chunks_then_decode(shape: Shape, lengths: list[int], seed: int) -> None:
    """Several sequences, each in chunks of its own, prefill and decode mixed in one step; block tables at random."""
    random = np.random.default_rng(seed)
    tables, blocks = sequences_in_blocks(random, lengths, shape.block_size)
    ids = [random.integers(0, 97, length).tolist() for length in lengths]
    done = [0] * len(lengths)
    steps = []
    while any(d < length for d, length in zip(done, lengths, strict=True)):
        runs = []
        for s, length in enumerate(lengths):
            if done[s] == length or random.random() < 0.2:
                continue
            count = int(random.integers(1, length - done[s] + 1)) if random.random() < 0.6 else 1
            runs.append(Run(ids[s][done[s] : done[s] + count], done[s], tables[s]))
            done[s] += count
        if runs:
            steps.append(Step(runs))
    check(shape, steps, seed, blocks=blocks, tokens=97, threads=int(random.integers(1, 4)), few=True)


@pytest.mark.parametrize(("window", "sinks"), [(0, False), (300, False), (300, True)])
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_contexts_of_several_segments(dtype: str, window: int, sinks: bool, threads: int) -> None:
    """A prompt over three segments, then decode alone (split over segments and merged) and in company (not split)."""
    seed, length = 17, 700
    random = np.random.default_rng(seed)
    shape = Shape(dtype, heads=4, kv_heads=2, head_dim=32, block_size=64, window=window, sinks=sinks)
    tables, blocks = sequences_in_blocks(random, [length + 3, *[20] * 7], 64)
    ids = random.integers(0, 97, length + 3).tolist()
    steps = [Step([Run(ids[:250], 0, tables[0])]), Step([Run(ids[250:length], 250, tables[0])])]
    steps += [Step([Run([ids[length]], length, tables[0])])]
    company = [Run(ids[s : s + 3 + s], 0, tables[s]) for s in range(1, 8)]
    steps += [Step([company[0], Run([ids[length + 1]], length + 1, tables[0]), *company[1:]])]
    steps += [Step([Run([ids[length + 2]], length + 2, tables[0])])]
    check(shape, steps, seed, blocks=blocks, tokens=97, threads=threads)


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 255, 256, 257, 511, 512, 513])
def test_borders_of_tiles_and_segments(dtype: str, length: int) -> None:
    """The last row of a prompt that ends at, just before or just after a border; then one decoded token."""
    random = np.random.default_rng(length)
    shape = Shape(dtype, heads=3, kv_heads=1, head_dim=16, block_size=16)
    tables, blocks = sequences_in_blocks(random, [length + 1], 16)
    ids = random.integers(0, 97, length + 1).tolist()
    steps = [Step([Run(ids[:length], 0, tables[0])]), Step([Run([ids[length]], length, tables[0])])]
    check(shape, steps, length, blocks=blocks, tokens=97, few=True)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_scores_far_apart(dtype: str) -> None:
    """Scores in the hundreds: weights underflow to exactly zero, and nothing overflows."""
    shape = Shape(dtype, heads=2, kv_heads=1, head_dim=64, scale=20.0)
    ids = np.random.default_rng(0).integers(0, 97, 300).tolist()
    harness = shape.harness(97, 3, blocks=20)
    step = Step([Run(ids, 0, range(19))])
    expected = harness.compile(reference()).forward(*step.arrays())
    for isa in ISAS:
        got = forward(harness.compile(native(isa)), step)
        assert np.isfinite(got).all()
        # One score may win or lose by a rounding of 2^-24 of its size: compare where the reference is decided.
        np.testing.assert_allclose(got, expected, atol=2e-3 if dtype == "float32" else 2e-2)


def test_equal_keys_give_the_mean_of_the_values() -> None:
    """A hand-computable case that does not lean on the reference at all."""
    length, head_dim = 40, 16
    values = np.random.default_rng(1).standard_normal((length, head_dim)).astype(np.float32)
    ones = np.ones((length, head_dim), np.float32)

    def record(backend: Backend, ops: Recorder) -> Value:
        ops.kv_store(feed(backend, ops, ones), feed(backend, ops, values), layer=0)
        return ops.attention(feed(backend, ops, ones), layer=0, heads=1, scale=1.0)

    harness = Harness(record, vocab=length, kv=KvLayout("float32", 1, 3, 16, 1, head_dim))
    means: F32 = np.cumsum(values, 0) / np.arange(1, length + 1)[:, None]
    for isa in ISAS:
        got = forward(harness.compile(native(isa)), Step([Run(range(length), 0, [2, 0, 1])]))
        np.testing.assert_allclose(got, means, atol=1e-5)


def test_a_sink_takes_its_share() -> None:
    """Equal scores of 0 and a sink of log(n): it weighs as much as n tokens, whose values are zero."""
    length, head_dim, weigh = 40, 16, 7
    values = np.random.default_rng(1).standard_normal((length, head_dim)).astype(np.float32)
    zeros = np.zeros((length, head_dim), np.float32)
    sinks = np.array([np.log(weigh)], np.float32)

    def record(backend: Backend, ops: Recorder) -> Value:
        ops.kv_store(feed(backend, ops, zeros), feed(backend, ops, values), layer=0)
        return ops.attention(feed(backend, ops, zeros), layer=0, heads=1, scale=1.0, sinks=sinks)

    harness = Harness(record, vocab=length, kv=KvLayout("float32", 1, 3, 16, 1, head_dim))
    means: F32 = np.cumsum(values, 0) / (np.arange(1, length + 1)[:, None] + weigh)
    for isa in ISAS:
        got = forward(harness.compile(native(isa)), Step([Run(range(length), 0, [2, 0, 1])]))
        np.testing.assert_allclose(got, means, atol=1e-5)


def test_layers_are_kept_apart() -> None:
    random = np.random.default_rng(6)
    k0, v0, k1, v1, q = (random.standard_normal((30, 16)).astype(np.float32) for _ in range(5))

    def record(backend: Backend, ops: Recorder) -> Value:
        ops.kv_store(feed(backend, ops, k0), feed(backend, ops, v0), layer=0)
        ops.kv_store(feed(backend, ops, k1), feed(backend, ops, v1), layer=1)
        first = ops.attention(feed(backend, ops, q), layer=0, heads=1, scale=0.25)
        second = ops.attention(feed(backend, ops, q), layer=1, heads=1, scale=0.25)
        return ops.add(first, second)

    harness = Harness(record, vocab=30, kv=KvLayout("float32", 2, 4, 16, 1, 16))
    step = Step([Run(range(30), 0, [3, 1])])
    expected = harness.compile(reference()).forward(*step.arrays())
    for isa in ISAS:
        np.testing.assert_allclose(forward(harness.compile(native(isa)), step), expected, atol=2e-5)


def test_layers_with_different_numbers_of_heads() -> None:
    """Two layers of one program, 2 and 6 query heads, a context that is split: the parts must not overlap."""
    random = np.random.default_rng(8)
    k, v = (random.standard_normal((97, 32)).astype(np.float32) for _ in range(2))
    few, many = (random.standard_normal((97, heads * 16)).astype(np.float32) for heads in (2, 6))
    widen = random.standard_normal((96, 32)).astype(np.float32)

    def record(backend: Backend, ops: Recorder) -> Value:
        for layer in range(2):
            ops.kv_store(feed(backend, ops, k), feed(backend, ops, v), layer=layer)
        a = ops.attention(feed(backend, ops, few), layer=0, heads=2, scale=0.25)
        b = ops.attention(feed(backend, ops, many), layer=1, heads=6, scale=0.25)
        return ops.linear(a, Linear(matrix(backend, widen)), residual=b)

    layout = KvLayout("float32", 2, 40, 16, 2, 16)
    harness = Harness(record, vocab=97, kv=layout, limits=Limits(1024, 4, 1024))
    ids = random.integers(0, 97, 601).tolist()
    steps = [Step([Run(ids[:600], 0, range(38))]), Step([Run(ids[600:], 600, range(38))])]
    oracle = harness.compile(reference())
    expected = [oracle.forward(*step.arrays()) for step in steps]
    for isa in ISAS:
        executable = harness.compile(native(isa))
        for step, want in zip(steps, expected, strict=True):
            np.testing.assert_allclose(forward(executable, step), want, atol=1e-4)
