"""The recorder: symbolic values that refuse to be numbers, and a lowering that shares buffers without mixing them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from ops_harness import ISAS, Harness, feed, forward, matrix, native, reference, rows_step

from tokentrail.ops.backend import Backend, KvLayout, Limits
from tokentrail.ops.native import NativeBackend
from tokentrail.ops.program import Call, Linear, Program, Recorder, Value


@pytest.mark.parametrize(
    "use", [bool, int, float, len, operator.index, lambda v: 1 if v else 0, lambda v: [0][v]]
)
def test_values_refuse_to_be_numbers(use: Any) -> None:
    """A forward pass that asked how many tokens there are would be recorded for one step size only."""
    value = Recorder().rope_angles((1.0, 0.5))
    with pytest.raises(TypeError, match="recorded value has no number"):
        use(value)


def test_values_know_their_shape() -> None:
    ops = Recorder()
    x = feed(native(ISAS[0]), ops, np.zeros((5, 40), np.float32))
    assert (x.rows, x.dim) == ("tokens", 40)
    assert (ops.logit_rows(x).rows, ops.logit_rows(x).dim) == ("logits", 40)
    assert ops.linear(x, Linear(matrix(native(ISAS[0]), np.zeros((7, 40), np.float32)))).dim == 7
    assert repr(x) == "Value(0: [tokens, 40])"


def test_last_use() -> None:
    ops = Recorder()
    x = ops.rope_angles((1.0,))
    y = ops.add(x, x)
    unused = ops.add(y, y)
    z = ops.add(x, y)
    program = ops.finish(z)
    assert [program.last_use(v.id) for v in (x, y, unused, z)] == [3, 3, -1, 4]


def chain(length: int) -> Harness:
    """y = 2x, again and again, through norms that leave it as it is."""
    ones = np.ones((3, 32), np.float32)

    def record(backend: Backend, ops: Recorder) -> Value:
        x = feed(backend, ops, ones)
        for _ in range(length):
            x = ops.add(x, x)
        return x

    return Harness(record, vocab=3)


def test_buffers_are_reused_along_a_deep_program() -> None:
    shallow, deep = (chain(n).compile(native(ISAS[0])) for n in (4, 60))
    assert deep.nbytes == shallow.nbytes
    assert forward(deep, rows_step(3))[0, 0] == 2.0**60


def test_a_value_read_late_keeps_its_buffer() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((8, 64)).astype(np.float32)
    weight = random.standard_normal((64, 64)).astype(np.float32)
    norm = np.ones(64, np.float32)

    def record(backend: Backend, ops: Recorder) -> Value:
        early = feed(backend, ops, rows)
        normed = ops.rms_norm(early, norm, eps=1e-5)
        x = normed
        for format in ("Q4_1", "F32", "Q8_0"):
            x = ops.rms_norm(ops.linear(x, Linear(matrix(backend, weight, format))), norm, eps=1e-5)
        return ops.add(ops.add(x, early), normed)

    harness = Harness(record, vocab=8)
    expected = harness.compile(reference()).forward(*rows_step(8).arrays())
    for isa in ISAS:
        got = forward(harness.compile(native(isa, 2)), rows_step(8))
        np.testing.assert_allclose(got, expected, atol=2e-2)


def compile_program(program: Program) -> Any:
    return native(ISAS[0]).compile(program, KvLayout("float32", 1, 1, 16, 1, 16), Limits(4, 1, 4), 3)


def test_rope_of_a_value_that_is_read_again_is_refused() -> None:
    """Rope works in place, so the value before it is gone."""
    ops = Recorder()
    x = feed(native(ISAS[0]), ops, np.zeros((3, 32), np.float32))
    rotated = ops.rope(x, ops.rope_angles((1.0,)), heads=1, interleaved=True)
    with pytest.raises(ValueError, match="in place"):
        compile_program(ops.finish(ops.add(x, rotated)))


def test_an_op_without_a_kernel_is_named() -> None:
    value = Value(0, "tokens", 4)
    with pytest.raises(ValueError, match="no native kernel for conv"):
        compile_program(Program((Call("conv", (), 0),), (value,), 0))


@pytest.mark.parametrize("isa", ["", "avx3", "AVX2"])
def test_unknown_instruction_sets(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENTRAIL_ISA", raising=False)
    if isa == "":
        assert NativeBackend(1, isa).isa == ISAS[0], "empty means: choose"
        return
    with pytest.raises(ValueError, match=rf"'{isa}' is not available here; there is: .*portable"):
        NativeBackend(1, isa)


def test_eager_execution_is_the_same_program() -> None:
    harness = chain(5)
    for isa in ISAS:
        eager = forward(harness.compile(native(isa), eager=True), rows_step(3))
        np.testing.assert_array_equal(eager, forward(harness.compile(native(isa)), rows_step(3)))
