"""One request's trail while it is made: cheap to write at every step, turned into views only when read.

A sequence at decode takes one token a step, so its steps are kept as runs (first step, length, position,
blocks) that a step usually only lengthens by one. A token costs 12 bytes: the step it came in and its
log-probability.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tokentrail.protocol import Delta, ScheduledSequence, TokenAlternatives

if TYPE_CHECKING:
    from tokentrail.journey.schema import StageTimes
    from tokentrail.journey.store import JourneyStore

TokenText = Callable[[int], str]


class Stage(msgspec.Struct, kw_only=True):
    """What a part of the gateway did for a request. Wall clock, in seconds."""

    name: str
    """Such as `filtered`, `looked up`, `attempt`."""
    start: float
    end: float
    busy: float | None = None
    """Seconds in which something was done, of a stage that others overlap; None: all of them."""
    facts: dict[str, str | int | float | bool] = {}
    """Never of the content."""


class Run(NamedTuple):
    """`length` consecutive steps from `ordinal` on; only runs of single tokens are longer than 1."""

    ordinal: int
    length: int
    tokens: int
    position: int
    blocks: int
    cached: int
    drafted: int
    accepted: int


_WIDTH = len(Run._fields)


class SequenceTrail:
    """One sequence of a journey."""

    __slots__ = (
        "_blocks",
        "_next_ordinal",
        "_next_position",
        "_runs",
        "accepted_tokens",
        "cached_tokens",
        "drafted_tokens",
        "finish_reason",
        "id",
        "index",
        "keep_text",
        "logprobs",
        "preempted",
        "prompt",
        "prompt_ids",
        "prompt_tokens",
        "resumed",
        "text",
        "token_ids",
        "token_steps",
        "top",
    )

    def __init__(self, id: str, index: int, prompt_tokens: int, *, keep_text: bool) -> None:
        self.id = id
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.keep_text = keep_text
        self.cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.preempted = array("d")
        self.resumed = array("d")
        self._runs = array("q")
        self._next_ordinal = -1
        self._next_position = -1
        self._blocks = -1
        self.drafted_tokens = self.accepted_tokens = 0
        self.token_steps = array("q")
        self.logprobs = array("f")
        self.token_ids = array("i")
        self.top: list[TokenAlternatives] = []
        self.prompt: str | None = None
        self.prompt_ids = array("i")
        self.text: str | None = None

    def scheduled(self, ordinal: int, share: ScheduledSequence) -> None:
        """The sequence had a part in step `ordinal`. On the hot path: every running sequence, every step."""
        position = share.position
        tokens = share.tokens
        if (
            tokens == 1
            and position == self._next_position
            and ordinal == self._next_ordinal
            and share.blocks == self._blocks
            and not share.cached
        ):
            self._runs[1 - _WIDTH] += 1
        else:
            # Forced tokens are no guesses, though they are computed like ones.
            drafted, accepted = (0, 0) if share.forced else (share.drafted, share.accepted)
            self._runs.extend((ordinal, 1, tokens, position, share.blocks, share.cached, drafted, accepted))
            self._blocks = share.blocks
            self.drafted_tokens += drafted
            self.accepted_tokens += accepted
        self._next_position = position + tokens
        # A chunk of several tokens is never lengthened; the next step begins a run of its own.
        self._next_ordinal = ordinal + 1 if tokens == 1 else -1

    def tokens(self, ordinal: int, delta: Delta) -> None:
        """Step `ordinal` brought tokens. On the hot path."""
        if len(delta.token_ids) == 1:
            self.token_steps.append(ordinal)
            self.logprobs.append(delta.logprobs[0])
        else:
            self.token_steps.extend([ordinal] * len(delta.token_ids))
            self.logprobs.extend(delta.logprobs)
        if delta.cached_tokens is not None and self.cached_tokens is None:
            self.cached_tokens = delta.cached_tokens
        if self.keep_text:
            self.token_ids.extend(delta.token_ids)
            if delta.top is not None:
                self.top.extend(delta.top)

    def finish(self, reason: str, num_tokens: int) -> None:
        """The answer ended after `num_tokens`: a stop string can cut off some that were already made."""
        self.finish_reason = reason
        for column in (self.token_steps, self.logprobs, self.token_ids, self.top):
            del column[num_tokens:]

    @property
    def first_ordinal(self) -> int | None:
        return self._runs[0] if self._runs else None

    def spans(self) -> Iterator[tuple[int, int]]:
        """(first, behind the last) of each stretch of steps that follow on one another."""
        begin = end = -1
        for run in self.runs():
            if run.ordinal != end:
                if end > begin:
                    yield begin, end
                begin = run.ordinal
            end = run.ordinal + run.length
        if end > begin:
            yield begin, end

    def spans_from(self, ordinal: int) -> Iterator[tuple[int, int]]:
        """(first, behind the last) of the runs of steps that do not end before `ordinal`, the newest first."""
        for at in range(len(self._runs) - _WIDTH, -1, -_WIDTH):
            first, length = self._runs[at], self._runs[at + 1]
            if first + length <= ordinal:
                return
            yield max(first, ordinal), first + length

    @property
    def blocks(self) -> int:
        """KV blocks held after its latest step."""
        return max(self._blocks, 0)

    def runs(self) -> Iterator[Run]:
        for at in range(0, len(self._runs), _WIDTH):
            yield Run(*self._runs[at : at + _WIDTH])


class Journey:
    """One request's trail. Made by `JourneyStore.begin`; every method is safe to call in any order."""

    def __init__(
        self,
        store: JourneyStore,
        id: str,
        *,
        request_id: str,
        tenant: str,
        endpoint: str,
        model: str,
        received: float,
        keep_text: bool,
    ) -> None:
        self._store = store
        self.id = id
        self.request_id = request_id
        self.tenant = tenant
        self.endpoint = endpoint
        self.model = model
        self.keep_text = keep_text
        self.received = received
        self.templated: float | None = None
        self.template_seconds: float | None = None
        self.tokenize_seconds: float | None = None
        self.detokenize_seconds = 0.0
        self.send_seconds = 0.0
        self.queued: float | None = None
        self.finished: float | None = None
        self.outcome: str | None = None
        self.prompt_tokens = 0
        self.served_by = "engine"
        self.route = ""
        self.target = ""
        self.degraded = False
        self.attempts = 1
        self.gateway: Sequence[Stage] = ()
        """What was done before and after the model; it grows, as parts of the gateway end."""
        self.superseded_by: Journey | None = None
        """The journey of another attempt at the same request, which was answered."""
        self.seed: int | None = None
        self.fingerprint: str | None = None
        self.token_text: TokenText | None = None
        self.sequences: list[SequenceTrail] = []
        # Of answers that no engine here made: what their upstream told, and when it came.
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.texts: list[str] = []
        """By choice, if texts are kept."""

    def template_done(
        self, prompt_tokens: int, *, template_seconds: float | None, tokenize_seconds: float
    ) -> None:
        """The prompts became `prompt_tokens` tokens in all. `template_seconds`: None without a template."""
        self.templated = time.time()
        self.prompt_tokens = prompt_tokens
        self.template_seconds = template_seconds
        self.tokenize_seconds = tokenize_seconds

    def add_sequence(
        self, id: str, *, prompt_tokens: int, prompt: str | None = None, prompt_ids: Sequence[int] = ()
    ) -> SequenceTrail:
        """A sequence is about to be handed to the engine under `id`. The prompt itself is kept if texts are."""
        sequence = SequenceTrail(id, len(self.sequences), prompt_tokens, keep_text=self.keep_text)
        if self.keep_text:
            sequence.prompt = prompt
            sequence.prompt_ids.extend(prompt_ids)
        self.sequences.append(sequence)
        self._store.watch(sequence)
        if self.queued is None:
            self.queued = time.time()
        return sequence

    def sequence_done(
        self, sequence: SequenceTrail, reason: str, num_tokens: int, text: str | None = None
    ) -> None:
        """A sequence ended; later steps no longer concern it. `text` is kept if texts are kept."""
        if sequence.finish_reason is None:
            self._store.unwatch(sequence)
            sequence.finish(reason, num_tokens)
            if self.keep_text:
                sequence.text = text

    def end(self, outcome: str) -> None:
        """The request is over; sequences without an end of their own get `outcome`. Again: does nothing."""
        if self.finished is not None:
            return
        for sequence in self.sequences:
            self.sequence_done(sequence, outcome, len(sequence.token_steps))
        self.finished = time.time()
        self.outcome = outcome
        self._store.finish(self)

    def queue_seconds(self) -> float | None:
        """Handed to the engine → first step with a part of it; None: not scheduled yet."""
        started = self._store.started_at(self)
        return None if started is None or self.queued is None else max(0.0, started - self.queued)

    def stages(self) -> StageTimes:
        """How long each stage took, as far as it got."""
        return self._store.stages(self)

    @property
    def first_ordinal(self) -> int | None:
        """The oldest step this journey still needs."""
        ordinals = [s.first_ordinal for s in self.sequences if s.first_ordinal is not None]
        return min(ordinals, default=None)
