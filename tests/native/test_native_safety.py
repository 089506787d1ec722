"""The native module against wrong use: errors in Python, never a crash, a hang, or a touch of foreign memory.

Seeds are fresh on every run and printed with a failure. Under `scripts/sanitize.sh` the same tests run with the address
sanitizer, which sees what does not crash by luck.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tokentrail.ops.backend import KV_DTYPES
from tokentrail.ops.native import _native, available_isas

ISAS = available_isas()
SECONDS = float(os.environ.get("TOKENTRAIL_FUZZ_SECONDS", "0.8"))
"""How long each fuzzer runs."""
REFUSALS = (ValueError, TypeError, MemoryError)

Array = npt.NDArray[Any]


@pytest.fixture
def pool() -> Any:
    return _native.ThreadPool(2)


@pytest.fixture
def seed() -> int:
    """A fresh seed, or TOKENTRAIL_FUZZ_SEED's; pytest shows what is printed when the test fails."""
    value = int(os.environ.get("TOKENTRAIL_FUZZ_SEED", int.from_bytes(os.urandom(4), "little")))
    print(f"TOKENTRAIL_FUZZ_SEED={value}", flush=True)
    return value


def for_a_while(seed: int, attempt: Callable[[np.random.Generator], None]) -> None:
    """Call again and again, for some seconds; only refusals may come out. Some calls have to succeed."""
    random = np.random.default_rng(seed)
    succeeded = refused = 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until or succeeded == 0 or refused == 0:
        try:
            attempt(random)
            succeeded += 1
        except REFUSALS:
            refused += 1
        assert succeeded + refused < 1_000_000
        if time.monotonic() > until + 20 and not (succeeded and refused):
            pytest.fail(f"{succeeded} calls succeeded, {refused} were refused: the fuzzer tests nothing")


def pack(pool: Any, format: str, n: int, k: int, *, fill: int = 0) -> Any:
    size = {
        "F32": 4 * k,
        "F16": 2 * k,
        "BF16": 2 * k,
        "Q4_0": k // 32 * 18,
        "Q4_1": k // 32 * 20,
        "Q8_0": k // 32 * 34,
    }
    return _native.pack(_native.Arena(), pool, format, np.full(n * size[format], fill, np.uint8), n, k)


# --- sizes that overflow, numbers below zero -------------------------------------------------------

EXTREMES = [-(2**63), -(2**31), -1, 0, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1]


@pytest.mark.parametrize("threads", [-(2**31), -1, 0, 1025, 2**31 - 1])
def test_impossible_numbers_of_threads(threads: int) -> None:
    with pytest.raises(ValueError, match="threads"):
        _native.ThreadPool(threads)


def test_impossible_matrices(pool: Any) -> None:
    empty = np.zeros(0, np.uint8)
    for format in ("F32", "BF16", "Q4_1"):
        for n in (*EXTREMES, 1, 32):
            for k in (*EXTREMES, 1, 32):
                if n in (1, 32) and k in (1, 32):
                    continue
                with pytest.raises(REFUSALS):
                    _native.pack(_native.Arena(), pool, format, empty, n, k)
                if min(n, k) < 1:
                    with pytest.raises(ValueError):
                        _native.packed_bytes(format, n, k)


@pytest.mark.parametrize(
    "format",
    [
        "",
        "Q8_K",
        "q4_0",
        "F32\0",
        "I8",
        "G4",
        "G4_",
        "G4_48",
        "G4_032",
        "G5_32",
        "G4_-32",
        "G4_32x",
        "G4_99999999999",
    ],
)
def test_unknown_formats(format: str, pool: Any) -> None:
    for call in (_native.layout_name, _native.is_integer, lambda f: _native.packed_bytes(f, 16, 32)):
        with pytest.raises(ValueError, match="no packed layout"):
            call(format)
    with pytest.raises(ValueError, match="no packed layout"):
        _native.pack(_native.Arena(), pool, format, np.zeros(64, np.uint8), 1, 32)


@pytest.mark.parametrize("difference", [-1, 1])
def test_matrix_data_of_the_wrong_size(difference: int, pool: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        _native.pack(_native.Arena(), pool, "Q8_0", np.zeros(16 * 34 + difference, np.uint8), 16, 32)
    with pytest.raises(ValueError, match="do not divide into blocks"):
        _native.pack(_native.Arena(), pool, "Q8_0", np.zeros(16 * 34, np.uint8), 16, 33)


def test_impossible_caches() -> None:
    good = {"layers": 1, "blocks": 2, "block_size": 16, "heads": 1, "head_dim": 16}
    _native.KvCache("bfloat16", **good)
    for name in good:
        bad = [v for v in EXTREMES if not (name in ("blocks", "heads") and v == 2**31 - 1)]
        for value in [*bad, *{"block_size": [8, 17, 24, 512], "head_dim": [8, 17, 1040]}.get(name, [])]:
            with pytest.raises(REFUSALS):
                _native.KvCache("float32", **{**good, name: value})
    with pytest.raises(REFUSALS):
        _native.KvCache("float32", 2**16, 2**31 - 1, 256, 2**31 - 1, 1024)
    with pytest.raises(ValueError, match="bfloat16, int8 or float32"):
        _native.KvCache("int4", **good)


def test_impossible_programs(pool: Any) -> None:
    cache = _native.KvCache("bfloat16", 1, 2, 16, 1, 16)
    for position in range(4):
        for value in (v for v in EXTREMES if position < 3 or v < 1):
            sizes = [4, 4, 4, 10]
            sizes[position] = value
            if position == 3:
                with pytest.raises(REFUSALS):
                    _native.Sampler(pool, ISAS[0], value)
                continue
            with pytest.raises(REFUSALS):
                _native.Program(pool, ISAS[0], cache, *sizes)
    program = _native.Program(pool, ISAS[0], cache, 4, 4, 4, 10)
    for dim in EXTREMES:
        if dim != 2**31 - 1:
            with pytest.raises(REFUSALS):
                program.buffer(False, dim, False)
    with pytest.raises(ValueError, match="multiple of 32"):
        program.buffer(False, 33, True)
    for buffer in (-1, 0, 1, 2**31 - 1):  # none of the refused ones may exist
        with pytest.raises(ValueError, match="unknown buffer"):
            program.array(buffer, 1)
    real = program.buffer(False, 32, False)
    for rows, expected in ((-(2**63), 0), (-1, 0), (0, 0), (3, 3), (5, 4), (2**63 - 1, 4)):
        assert program.array(real, rows).shape == (expected, 32)


def test_none_and_foreign_objects_are_refused(pool: Any) -> None:
    cache = _native.KvCache("bfloat16", 1, 2, 16, 1, 16)
    for call in (
        lambda: _native.pack(None, pool, "F32", np.zeros(64, np.uint8), 1, 16),
        lambda: _native.pack(_native.Arena(), None, "F32", np.zeros(64, np.uint8), 1, 16),
        lambda: _native.pack(_native.Arena(), pool, None, np.zeros(64, np.uint8), 1, 16),
        lambda: _native.pack(_native.Arena(), pool, "F32", None, 1, 16),
        lambda: _native.Program(None, ISAS[0], cache, 1, 1, 1, 1),
        lambda: _native.Program(pool, ISAS[0], None, 1, 1, 1, 1),
        lambda: _native.Program(pool, ISAS[0], pool, 1, 1, 1, 1),
        lambda: _native.Sampler(None, ISAS[0], 10),
        lambda: _native.Sampler(cache, ISAS[0], 10),
    ):
        with pytest.raises(TypeError):
            call()
    for maker in (
        lambda: _native.Program(pool, "sse9", cache, 1, 1, 1, 1),
        lambda: _native.Sampler(pool, "", 10),
    ):
        with pytest.raises(ValueError, match="is not available here; there is: "):
            maker()


# --- lifetimes -------------------------------------------------------------------------------------


def test_a_program_keeps_alive_what_it_uses() -> None:
    """Pool, cache, matrices and vectors may be forgotten by Python once they are recorded."""
    pool = _native.ThreadPool(2)
    cache = _native.KvCache("bfloat16", 1, 2, 16, 1, 16)
    program = _native.Program(pool, ISAS[0], cache, 4, 1, 4, 8)
    x, out = program.buffer(False, 32, False), program.buffer(False, 48, False)
    table = np.arange(8 * 32, dtype=np.float32)
    weights = np.ones(48 * 32, np.float32)
    bias = np.full(48, 0.5, np.float32)
    program.embedding(_native.pack(_native.Arena(), pool, "F32", table.view(np.uint8), 8, 32), 1.0, x)
    program.linear(
        x, _native.pack(_native.Arena(), pool, "F32", weights.view(np.uint8), 48, 32), bias, -1, out
    )
    watch = weakref.ref(bias)
    del pool, cache, table, weights, bias
    gc.collect()
    assert watch() is not None
    rubbish = [np.full(48 * 32, np.nan, np.float32) for _ in range(50)]
    step = [np.array(a, np.int32) for a in ([3, 4], [0, 1], [0, 2], [[0]], [])]
    step[3] = step[3].reshape(1, 1)
    program.run(*step)
    view = program.array(out, 2)
    expected = [sum(range(32 * t, 32 * t + 32)) + 0.5 for t in (3, 4)]
    assert view[:, 0].tolist() == expected
    del program, rubbish
    gc.collect()
    assert view[:, 47].tolist() == expected, "a view keeps its program"


def test_pools_start_and_stop() -> None:
    """Many, and while workers may be asleep, spinning, or not yet running."""
    before = threading.active_count()
    for round in range(60):
        pool = _native.ThreadPool(1 + round % 5)
        if round % 2:
            pack(pool, "F32", 100, 32)
        if round % 7 == 0:
            time.sleep(0.005)
        del pool
    assert threading.active_count() == before


def test_more_threads_than_cores_make_progress() -> None:
    pool = _native.ThreadPool(16)
    for _ in range(20):
        pack(pool, "Q4_1", 333, 64)


def test_the_interpreter_runs_while_a_step_does() -> None:
    """`run` gives up the GIL: another thread counts meanwhile."""
    pool = _native.ThreadPool(1)
    cache = _native.KvCache("bfloat16", 1, 1, 16, 1, 16)
    program = _native.Program(pool, "portable", cache, 16, 1, 1, 8)
    x, out = program.buffer(False, 1024, False), program.buffer(False, 4096, False)
    program.embedding(pack(pool, "F32", 8, 1024), 1.0, x)
    for _ in range(20):
        program.linear(x, pack(pool, "F32", 4096, 1024), None, -1, out)
    counted, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            counted[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        tokens, positions = np.zeros(16, np.int32), np.arange(16, dtype=np.int32)
        rows, table = np.array([0, 16], np.int32), np.zeros((1, 1), np.int32)
        start = counted[0]
        program.run(tokens, positions, rows, table, np.zeros(0, np.int32))
        assert counted[0] > start + 2
    finally:
        done.set()
        thread.join()


# --- random wrong use ------------------------------------------------------------------------------


def spoil(random: np.random.Generator, array: Array) -> Any:
    """The same array, mostly; else one that is wrong in type, shape, memory layout or values."""
    kind = int(random.integers(0, 60))
    if kind == 0:
        return array.astype(
            random.choice([np.float32, np.float64, np.int32, np.int64, np.uint8, np.uint64, np.bool_])
        )
    if kind == 1:
        return array.reshape(-1)
    if kind == 2:
        return array[None]
    if kind == 3:
        return array[: len(array) // 2]
    if kind == 4:
        return np.concatenate([array, array]) if array.size else np.zeros(5, array.dtype)
    if kind == 5:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if kind == 6:
        return np.zeros((0,) * array.ndim, array.dtype)
    if kind == 7:
        return None
    if kind == 8:
        return array.tolist()
    if kind in (9, 10, 11) and array.size:
        spoiled = array.copy()
        where = tuple(int(random.integers(0, n)) for n in array.shape)
        with np.errstate(all="ignore"):
            if np.issubdtype(array.dtype, np.floating):
                spoiled[where] = random.choice([np.nan, np.inf, -np.inf, -1, 1e38, 1e-45])
            else:
                value = int(random.choice([-1, 2**31 - 1, -(2**31), 1000, 17]))
                spoiled[where] = np.array(value & 0xFFFFFFFFFFFFFFFF, np.uint64).astype(array.dtype)
        return spoiled
    if kind == 12:
        frozen = array.copy()
        frozen.flags.writeable = False
        return frozen
    return array


@pytest.mark.parametrize("isa", ISAS)
def test_random_steps(isa: str, pool: Any, seed: int) -> None:
    """Steps that are right or a little wrong, on a program with every kind of call."""
    cache = _native.KvCache("bfloat16", 1, 6, 16, 2, 16)
    program = _native.Program(pool, isa, cache, 24, 3, 5, 40)
    x, h, q, k, v, a, logits = (
        program.buffer(rows, dim, quantized)
        for rows, dim, quantized in [
            (False, 64, False),
            (False, 64, True),
            (False, 64, False),
            (False, 32, False),
            (False, 32, False),
            (False, 64, True),
            (True, 64, True),
        ]
    )
    angles, out = program.buffer(False, 16, False), program.buffer(True, 40, False)
    program.rope_angles([1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.001], 1.0, 0.1, 8, angles)
    program.embedding(pack(pool, "Q8_0", 40, 64, fill=7), 1.0, x)
    program.rms_norm(x, np.ones(64, np.float32), 1e-5, 0.0, 1, h)
    for buffer, n in ((q, 64), (k, 32), (v, 32)):
        program.linear(h, pack(pool, "Q4_1", n, 64, fill=3), np.ones(n, np.float32), -1, buffer)
    program.rope(q, 4, 16, 16, True, angles)
    program.rope(k, 2, 16, 16, False, angles)
    program.rms_norm(q, np.ones(16, np.float32), 1e-5, 1.0, 4, q)
    program.kv_store(k, v, 0)
    program.attention(q, 4, 0.25, 20, 3.0, np.ones(4, np.float32), 0, a)
    program.linear(a, pack(pool, "Q4_0", 64, 64, fill=5), None, x, x)
    scores, weights, mixed = (program.buffer(False, dim, False) for dim in (6, 6, 64))
    program.rms_norm(x, np.ones(64, np.float32), 1e-5, 0.0, 1, h)
    program.linear(h, pack(pool, "F32", 6, 64), None, -1, scores)
    program.route(scores, np.arange(6, dtype=np.float32), 2, "softmax", True, 1.0, weights)
    expert = [pack(pool, "Q4_1", n, k, fill=3) for n, k in ((96, 64), (96, 64), (64, 96))]
    program.experts(h, weights, [(expert[0], None, expert[1], None, expert[2], None)] * 6, "silu", 2, mixed)
    program.add(x, mixed, x)
    program.gather_logit_rows(x, logits)
    program.linear(logits, pack(pool, "Q8_0", 40, 64, fill=9), None, -1, out)

    def attempt(random: np.random.Generator) -> None:
        sequences = int(random.integers(1, 4))
        counts = random.integers(1, 8, sequences)
        starts = random.integers(0, 80, sequences)
        tokens = int(counts.sum())
        arrays = [
            random.integers(0, 40, tokens),
            np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)]),
            np.concatenate([[0], np.cumsum(counts)]),
            random.integers(0, 6, (sequences, 6)),
            random.integers(0, tokens, random.integers(0, 6)),
        ]
        step = [spoil(random, array.astype(np.int32)) for array in arrays]
        program.run(*step, only=int(random.integers(-2, 26)) if random.random() < 0.1 else -1)

    for_a_while(seed, attempt)


@pytest.mark.parametrize("isa", ISAS)
def test_random_programs(isa: str, pool: Any, seed: int) -> None:
    """Calls recorded over buffers that fit or do not; what was accepted must run."""
    matrices = [
        pack(pool, f, n, k, fill=2) for f in ("F32", "BF16", "Q4_1") for n in (32, 40) for k in (32, 64)
    ]
    matrices += [pack(pool, "F32", 32, k) for k in (7, 33)]

    def attempt(random: np.random.Generator) -> None:
        heads = int(random.integers(1, 3))
        cache = _native.KvCache(str(random.choice(KV_DTYPES)), 2, 2, 16, heads, 16)
        program = _native.Program(
            pool,
            isa,
            cache,
            int(random.integers(1, 9)),
            2,
            int(random.integers(1, 12)),
            int(random.integers(1, 41)),
        )
        dims = [int(random.choice([7, 16, 32, 32, 33, 40, 64])) for _ in range(int(random.integers(1, 7)))]
        for dim in dims:
            quantized = dim % 32 == 0 and random.random() < 0.4
            program.buffer(bool(random.random() < 0.3), dim, quantized)

        def some() -> int:
            beyond = random.random() < 0.05
            return int(random.integers(-1, len(dims) + 1) if beyond else random.integers(len(dims)))

        def maybe() -> int:
            return some() if random.random() < 0.5 else -1

        def vector() -> Array:
            return np.ones(int(random.choice([7, 16, 32, 33, 40, 64])), np.float32)

        def expert_list() -> list[Any]:
            """Of matrices that mostly fit each other, and buffers of 32 and 7."""
            gate, down = matrices[0], matrices[int(random.choice([0, 0, 0, 4, 8, 12]))]
            up = gate if random.random() < 0.9 else matrices[int(random.integers(len(matrices)))]
            bias = vector() if random.random() < 0.2 else None
            return [(gate, bias, up, None, down, bias)] * int(random.choice([0, 7, 7, 7, 16]))

        recorded = 0
        for _ in range(int(random.integers(1, 40))):
            matrix = matrices[int(random.integers(len(matrices)))]
            integer = int(random.choice([-1, 0, 1, 2, 4, 2**31 - 1]))
            calls: list[Callable[[], None]] = [
                lambda matrix=matrix: program.embedding(matrix, 2.0, some()),
                lambda: program.rms_norm(some(), vector(), 1e-5, 0.0, 1, some()),
                lambda integer=integer: program.rms_norm(some(), vector(), 1e-5, 1.0, integer, some()),
                lambda matrix=matrix: program.linear(some(), matrix, None, maybe(), some()),
                lambda matrix=matrix: program.linear(some(), matrix, vector(), -1, some()),
                lambda integer=integer: program.rope_angles(
                    [0.5] * int(random.choice([8, 16, 3])), 1.0, 0.5, integer, some()
                ),
                lambda integer=integer: program.rope(some(), integer, 16, 16, True, some()),
                lambda: program.rope(some(), int(random.choice([1, 2])), 16, 16, False, some()),
                lambda: program.kv_store(some(), some(), int(random.integers(-1, 3))),
                lambda integer=integer: program.attention(
                    some(), integer, 1.0, integer, 0.0, None, 1, some()
                ),
                lambda: program.attention(
                    some(), int(random.choice([1, 2, 4])), 1.0, 0, 5.0, None, 1, some()
                ),
                lambda: program.attention(
                    some(), int(random.choice([1, 2])), 1.0, 0, 0.0, vector(), 1, some()
                ),
                lambda: program.gated(str(random.choice(["silu", "gelu_tanh"])), some(), some(), some()),
                lambda: program.softcap(some(), float(random.choice([-1.0, 0.0, 3.0])), some()),
                lambda: program.sigmoid_mul(some(), some(), some()),
                lambda: program.add(some(), some(), some()),
                lambda: program.gather_logit_rows(some(), some()),
                lambda integer=integer: program.route(
                    some(), None, integer, str(random.choice(["softmax", "sigmoid"])), True, 1.0, some()
                ),
                lambda: program.route(some(), vector(), 2, "softmax_of_chosen", False, 1.0, some()),
                lambda integer=integer: program.experts(
                    some(), some(), expert_list(), "swiglu_oai", integer, some()
                ),
            ]
            try:
                calls[int(random.integers(len(calls)))]()
                recorded += 1
            except REFUSALS:
                continue
        if not recorded:
            raise ValueError("every call was refused")
        tokens = int(random.integers(1, 9))
        program.run(
            np.zeros(tokens, np.int32),
            np.arange(tokens, dtype=np.int32),
            np.array([0, tokens], np.int32),
            np.zeros((1, 1), np.int32),
            np.zeros(int(random.integers(0, 9)), np.int32),
        )

    for_a_while(seed, attempt)


@pytest.mark.parametrize("isa", ISAS)
def test_random_sampling(isa: str, pool: Any, seed: int) -> None:
    vocab = 37
    sampler = _native.Sampler(pool, isa, vocab)

    def attempt(random: np.random.Generator) -> None:
        rows, width = int(random.integers(0, 5)), int(random.integers(0, 4))

        def floats(low: float, high: float) -> Array:
            return random.uniform(low, high, rows).astype(np.float32)

        def ragged(prefix: str) -> dict[str, Array]:
            counts = random.integers(0, 6, rows)
            tokens = random.integers(0, vocab, int(counts.sum())).astype(np.int32)
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
            return {f"{prefix}_tokens": tokens, f"{prefix}_offsets": offsets}

        arrays: dict[str, Array] = {
            "temperature": floats(0, 2),
            "top_p": floats(0.01, 1),
            "min_p": floats(0, 1),
            **({"typical_p": floats(0.01, 1)} if random.random() < 0.5 else {}),
            "top_k": random.integers(-5, 60, rows).astype(np.int32),
            "seed": random.integers(0, 2**64, rows, dtype=np.uint64),
            "choice": random.integers(0, 9, rows).astype(np.int32),
            "position": random.integers(0, 999, rows).astype(np.int32),
            "num_top": random.integers(0, width + 1, rows).astype(np.int32),
            "target": random.integers(-1, vocab, rows).astype(np.int32),
        }
        if random.random() < 0.5:
            arrays |= {f"{n}_penalty": floats(-2, 2) for n in ("frequency", "presence", "repetition")}
            arrays |= {**ragged("prompt"), **ragged("output")}
        if random.random() < 0.5:
            arrays |= ragged("bias")
            arrays["bias_values"] = random.standard_normal(len(arrays["bias_tokens"])).astype(np.float32)
        if random.random() < 0.05:
            del arrays[str(random.choice(list(arrays)))]
        given = {name: spoil(random, array) for name, array in arrays.items()}
        outputs = {
            "out_tokens": np.full(rows, -7, np.int32),
            "out_logprobs": np.zeros(rows, np.float32),
            "out_top_tokens": np.zeros((rows, width), np.int32),
            "out_top_logprobs": np.zeros((rows, width), np.float32),
        }
        logits = random.standard_normal((rows, vocab)).astype(np.float32)
        results = {name: spoil(random, array) for name, array in outputs.items()}
        sampler.run(spoil(random, logits), **given, **results)
        drawn = results["out_tokens"]
        assert ((drawn >= 0) & (drawn < vocab)).all()

    for_a_while(seed, attempt)


def test_results_are_never_written_into_a_copy(pool: Any) -> None:
    """Outputs of another type or layout, or not writable, are refused: a silent conversion would lose the answer."""
    sampler = _native.Sampler(pool, ISAS[0], 8)

    def run(**changes: Any) -> None:
        arrays: dict[str, Any] = {
            "temperature": np.zeros(2, np.float32),
            "top_p": np.ones(2, np.float32),
            "min_p": np.zeros(2, np.float32),
            "seed": np.zeros(2, np.uint64),
            **{name: np.zeros(2, np.int32) for name in ("top_k", "choice", "position", "num_top")},
            "target": np.full(2, -1, np.int32),
            "out_tokens": np.zeros(2, np.int32),
            "out_logprobs": np.zeros(2, np.float32),
            "out_top_tokens": np.zeros((2, 0), np.int32),
            "out_top_logprobs": np.zeros((2, 0), np.float32),
            "logits": np.zeros((2, 8), np.float32),
        }
        sampler.run(**{**arrays, **changes})

    run()
    frozen = np.zeros(2, np.int32)
    frozen.flags.writeable = False
    for changes in (
        {"out_tokens": np.zeros(2, np.int64)},
        {"out_tokens": np.zeros(4, np.int32)[::2]},
        {"out_tokens": frozen},
        {"out_logprobs": np.zeros(2, np.float64)},
        {"logits": np.zeros((2, 8), np.float64)},
        {"logits": np.zeros((2, 16), np.float32)[:, ::2]},
        {"logits": np.zeros((8, 2), np.float32).T},
    ):
        with pytest.raises(TypeError):
            run(**changes)
