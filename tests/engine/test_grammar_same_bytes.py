"""Grammars under random schedules, on real kernels: tokens and log-probabilities equal those of plain decoding alone.

Forced tokens, speculation along a grammar, batches, preemption, the prefix cache and the resumption of an answer change
how many steps it takes, and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from engine_harness import RandomLengths
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_files import llama_tensors, write_model
from schedules import Answer, Arrival, arrivals, differences, play
from tokentrail.engine import EngineConfig
from tokentrail.engine.core import EngineCore
from tokentrail.engine.model_runner import ModelRunner
from tokentrail.engine.sequence import check_request
from tokentrail.protocol import (
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    SamplingParams,
    StepOutput,
    StructuredOutputsParams,
)
from tokentrail.text.byte_level import BYTE_TO_CHARACTER
from tokentrail.text.grammar import build_grammar

MERGES = [
    '{ "',
    '" :',
    '" ,',
    '," "',
    "n a",
    "m e",
    "na me",
    "t r",
    "u e",
    "tr ue",
    "a g",
    "ag e",
    '" }',
    "1 2",
    "0 0",
]
TOKENS = [BYTE_TO_CHARACTER[byte] for byte in range(256)]
TOKENS += [merge.replace(" ", "", 1) for merge in MERGES] + ["<end>", "<mark>"]
END = TOKENS.index("<end>")
VOCAB = len(TOKENS)
TYPES = [1] * (VOCAB - 2) + [3, 3]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "true": {"enum": [True, None]},
    },
    "required": ["name", "age", "true"],
    "additionalProperties": False,
}
WANTED: list[dict[str, Any] | None] = [
    None,
    {"json": PERSON},
    {"json": {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2}},
    {"regex": r"(name|age)=\d{1,3}(,(name|age)=\d{1,3})*"},
    {"choice": ("name", "age", "nam", "true")},
    {"grammar": 'start: "<" start ">" | "12" | <mark>'},
    {"json_object": True},
]
GRAMMARS = [None if wanted is None else build_grammar(StructuredOutputsParams(**wanted)) for wanted in WANTED]

SMALL: dict[str, Any] = {
    "max_num_batched_tokens": 40,
    "max_num_seqs": 5,
    "threads": 1,
    "kv_cache_memory": 1 << 20,
    "max_model_len": 96,
}
BLOCK = 16 * 2 * 64


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("grammars")
    whole = {name: array * 8 for name, array in llama_tensors(VOCAB, layers=2, tied=False).items()}
    half = {name: array for name, array in whole.items() if not name.startswith("blk.1")}
    common: dict[str, Any] = {"tokens": TOKENS, "types": TYPES, "merges": MERGES}
    ends = {"tokenizer.ggml.eos_token_id": END}
    target = write_model(
        folder / "target.gguf", tensors=whole, metadata={"llama.block_count": 2, **ends}, **common
    )
    return target, write_model(folder / "draft.gguf", tensors=half, metadata=ends, **common)


Loaded = tuple[EngineConfig, ModelRunner]


def load(model: Path, **changes: Any) -> Loaded:
    config = EngineConfig(model=str(model), **{**SMALL, **changes})
    return config, ModelRunner(config)


@pytest.fixture(scope="module")
def plain(files: tuple[Path, Path]) -> Loaded:
    return load(files[0], enable_prefix_caching=False)


def alone(plain: Loaded, item: GenerateRequest) -> Answer:
    """By plain decoding: one token a step, even where it is forced."""
    core = EngineCore(*plain)
    core._forced.extend = lambda plan: None  # type: ignore[method-assign]
    answer = play(core, [Arrival((item,), 0)]).answers[item.id]
    core._grammars.close()
    core._masks.close()
    return answer


@pytest.fixture(scope="module")
def loaded(files: tuple[Path, Path]) -> list[Loaded]:
    target, draft = files[0], str(files[1])
    return [
        load(target),
        load(target, kv_cache_memory=8 * BLOCK),
        load(target, speculative_model="ngram"),
        load(target, speculative_model=draft, kv_cache_memory=8 * BLOCK * 3 // 2),
        load(target, speculative_model=draft, threads=2, max_num_batched_tokens=9),
    ]


def start(loaded: Loaded, lengths: RandomLengths | None) -> EngineCore:
    core = EngineCore(*loaded)
    if lengths is not None and core.speculator is not None:
        core.speculator.lengths = lengths
    return core


ALLOWED = (*range(97, 123), 44, 258, 260, 262, END)


def with_grammar(item: GenerateRequest, index: int) -> GenerateRequest:
    """`index` behind the last grammar: a list of allowed tokens instead."""
    if index == len(GRAMMARS):
        return msgspec.structs.replace(item, sampling=item.sampling.replace(allowed_token_ids=ALLOWED))
    return msgspec.structs.replace(item, grammar=GRAMMARS[index])


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    schedule=arrivals(VOCAB, [[3, 1, 4, 1, 5, 9, 2, 6] * 5, [8, 2, 8] * 14], most=5, longest=40),
    grammars=st.lists(st.integers(0, len(GRAMMARS)), min_size=5, max_size=5),
    which=st.integers(0, 4),
    longest=st.integers(1, 8),
    seed=st.none() | st.integers(0, 9),
)
def test_random_schedules(
    *,
    plain: Loaded,
    loaded: list[Loaded],
    schedule: list[Arrival],
    grammars: list[int],
    which: int,
    longest: int,
    seed: int | None,
) -> None:
    schedule = [
        Arrival(tuple(with_grammar(item, grammar) for item in arrival.requests), arrival.steps, arrival.abort)
        for arrival, grammar in zip(schedule, grammars, strict=False)
    ]
    core = start(loaded[which], RandomLengths(longest, seed))
    played = play(core, schedule)
    core._grammars.close()
    core._masks.close()
    assert not differences(
        played.answers, {id: alone(plain, item) for id, item in played.requests.items()}
    ), which


def crowd(count: int) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            id=str(i),
            group=str(i),
            prompt=[3, 1, 4, 1, 5, 9, 2, 6] * 4 + [i],
            sampling=SamplingParams(temperature=0.7 * (i % 3), seed=i, max_tokens=56, logprobs=2),
            arrival=float(i + 1),
            grammar=GRAMMARS[1 + i % (len(GRAMMARS) - 1)],
        )
        for i in range(count)
    ]


def recorded(core: EngineCore, steps: list[StepOutput]) -> Any:
    def step() -> StepOutput | None:
        output = core.step()
        if output is not None:
            steps.append(output)
        return output

    return step


@pytest.mark.parametrize("which", range(5))
def test_a_crowd(which: int, plain: Loaded, loaded: list[Loaded]) -> None:
    """What random schedules may miss: every kind of grammar, preempted and speculated upon."""
    core = start(loaded[which], RandomLengths(4))
    # Compiled before: who waits for a grammar comes later, and then there may be no crowd.
    for grammar in GRAMMARS[1:]:
        assert grammar is not None
        core._grammars.compile(grammar).result()
    steps: list[StepOutput] = []
    played = play(core, [Arrival((item,), 1) for item in crowd(12)], step=recorded(core, steps))
    core._grammars.close()
    core._masks.close()
    assert not differences(played.answers, {id: alone(plain, item) for id, item in played.requests.items()})
    assert len(played.answers) == 12
    shares = [share for output in steps for share in output.record.sequences]
    assert sum(share.forced for share in shares) > 20
    assert all(share.accepted == share.drafted for share in shares if share.forced)
    if which in (1, 3):
        assert played.preemptions > 0


def test_answers_are_what_was_asked_for(plain: Loaded) -> None:
    finished = 0
    for item in crowd(18):
        answer = alone(plain, item)
        text = bytes(b for token in answer.tokens for b in token_bytes(token)).decode("utf-8", "replace")
        wanted = WANTED[1 + int(item.id) % (len(WANTED) - 1)]
        assert wanted is not None
        assert np.isfinite(answer.logprobs).all()
        if answer.reason is not FinishReason.STOP:
            continue
        finished += 1
        if "choice" in wanted:
            assert text in wanted["choice"]
        elif "json" in wanted:
            value = json.loads(text)
            assert text == json.dumps(value, separators=(",", ":"))
            for person in value if isinstance(value, list) else [value]:
                assert list(person) == ["name", "age", "true"]
                assert 0 <= person["age"] <= 120
    assert finished >= 9


def token_bytes(token: int) -> bytes:
    if token < 256:
        return bytes([token])
    return b"" if token in (END, END + 1) else TOKENS[token].encode()


@pytest.mark.parametrize("grammar", range(1, len(GRAMMARS)))
def test_an_answer_goes_on_in_another_process(grammar: int, plain: Loaded, loaded: list[Loaded]) -> None:
    item = with_grammar(crowd(1)[0], grammar)
    whole = alone(plain, item)
    for cut in range(1, len(whole.tokens)):
        again = msgspec.structs.replace(item, output=whole.tokens[:cut], resumed=True)
        rest = play(EngineCore(*loaded[0]), [Arrival((again,), 0)]).answers[item.id]
        assert rest.tokens == whole.tokens[cut:]
        assert rest.bits()["logprobs"] == whole.bits()["logprobs"][cut:]
        assert rest.reason == whole.reason


def test_forced_tokens_save_steps(plain: Loaded, loaded: list[Loaded]) -> None:
    item = with_grammar(crowd(1)[0], 1)
    tokens = len(alone(plain, item).tokens)
    steps: list[StepOutput] = []
    core = EngineCore(*loaded[0])
    play(core, [Arrival((item,), 0)], step=recorded(core, steps))
    assert len(steps) < 0.7 * tokens


def test_a_grammar_that_cannot_be_used_is_refused(loaded: list[Loaded]) -> None:
    core = EngineCore(*loaded[0])
    looping = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    nothing = build_grammar(StructuredOutputsParams(json=looping))
    for id, grammar, words in (("a", nothing, "no text"), ("b", '{"grammars": []}', "cannot be used")):
        item = msgspec.structs.replace(crowd(1)[0], id=id, grammar=grammar)
        assert core.add_request(item) is None
        assert core.has_work
        while not core.refused:
            assert core.step() is None
        assert core.refused[0].id == id
        assert words in core.refused[0].message
        core.refused.clear()
        assert not core.has_work
        # The next one is told at once.
        assert core.add_request(item) is None
        assert core.refused.pop().id == id
    assert core.scheduler.num_waiting == 0


def test_an_abort_while_the_grammar_is_compiled(loaded: list[Loaded]) -> None:
    core = EngineCore(*loaded[0])
    item = crowd(1)[0]
    core.add_request(item)
    core.abort([item.id])
    assert core.step() is not None
    assert core.step() is None
    assert not core.has_work
    assert core.pool.num_used == 0


def test_only_allowed_tokens_come(plain: Loaded, loaded: list[Loaded]) -> None:
    base = msgspec.structs.replace(crowd(1)[0], grammar=None)
    for seed in range(4):
        sampling = SamplingParams(temperature=2.0, seed=seed, max_tokens=50, ignore_eos=True)
        free = alone(plain, msgspec.structs.replace(base, sampling=sampling))
        assert not set(free.tokens) <= set(ALLOWED)
        held = with_grammar(msgspec.structs.replace(base, sampling=sampling), len(GRAMMARS))
        answer = alone(plain, held)
        assert set(answer.tokens) <= set(ALLOWED)
        assert len(answer.tokens) == 50
        for engine in loaded[2:4]:
            drafted = play(start(engine, RandomLengths(4)), [Arrival((held,), 0)]).answers[base.id]
            assert drafted.bits() == answer.bits()
    both = msgspec.structs.replace(held, grammar=GRAMMARS[1])
    with pytest.raises(InvalidRequest, match="cannot be combined"):
        check_request(both, VOCAB, 96)


def test_runs_of_tokens_that_must_not_come(plain: Loaded, loaded: list[Loaded]) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    base = msgspec.structs.replace(crowd(1)[0], grammar=None, sampling=sampling)
    free = alone(plain, base).tokens
    bad = (tuple(free[5:8]), tuple(free[2:4]), (free[0],), (*base.prompt[-1:], 7))
    held = msgspec.structs.replace(base, sampling=sampling.replace(bad_token_ids=bad))
    answer = alone(plain, held)
    for run in bad:
        assert all(tuple(answer.tokens[at : at + len(run)]) != run for at in range(40))
    assert answer.tokens != free
    for engine in loaded[2:4]:
        drafted = play(start(engine, RandomLengths(4)), [Arrival((held,), 0)]).answers[base.id]
        assert drafted.bits() == answer.bits()


def test_where_all_that_is_allowed_is_banned_the_answer_stops(plain: Loaded) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=9, min_tokens=9, allowed_token_ids=(END,))
    answer = alone(plain, msgspec.structs.replace(crowd(1)[0], grammar=None, sampling=sampling))
    assert (answer.tokens, answer.reason) == ([], FinishReason.STOP)


def test_where_only_an_end_is_left_and_banned_the_answer_stops(plain: Loaded) -> None:
    item = msgspec.structs.replace(
        with_grammar(crowd(1)[0], 4), sampling=SamplingParams(temperature=0, max_tokens=9, min_tokens=9)
    )
    answer = alone(plain, item)
    assert answer.reason is FinishReason.STOP
    assert bytes(b for token in answer.tokens for b in token_bytes(token)).decode() in WANTED[4]["choice"]
