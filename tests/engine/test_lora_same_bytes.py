"""Adapters under random schedules: every request gets the bits that it gets alone, whoever shares its batch.

Prompts are the same for different adapters, so that a cached prefix of one would be noticed in another's answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lora_folders import random_pairs, write_adapter
from random_models import checkpoint_of, random_weights, small_config
from schedules import Answer, Arrival, arrivals, differences, engine_settings, play, shared_prefixes
from tokentrail.checkpoints import Checkpoint
from tokentrail.engine import opening
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.core import EngineCore
from tokentrail.engine.model_runner import ModelRunner
from tokentrail.protocol import GenerateRequest, SamplingParams

VOCAB, CONTEXT = 96, 256
CONFIG = small_config(vocab_size=VOCAB, max_position=CONTEXT)
FORMATS = {"q": "Q4_0", "k": "Q8_0", "down": "Q8_0", "gate": "Q4_1"}
ADAPTERS = ("", "one", "two")
PREFIXES = shared_prefixes(VOCAB, length=100)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes engines over one model with two adapters."""
    folder = tmp_path_factory.mktemp("lora")
    write_adapter(folder / "one", random_pairs(CONFIG, rank=8, seed=1), lora_alpha=8)
    write_adapter(folder / "two", random_pairs(CONFIG, rank=20, parts="q v down", seed=2), lora_alpha=40)
    checkpoint: Checkpoint = replace(
        checkpoint_of(
            CONFIG, random_weights(CONFIG, seed=3), lambda name: FORMATS.get(name.split(".")[-1], "BF16")
        ),
        metadata={"general.architecture": "llama"},
    )

    def make(*, positions: int = CONTEXT, **changes: Any) -> EngineCore:
        values = {
            "block_size": 16,
            "max_num_seqs": 8,
            "max_num_batched_tokens": CONTEXT,
            "threads": 2,
            **changes,
        }
        config = EngineConfig(
            model="in memory",
            max_model_len=min(positions, CONTEXT),
            kv_cache_memory=positions * 2 * 2 * 2 * 16 * 2,
            lora={name: str(folder / name) for name in ADAPTERS if name},
            **values,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(opening, "open_checkpoint", lambda path: checkpoint)
            return EngineCore(config, ModelRunner(config))

    return make


@pytest.fixture(scope="module")
def alone(start: Any) -> Iterator[Any]:
    """What a request is answered when nobody is beside it and nothing is cached."""
    known: dict[bytes, Answer] = {}
    with contextlib.closing(start(enable_prefix_caching=False, threads=1)) as core:

        def answer(item: GenerateRequest) -> Answer:
            key = msgspec.msgpack.encode((item.prompt, item.sampling, item.choice, item.adapter))
            if key not in known:
                known[key] = play(core, [Arrival((item,), 0)]).answers[item.id]
            return known[key]

        yield answer


@st.composite
def adapted(draw: st.DrawFn) -> list[Arrival]:
    schedule = draw(arrivals(VOCAB, PREFIXES, most=6, longest=10))
    return [
        Arrival(
            tuple(
                msgspec.structs.replace(item, adapter=draw(st.sampled_from(ADAPTERS)))
                for item in arrival.requests
            ),
            arrival.steps,
            arrival.abort,
        )
        for arrival in schedule
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(schedule=adapted(), shape=engine_settings([16, 32], positions=(176, 600)), drafts=st.booleans())
def test_any_mix_of_adapters(
    start: Any, alone: Any, schedule: list[Arrival], shape: Any, drafts: bool
) -> None:
    more = {"speculative_model": "ngram"} if drafts else {}
    with contextlib.closing(start(**shape, **more)) as core:
        limit = core.runner.info.max_model_len
        played = play(core, schedule)
    expected = {}
    for id, item in played.requests.items():
        most = min(item.sampling.max_tokens or limit, limit - len(item.prompt))
        sampling = item.sampling.replace(max_tokens=most, min_tokens=min(item.sampling.min_tokens, most))
        expected[id] = alone(msgspec.structs.replace(item, sampling=sampling))
    assert not differences(played.answers, expected), shape


def request(id: str, adapter: str, prompt: list[int]) -> GenerateRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, seed=0)
    return GenerateRequest(id=id, group=id, prompt=prompt, sampling=sampling, adapter=adapter)


def test_adapters_answer_differently_and_share_no_prefix(start: Any) -> None:
    prompt = PREFIXES[0][:70]
    with contextlib.closing(start()) as core:
        answers = []
        for adapter in ADAPTERS:
            for turn in range(2):
                played = play(core, [Arrival((request(f"{adapter}{turn}", adapter, prompt),), 0)])
                assert played.cached_tokens == 64 * turn, "its own prefix, and nobody else's"
                answers.append(played.answers[f"{adapter}{turn}"].tokens)
    assert answers[0] == answers[1]
    assert len({tuple(answer) for answer in answers}) == 3


def test_what_is_told_of_adapters(start: Any) -> None:
    with contextlib.closing(start()) as core:
        info = core.runner.info
        assert [(one.name, one.rank) for one in info.adapters] == [("one", 8), ("two", 20)]
        prints = {info.fingerprint_with(adapter) for adapter in ADAPTERS}
        assert len(prints) == 3
        assert info.fingerprint_with("") == info.fingerprint
        rejected = core.add_request(request("x", "three", [1, 2]))
        assert rejected is not None
        assert rejected.code == "unknown_adapter"
