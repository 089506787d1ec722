"""Promise 1 on whole models: the bits of a token's logits depend on the tokens before it, and on nothing else.

A small model with every weight format in it is run again and again: other chunks, blocks, neighbours, threads, garbage
in the cache, eager or recorded. Comparisons are of bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_models import checkpoint_of, random_weights, small_config
from tokentrail.checkpoints import Checkpoint, RopeConfig
from tokentrail.checkpoints.model import MoeConfig
from tokentrail.models import LoadedModel, load_model
from tokentrail.ops.backend import KV_DTYPES, Executable, KvLayout, Limits
from tokentrail.ops.native import NativeBackend, available_isas

ISAS = available_isas()
VOCAB = 64
GARBAGE = 63
"""A token whose embedding is not a number, or is a huge one."""
FORMATS = {
    "embed": "F32",
    "q": "Q4_0",
    "k": "Q8_0",
    "v": "Q4_1",
    "o": "Q4_1",
    "gate": "Q4_0",
    "up": "F16",
    "down": "Q8_0",
}

U32 = npt.NDArray[np.uint32]


EVERYTHING = {
    "architecture": "gemma3",
    "windowed_layers": (True, False, True),
    "rope_local": RopeConfig(dim=16, theta=500.0),
    "attention_softcap": 3.0,
    "logit_softcap": 5.0,
    "embedding_scale": 2.0,
    "norm_offset": -0.5,
}
"""A family with ops that Llama does not have: norms of heads and behind both halves of a layer, GeGLU, soft caps."""

EXPERTS = {
    "architecture": "gpt_oss",
    "windowed_layers": (True, False, True),
    "moe": MoeConfig(9, 3, 96, scoring="softmax_of_chosen"),
}
SOME_EXPERTS = {
    "architecture": "qwen3_moe",
    "moe": MoeConfig(9, 2, 64, shared_intermediate_size=96, shared_gate=True, layers=(False, True, True)),
}
"""Behind a first layer without; besides, one that all tokens have."""
FAMILIES = {"llama": {}, "everything": EVERYTHING, "experts": EXPERTS, "some-experts": SOME_EXPERTS}


def checkpoint(
    garbage: float,
    *,
    formats: dict[str, str] = FORMATS,
    window: int | None = None,
    family: dict[str, Any] | None = None,
) -> Checkpoint:
    sizes = {"num_layers": 3, "num_kv_heads": 2, "num_heads": 6, "hidden_size": 96}
    config = small_config(**sizes, sliding_window=window, **(family or {}))
    weights = random_weights(config, seed=5)
    weights["embed"][GARBAGE] = garbage
    return checkpoint_of(config, weights, lambda name: formats.get(name.split(".")[-1], "BF16"))


@dataclass
class Way:
    """One way to compute a text's logits."""

    cuts: list[int]
    block_size: int = 16
    eager: bool = False
    kv_dtype: str = "bfloat16"
    neighbours: int = 0
    garbage_first: bool = False
    seed: int = 0


class Machine:
    """One instruction set and number of threads; models packed once."""

    def __init__(self, isa: str, threads: int) -> None:
        self.backend = NativeBackend(threads, isa)
        self._models: dict[tuple[float, str, int], LoadedModel] = {}

    def executable(self, model: LoadedModel, way: Way, blocks: int) -> Executable:
        config = model.config
        kv = KvLayout(
            way.kv_dtype, config.num_layers, blocks, way.block_size, config.num_kv_heads, config.head_dim
        )
        return self.backend.compile(model.program, kv, Limits(640, 16, 640), VOCAB, eager=way.eager)

    def logits(self, source: Checkpoint, ids: list[int], way: Way) -> U32:
        """Bits [tokens, vocab]."""
        random = np.random.default_rng(way.seed)
        model = load_model(source, self.backend)
        needed = [-(-length // way.block_size) for length in (len(ids), *[48] * way.neighbours)]
        order = random.permutation(sum(needed) + 2).astype(np.int32)
        executable = self.executable(model, way, len(order))
        if way.garbage_first:
            self.spoil(executable, len(order), way.block_size)
        tables = np.split(order[: sum(needed)], np.cumsum(needed)[:-1])
        width = max(needed)
        out = []
        for start, end in zip([0, *way.cuts], [*way.cuts, len(ids)], strict=True):
            beside = [
                random.integers(0, VOCAB, random.integers(1, 49)).tolist() for _ in range(way.neighbours)
            ]
            place = int(random.integers(0, way.neighbours + 1))
            runs = [(tokens, 0, table) for tokens, table in zip(beside, tables[1:], strict=True)]
            runs.insert(place, (ids[start:end], start, tables[0]))
            first = sum(len(tokens) for tokens, _, _ in runs[:place])
            out.append(self.step(executable, runs, width, range(first, first + end - start)))
        return np.concatenate(out)

    @staticmethod
    def step(executable: Executable, runs: list, width: int, rows: range) -> U32:
        tables = np.zeros((len(runs), width), np.int32)
        for row, (_, _, table) in zip(tables, runs, strict=True):
            row[: len(table)] = table
        counts = [len(tokens) for tokens, _, _ in runs]
        logits = executable.forward(
            np.array([token for tokens, _, _ in runs for token in tokens], np.int32),
            np.concatenate([np.arange(at, at + len(tokens), dtype=np.int32) for tokens, at, _ in runs]),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            tables,
            np.array(rows, np.int32),
        )
        return logits.copy().view(np.uint32)

    def spoil(self, executable: Executable, blocks: int, block_size: int) -> None:
        """Leave garbage in every slot of the cache, as sequences do that ended earlier."""
        everything = np.arange(blocks, dtype=np.int32)
        for start in range(0, blocks * block_size, 600):
            count = min(600, blocks * block_size - start)
            self.step(executable, [([GARBAGE] * count, start, everything)], blocks, range(0))


def machine(isa: str, threads: int, machines: dict[tuple[str, int], Machine] = {}) -> Machine:  # noqa: B006 (a cache)
    if (isa, threads) not in machines:
        machines[isa, threads] = Machine(isa, threads)
    return machines[isa, threads]


def text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, GARBAGE, length).tolist()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_token_by_token_is_the_prompt_at_once(isa: str, kv_dtype: str, family: dict[str, Any]) -> None:
    source, ids = checkpoint(0.0, family=family), text(300)
    once = machine(isa, 1).logits(source, ids, Way([], kv_dtype=kv_dtype))
    assert np.isfinite(once.view(np.float32)).all()
    single = machine(isa, 1).logits(source, ids, Way(list(range(1, 300)), kv_dtype=kv_dtype, seed=1))
    np.testing.assert_array_equal(single, once)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_way_gives_the_same_bits(*, isa: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    window = int(random.choice([0, 0, 40])) or None
    family = list(FAMILIES.values())[random.integers(len(FAMILIES))]
    ids = text(int(random.choice([40, 290, 560])), seed)
    source = checkpoint(float(random.choice([np.nan, 1e30])), window=window, family=family)
    kv_dtype = str(random.choice(KV_DTYPES))
    expected = machine(isa, 1).logits(source, ids, Way([], kv_dtype=kv_dtype))
    for threads in (1, 2, 3):
        count = int(random.choice([0, 1, 4, 12]))
        way = Way(
            cuts=sorted(random.choice(np.arange(1, len(ids)), count, replace=False).tolist()),
            block_size=int(random.choice([16, 32, 64, 128, 256])),
            eager=bool(random.integers(2)),
            kv_dtype=kv_dtype,
            neighbours=int(random.choice([0, 0, 1, 7])),
            garbage_first=bool(random.integers(2)),
            seed=int(random.integers(1 << 30)),
        )
        while len(ids) + way.neighbours * 48 > 640:  # the step's limit
            way = replace(way, neighbours=way.neighbours - 1)
        got = machine(isa, threads).logits(source, ids, way)
        np.testing.assert_array_equal(got, expected, f"{threads} threads, {way}")


@pytest.mark.parametrize("isa", ISAS)
def test_garbage_that_is_not_a_number_is_really_there(isa: str) -> None:
    """With float weights the garbage reaches the cache as NaN: the tests above would notice if it were read."""
    formats = dict.fromkeys(FORMATS, "F32")
    source, ids = checkpoint(np.nan, formats=formats), text(37)
    for kv_dtype in KV_DTYPES:
        clean = machine(isa, 1).logits(source, ids, Way([], kv_dtype=kv_dtype))
        spoiled = machine(isa, 2).logits(
            source, ids, Way([1, 2, 17, 33], kv_dtype=kv_dtype, garbage_first=True, neighbours=2, seed=3)
        )
        np.testing.assert_array_equal(spoiled, clean)
        seen = machine(isa, 1).logits(source, [*ids[:5], GARBAGE, *ids[5:]], Way([5], kv_dtype=kv_dtype))
        assert np.isnan(seen[5:].view(np.float32)).all(axis=1).all()
        np.testing.assert_array_equal(seen[:5], clean[:5])


def test_instruction_sets_agree_closely() -> None:
    """Not to the bit (fingerprints tell them apart), but none computes something else."""
    source, ids = checkpoint(0.0), text(100)
    results = [machine(isa, 1).logits(source, ids, Way([])).view(np.float32) for isa in ISAS]
    for other in results[1:]:
        assert np.abs(other - results[0]).max() < 5e-2 * np.abs(results[0]).max()
