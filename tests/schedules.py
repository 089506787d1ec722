"""Random schedules for an engine core: who asks for what and when, under which settings, and what comes of it.

Strategies for Hypothesis, and `play`, which runs a schedule. A test draws `arrivals` and `settings`, plays them, and
compares each request's answer with the one it gets elsewhere: by definition (the fake model) or alone (real kernels).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tokentrail.engine.core import EngineCore
from tokentrail.protocol import (
    Delta,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    StepOutput,
    TokenAlternatives,
)


@dataclass
class Answer:
    """All that an engine says to one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[TokenAlternatives] | None = None
    prompt_logprobs: list[float] | None = None
    prompt_top: list[TokenAlternatives] | None = None
    reason: FinishReason | None = None
    stop_token: int | None = None

    def take(self, delta: Delta, *, first: bool) -> None:
        if first:
            self.prompt_logprobs, self.prompt_top = delta.prompt_logprobs, delta.prompt_top
        else:
            assert delta.cached_tokens is None
            assert delta.prompt_logprobs is None
        self.tokens += delta.token_ids
        self.logprobs += delta.logprobs
        if delta.top is not None:
            self.top = (self.top or []) + delta.top
        if delta.finish is not None:
            self.reason, self.stop_token = delta.finish.reason, delta.finish.stop_token

    def bits(self) -> dict[str, Any]:
        """The same, with the bits of every log-probability (single floats) in place of its value."""
        return {
            "tokens": self.tokens,
            "logprobs": _bits(self.logprobs),
            "top": _top_bits(self.top),
            "prompt_logprobs": _bits(self.prompt_logprobs),
            "prompt_top": _top_bits(self.prompt_top),
            "end": (self.reason, self.stop_token),
        }


def _bits(values: Sequence[float] | None) -> list[int] | None:
    return None if values is None else np.array(values, np.float32).view(np.uint32).tolist()


def _top_bits(top: Sequence[TokenAlternatives] | None) -> list[Any] | None:
    return None if top is None else [(each.token_ids, _bits(each.logprobs)) for each in top]


# --- what is asked ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrival:
    """Requests that come together (the choices of one), and what happens before the next ones come."""

    requests: tuple[GenerateRequest, ...]
    steps: int
    """The engine makes so many steps."""
    abort: str | None = None
    """Id of a request that is then given up, should it still run."""


def shared_prefixes(vocab: int, length: int = 40) -> list[list[int]]:
    """Two beginnings that prompts share, different from their first token on."""
    return [[(7 * i + k) % vocab for i in range(length)] for k in (2, 3)]


@st.composite
def sampling_params(draw: st.DrawFn, vocab: int, longest: int = 24) -> SamplingParams:
    """Every parameter that the engine looks at; `longest` tokens of answer at most."""
    max_tokens = draw(st.integers(1, longest))
    options: dict[str, Any] = {"max_tokens": max_tokens, "seed": draw(st.integers(-5, 5))}
    options["temperature"] = draw(st.sampled_from([0.0, 0.0, 0.7, 2.0]))
    if draw(st.booleans()):
        options["logprobs"] = draw(st.integers(0, 5))
    if draw(st.integers(0, 4)) == 0:
        options["prompt_logprobs"] = draw(st.integers(0, 3))
    if draw(st.integers(0, 3)) == 0:
        options["min_tokens"] = draw(st.integers(0, max_tokens))
    if draw(st.integers(0, 3)) == 0:
        options["ignore_eos"] = True
    if draw(st.integers(0, 3)) == 0:
        options["stop_token_ids"] = tuple(draw(st.lists(st.integers(0, vocab - 1), max_size=8)))
    if draw(st.integers(0, 3)) == 0:
        options["frequency_penalty"] = draw(st.sampled_from([-1.0, 0.5]))
        options["repetition_penalty"] = draw(st.sampled_from([1.0, 1.3]))
        options["presence_penalty"] = draw(st.sampled_from([0.0, 1.5]))
    if draw(st.integers(0, 3)) == 0:
        options["logit_bias"] = draw(
            st.dictionaries(st.integers(0, vocab - 1), st.sampled_from([-100.0, 3.0]), max_size=16)
        )
    if draw(st.integers(0, 3)) == 0:
        run = st.lists(st.integers(0, vocab - 1), min_size=1, max_size=3).map(tuple)
        options["bad_token_ids"] = tuple(draw(st.lists(run, max_size=6)))
    if draw(st.integers(0, 3)) == 0:
        options["top_k"] = draw(st.integers(-1, 8))
    if draw(st.integers(0, 3)) == 0:
        options["top_p"] = draw(st.sampled_from([0.3, 0.9]))
        options["min_p"] = draw(st.sampled_from([0.0, 0.05]))
    if draw(st.integers(0, 7)) == 0:
        options["typical_p"] = draw(st.sampled_from([0.2, 0.9]))
    return SamplingParams(**options)


@st.composite
def requests(
    draw: st.DrawFn, index: int, vocab: int, prefixes: Sequence[list[int]], longest: int = 24
) -> tuple[GenerateRequest, ...]:
    """A request, or the choices of one with n > 1."""
    prefix = draw(st.sampled_from(prefixes))
    prefix = prefix[: draw(st.integers(0, len(prefix)))]
    prompt = prefix + draw(st.lists(st.integers(0, vocab - 1), min_size=0 if prefix else 1, max_size=12))
    params = draw(sampling_params(vocab, longest))
    priority = draw(st.sampled_from([0, 0, 0, -1, 5]))
    salt = draw(st.sampled_from(["", "", "other"]))
    return tuple(
        GenerateRequest(
            id=f"{index}-{choice}",
            group=str(index),
            prompt=prompt,
            sampling=params,
            choice=choice,
            priority=priority,
            salt=salt,
            arrival=float(index + 1),
        )
        for choice in range(draw(st.sampled_from([1, 1, 1, 3])))
    )


@st.composite
def arrivals(
    draw: st.DrawFn,
    vocab: int,
    prefixes: Sequence[list[int]] | None = None,
    *,
    most: int = 8,
    longest: int = 24,
) -> list[Arrival]:
    """Up to `most` requests with shared beginnings, each answered by `longest` tokens at most; some are aborted."""
    prefixes = shared_prefixes(vocab) if prefixes is None else prefixes
    schedule: list[Arrival] = []
    ids: list[str] = []
    for index in range(draw(st.integers(1, most))):
        items = draw(requests(index, vocab, prefixes, longest))
        ids += [item.id for item in items]
        abort = draw(st.sampled_from(ids)) if draw(st.integers(0, 4)) == 0 else None
        schedule.append(Arrival(items, draw(st.integers(0, 12)), abort))
    return schedule


@st.composite
def engine_settings(
    draw: st.DrawFn, block_sizes: Sequence[int], *, positions: tuple[int, int], tokens: int = 48
) -> dict[str, Any]:
    """Fields of `EngineConfig` that shape a schedule, and `positions`: how many the KV cache is to hold."""
    size = draw(st.sampled_from(block_sizes))
    return {
        "block_size": size,
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.integers(1, tokens)),
        "enable_prefix_caching": draw(st.booleans()),
        "positions": max(draw(st.integers(*positions)) // size * size, size),
    }


# --- what comes of it ------------------------------------------------------------------------------------


@dataclass
class Played:
    """A schedule's outcome."""

    answers: dict[str, Answer]
    """Of all requests that were answered to their end."""
    requests: dict[str, GenerateRequest]
    """Those requests."""
    cached_tokens: int = 0
    preemptions: int = 0


def play(
    core: EngineCore,
    schedule: Sequence[Arrival],
    *,
    step: Callable[[], StepOutput | None] | None = None,
    most_steps: int = 20_000,
) -> Played:
    """Run a schedule to its end. `step` replaces `core.step`, for tests that look at more."""
    step = core.step if step is None else step
    answers: dict[str, Answer] = {}
    wanted: dict[str, GenerateRequest] = {}
    cached = 0

    def advance() -> None:
        nonlocal cached
        output = step()
        for delta in output.deltas if output is not None else ():
            first = delta.id not in answers
            cached += delta.cached_tokens or 0
            answers.setdefault(delta.id, Answer()).take(delta, first=first)

    for arrival in schedule:
        for item in arrival.requests:
            rejected = core.add_request(item)
            if rejected is None:
                wanted[item.id] = item
            else:
                assert rejected.code in ("kv_cache_exceeded", "context_length_exceeded"), rejected
        for _ in range(arrival.steps):
            advance()
        victim = arrival.abort
        if victim in wanted and (victim not in answers or answers[victim].reason is None):
            core.abort([victim])
            del wanted[victim]
    for _ in range(most_steps):
        if not core.has_work:
            break
        advance()
    assert not core.has_work, "the engine does not come to an end"
    assert core.pool.num_free == core.pool.num_blocks, "blocks are lost"
    return Played({id: answers[id] for id in wanted}, wanted, cached, core.scheduler.num_preemptions)


def differences(got: Mapping[str, Answer], expected: Mapping[str, Answer]) -> list[str]:
    """What differs in the bits of two sets of answers, for a failed test's message."""
    lines = []
    for id in sorted(got.keys() | expected.keys()):
        if id not in got or id not in expected:
            lines.append(f"{id}: only one of the two answered")
            continue
        ours, theirs = got[id].bits(), expected[id].bits()
        lines += [
            f"{id}: {name}: {ours[name]} != {theirs[name]}" for name in ours if ours[name] != theirs[name]
        ]
    return lines
