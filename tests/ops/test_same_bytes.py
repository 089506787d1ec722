"""Promise 1 at the level of kernels: a row's bytes depend on the row alone, whatever is computed beside it and however.

Every comparison here is of bits. Tests of closeness are in the other files of this folder.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_harness import FORMATS, ISAS, Harness, Run, Step, bits, feed, forward, matrix, native, rows_step
from test_attention import Shape, sequences_in_blocks

from tokentrail.ops.backend import KV_DTYPES, Backend
from tokentrail.ops.program import Linear, Recorder, Value

U32 = npt.NDArray[np.uint32]


def row_program(format: str, rows: int) -> Harness:
    """All ops that work row by row, around products of one format with odd sizes."""
    random = np.random.default_rng(42)
    dim, inner = 96, 205  # 205: panels in fours, in twos and alone, the last one partly filled
    x = (random.standard_normal((rows, dim)) * random.lognormal(0, 2, (rows, dim))).astype(np.float32)
    x[:, 7] *= 40
    up_w, gate_w = (random.standard_normal((inner, dim)).astype(np.float32) / 10 for _ in range(2))
    down_w = random.standard_normal((dim, 224)).astype(np.float32) / 10
    pad = np.zeros((19, dim), np.float32)  # the second product needs whole groups: 205 + 19
    norm, bias = random.standard_normal((2, dim)).astype(np.float32)
    one = random.standard_normal((1, dim)).astype(np.float32)

    def record(backend: Backend, ops: Recorder) -> Value:
        value = feed(backend, ops, x)
        h = ops.rms_norm(value, norm, eps=1e-5)
        h = ops.rms_norm(ops.add(h, ops.softcap(value, 3.0)), norm[:32], eps=1e-5, heads=3)
        gate = ops.linear(h, Linear(matrix(backend, np.concatenate([gate_w, pad]), format)))
        up = ops.linear(h, Linear(matrix(backend, np.concatenate([up_w, pad]), format)))
        down = Linear(matrix(backend, down_w, format), bias)
        both = ops.add(ops.silu_mul(gate, up), ops.gelu_mul(up, gate))
        both = ops.sigmoid_mul(ops.linear(h, Linear(matrix(backend, one))), both)
        return ops.linear(both, down, residual=value)

    return Harness(record, vocab=rows)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", FORMATS)
def test_rows_do_not_depend_on_the_batch(isa: str, format: str) -> None:
    """Each row alone, then 1 to 40 rows together, then more than one block of rows, on 1 to 4 threads."""
    rows = 260
    harness = row_program(format, rows)
    alone = harness.compile(native(isa))
    expected = np.concatenate([bits(forward(alone, Step([Run([row])]))) for row in range(40)])
    whole = bits(forward(alone, rows_step(rows)))
    np.testing.assert_array_equal(whole[:40], expected)
    for threads in (1, 2, 3, 4):
        executable = harness.compile(native(isa, threads))
        for count in range(threads, 41, 1 if threads == 1 else 7):
            got = bits(forward(executable, Step([Run(range(40 - count, 40), 0, [0] * 3)])))
            np.testing.assert_array_equal(got, expected[40 - count :], f"{count} rows on {threads} threads")
        np.testing.assert_array_equal(bits(forward(executable, rows_step(rows))), whole)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_that_are_not_numbers_stay_by_themselves(isa: str) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((12, 64)).astype(np.float32)
    x[3], x[7], x[8] = np.nan, np.inf, 3e38
    w = random.standard_normal((50, 64)).astype(np.float32)
    good = [row for row in range(12) if row not in (3, 7, 8)]
    for format in FORMATS:

        def record(backend: Backend, ops: Recorder, format: str = format) -> Value:
            return ops.linear(feed(backend, ops, x), Linear(matrix(backend, w, format)))

        executable = Harness(record, vocab=12).compile(native(isa))
        together = bits(forward(executable, Step([Run(range(12))])))[good]
        apart = bits(forward(executable, Step([Run(good)])))
        np.testing.assert_array_equal(together, apart, format)


def attention_bits(
    shape: Shape,
    isa: str,
    ids: list[int],
    *,
    seed: int,
    cuts: list[int],
    threads: int = 1,
    poison: bool = False,
    company: int = 0,
    eager: bool = False,
) -> U32:
    """The bits of every position's attention, computed in the chunks that `cuts` make.

    `poison` first fills the whole cache with NaN; `company` sequences of random lengths run beside each chunk. Block
    tables are random.
    """
    random = np.random.default_rng(seed)
    tables, blocks = sequences_in_blocks(random, [len(ids), *[40] * company], shape.block_size)
    harness = shape.harness(98, 5, blocks=blocks, nan_token=97)
    executable = harness.compile(native(isa, threads), eager=eager)
    if poison:
        every = list(range(blocks))
        for start in range(0, blocks * shape.block_size, 256):
            count = min(256, blocks * shape.block_size - start)
            forward(executable, Step([Run([97] * count, start, every)], logits=[]))
    out = []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        beside = [
            Run(random.integers(0, 98, random.integers(1, 41)).tolist(), 0, table) for table in tables[1:]
        ]
        place = int(random.integers(0, company + 1))
        runs = [*beside[:place], Run(ids[start:end], start, tables[0]), *beside[place:]]
        first = sum(len(run.tokens) for run in runs[:place])
        out.append(bits(forward(executable, Step(runs, logits=range(first, first + end - start)))))
    return np.concatenate(out)


def random_cuts(random: np.random.Generator, length: int, count: int) -> list[int]:
    return sorted(random.choice(np.arange(1, length), min(count, length - 1), replace=False).tolist())


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(KV_DTYPES))
def test_attention_does_not_depend_on_how_it_is_computed(*, isa: str, dtype: str, seed: int) -> None:
    """Chunks, block size, block table, threads, company, stale garbage and eager execution, all at random."""
    random = np.random.default_rng(seed)

    def pick(*values: int) -> int:
        return int(random.choice(values))

    group, kv_heads, window, head_dim = pick(1, 2, 3, 5), pick(1, 2), pick(0, 0, 30, 270), pick(16, 48, 64)
    length = pick(33, 290, 530)
    ids = random.integers(0, 97, length).tolist()

    softcap, sinks = float(pick(0, 0, 3)), bool(pick(0, 1))

    def shape(block_size: int) -> Shape:
        return Shape(
            dtype, group * kv_heads, kv_heads, head_dim, block_size, window, softcap=softcap, sinks=sinks
        )

    expected = attention_bits(shape(16), isa, ids, seed=0, cuts=[])
    assert np.isfinite(expected.view(np.float32)).all()
    for variant in range(2):
        got = attention_bits(
            shape(pick(16, 32, 64, 128, 256)),
            isa,
            ids,
            seed=seed + variant,
            cuts=random_cuts(random, length, pick(0, 1, 3, 12)),
            threads=pick(1, 2, 3),
            poison=bool(pick(0, 1, 1)),
            company=pick(0, 0, 1, 9),
            eager=bool(pick(0, 1)),
        )
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_token_by_token_is_the_prompt_at_once(isa: str, dtype: str) -> None:
    """530 decode steps over a poisoned cache: every position passes every place of a tile and three segments."""
    ids = np.random.default_rng(7).integers(0, 97, 530).tolist()
    shape = Shape(dtype, heads=6, kv_heads=2, head_dim=32)
    expected = attention_bits(shape, isa, ids, seed=1, cuts=[])
    got = attention_bits(shape, isa, ids, seed=2, cuts=list(range(1, 530)), poison=True)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("window", [0, 9])
def test_no_number_reaches_no_row_before_it(isa: str, dtype: str, window: int) -> None:
    """A row that is NaN, with its keys and values, in the same chunk: the rows before it do not see it, the ones after
    it do, as long as it is in their window."""
    ids = np.random.default_rng(3).integers(0, 97, 300).tolist()
    shape = Shape(dtype, heads=6, kv_heads=2, head_dim=32, window=window)
    clean = attention_bits(shape, isa, ids, seed=1, cuts=[])
    for at in (0, 1, 6, 17, 30, 255, 256, 299):
        seen = attention_bits(shape, isa, [*ids[:at], 97, *ids[at + 1 :]], seed=1, cuts=[])
        np.testing.assert_array_equal(seen[:at], clean[:at])
        reach = at + window if window else len(ids)
        assert np.isnan(seen[at:reach].view(np.float32)).all()
        np.testing.assert_array_equal(seen[reach:], clean[reach:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("window", "sinks"), [(0, False), (300, False), (300, True)])
def test_a_split_context_is_a_whole_one(isa: str, window: int, sinks: bool) -> None:
    """A long sequence is split over segments and merged, a few rows at a time or one; with many others beside it, or on
    one thread, it is not."""
    ids = np.random.default_rng(8).integers(0, 97, 1100).tolist()
    shape = Shape("bfloat16", heads=8, kv_heads=4, head_dim=32, block_size=64, window=window, sinks=sinks)
    cuts = [500, 1000, *range(1001, 1100, 9)]
    expected = attention_bits(shape, isa, ids, seed=1, cuts=cuts)  # 4 heads, 1 thread: whole
    split = attention_bits(shape, isa, ids, seed=2, cuts=cuts, threads=3)
    beside = attention_bits(shape, isa, ids, seed=3, cuts=cuts, threads=3, company=16)
    np.testing.assert_array_equal(split, expected)
    np.testing.assert_array_equal(beside, expected)


def test_split_and_whole_paths_are_both_taken() -> None:
    """The test above compares something only if the native planner splits where it is thought to."""
    ids = np.random.default_rng(8).integers(0, 97, 600).tolist()
    for threads, company, split in ((1, 0, False), (3, 0, True), (3, 4, True), (3, 7, False)):
        shape = Shape("float32", heads=8, kv_heads=4, head_dim=16)
        tables, blocks = sequences_in_blocks(np.random.default_rng(1), [600, *[16] * company], 16)
        executable = shape.harness(97, 5, blocks=blocks).compile(native(ISAS[0], threads))
        forward(executable, Step([Run(ids[:-1], 0, tables[0])], logits=[]))
        executable.program.set_timing(True)  # type: ignore[attr-defined]
        beside = [Run([1], 0, table) for table in tables[1:]]
        forward(executable, Step([Run(ids[-1:], 599, tables[0]), *beside]))
        seconds = {t.name: t.seconds for t in executable.program.timings()}  # type: ignore[attr-defined]
        assert (seconds["merge"] > 0) is split
