"""What adapters add to products: against the reference, and bit for bit whatever other rows do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_harness import (
    EPS,
    F32,
    FLOAT_FORMATS,
    ISAS,
    Harness,
    Run,
    Step,
    bits,
    feed,
    matrix,
    native,
    reference,
)

from tokentrail.ops.backend import Backend, Executable
from tokentrail.ops.program import Linear, LowRank, Recorder, Value

DIM, OUT, VOCAB = 80, 112, 40
SEEDS = st.integers(0, 2**32 - 1)


class Case:
    """A product with adapters of these ranks (0: the adapter does not have the layer)."""

    def __init__(self, ranks: Sequence[int], format: str, seed: int, base: str = "F32") -> None:
        random = np.random.default_rng(seed)

        def normal(*shape: int) -> F32:
            return random.standard_normal(shape).astype(np.float32)

        self.rows, self.weight = normal(VOCAB, 96 if base != "F32" else DIM), None
        dim = self.rows.shape[1]
        self.weight = normal(OUT, dim) / np.float32(np.sqrt(dim))
        self.pairs = [
            (normal(rank, dim) / np.float32(np.sqrt(dim)), normal(OUT, rank), 0.3 * (i + 1)) if rank else None
            for i, rank in enumerate(ranks)
        ]
        self.format, self.base = format, base

    def record(self, backend: Backend, ops: Recorder) -> Value:
        adapters = tuple(
            pair
            and LowRank(matrix(backend, pair[0], self.format), matrix(backend, pair[1], self.format), pair[2])
            for pair in self.pairs
        )
        x = feed(backend, ops, self.rows)
        return ops.linear(x, Linear(matrix(backend, self.weight, self.base), adapters=adapters))

    def compile(self, backend: Backend) -> Executable:
        return Harness(self.record, VOCAB).compile(backend)


def run(executable: Executable, adapters: Sequence[int] | None, counts: Sequence[int]) -> F32:
    """Rows of sequences of so many tokens, which are 0, 1, 2 … in order."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    step = Step([Run(range(starts[i], starts[i + 1]), 0, [0] * 3) for i in range(len(counts))])
    given = None if adapters is None else np.array(adapters, np.int32)
    return executable.forward(*step.arrays(), given).copy()


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.lists(st.sampled_from([0, 1, 4, 16, 33, 256]), min_size=1, max_size=3).filter(any),
    format=st.sampled_from(FLOAT_FORMATS),
    data=st.data(),
    seed=SEEDS,
)
def test_against_the_reference(ranks: list[int], format: str, data: st.DataObject, seed: int) -> None:
    case = Case(ranks, format, seed)
    counts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    adapters = data.draw(
        st.lists(st.integers(-1, len(ranks) - 1), min_size=len(counts), max_size=len(counts))
    )
    expected = run(case.compile(reference()), adapters, counts)
    for isa in ISAS:
        got = run(case.compile(native(isa)), adapters, counts)
        np.testing.assert_allclose(
            got, expected, rtol=0, atol=(DIM + 256) * EPS * 60, err_msg=f"{isa} {seed}"
        )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_has_its_bits_in_any_company(isa: str, threads: int) -> None:
    case = Case([4, 0, 40], "F32", 7)
    executable = case.compile(native(isa, threads))
    random = np.random.default_rng(threads)
    alone = {adapter: run(executable, [adapter], [VOCAB]) for adapter in (-1, 0, 1, 2)}
    np.testing.assert_array_equal(
        bits(alone[1]), bits(alone[-1]), "an adapter without this layer adds nothing"
    )
    np.testing.assert_array_equal(bits(run(executable, None, [VOCAB])), bits(alone[-1]))
    assert not (alone[0] == alone[-1]).any()
    for _ in range(30):
        cuts = np.sort(random.choice(np.arange(1, VOCAB), int(random.integers(0, 12)), replace=False))
        starts = [0, *cuts.tolist(), VOCAB]
        counts = np.diff(starts).tolist()
        adapters = random.integers(-1, 3, len(counts)).tolist()
        got = run(executable, adapters, counts)
        for start, end, adapter in zip(starts[:-1], starts[1:], adapters, strict=True):
            np.testing.assert_array_equal(bits(got[start:end]), bits(alone[adapter][start:end]))


@pytest.mark.parametrize("base", ["Q8_0", "Q4_0"])
def test_the_base_has_the_bits_that_it_has_without_adapters(base: str) -> None:
    """Adapters that are loaded change nothing for who does not use them, outliers of int8 rows included."""
    case, plain = Case([8], "F32", 3, base), Case([0], "F32", 3, base)
    got, expected = (run(one.compile(native(ISAS[0])), [-1], [VOCAB]) for one in (case, plain))
    np.testing.assert_array_equal(bits(got), bits(expected))


def test_an_adapter_that_is_not_there_is_refused() -> None:
    executable = Case([4], "F32", 0).compile(native(ISAS[0]))
    for adapters in ([1], [-2], [0, 0]):
        with pytest.raises(ValueError, match=r"adapter out of range|different lengths"):
            run(executable, adapters, [3])
