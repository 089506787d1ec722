"""Journeys of a pretend engine."""

from __future__ import annotations

import time

from tokentrail.journey import Journey, JourneyStore
from tokentrail.protocol import Delta, ScheduledSequence, StepRecord


class Clock:
    """Steps of a pretend engine, 10 ms each."""

    def __init__(self, start: float | None = None, *, life: int = 0, replica: int = 0) -> None:
        self.now = time.time() if start is None else start
        self.life, self.replica = life, replica
        self.step = 0

    def record(
        self, *shares: ScheduledSequence, preempted: list[str] | None = None, blocks_used: int = 0
    ) -> StepRecord:
        start = self.now
        self.now += 0.010
        self.step += 1
        return StepRecord(
            step=self.step,
            start=start,
            scheduled=start + 0.001,
            forwarded=start + 0.009,
            end=self.now,
            num_sequences=len(shares),
            num_tokens=sum(share.tokens for share in shares),
            blocks_used=blocks_used,
            sequences=list(shares),
            preempted=preempted or [],
            life=self.life,
            replica=self.replica,
        )


def share(id: str, tokens: int, position: int, *, cached: int = 0, block_size: int = 16) -> ScheduledSequence:
    return ScheduledSequence(
        id=id, tokens=tokens, position=position, cached=cached, blocks=-(-(position + tokens) // block_size)
    )


def drafted(id: str, position: int, drafted: int, accepted: int) -> ScheduledSequence:
    """A step that verified drafted tokens."""
    return ScheduledSequence(id, 1 + drafted, position, 0, 4, drafted=drafted, accepted=accepted)


def delta(id: str, token: int, **rest: object) -> Delta:
    return Delta(id=id, token_ids=[token], logprobs=[-token / 8], **rest)  # type: ignore[arg-type]


def begin(store: JourneyStore, id: str = "a", **rest: str) -> Journey:
    return store.begin(id, endpoint="/v1/completions", model="m", **rest)


def run_one(
    store: JourneyStore, id: str = "a", *, prompt: int = 40, tokens: int = 50, **rest: str
) -> Journey:
    """A journey with two prompt chunks (8 tokens from the cache) and `tokens` tokens."""
    journey = begin(store, id, **rest)
    journey.template_done(prompt, template_seconds=0.001, tokenize_seconds=0.002)
    sequence = journey.add_sequence(f"{id}-0", prompt_tokens=prompt)
    clock = Clock()
    store.on_step(clock.record(share(sequence.id, 16, 8, cached=8)), [])
    store.on_step(clock.record(share(sequence.id, prompt - 24, 24)), [delta(sequence.id, 1, cached_tokens=8)])
    for k in range(1, tokens):
        store.on_step(clock.record(share(sequence.id, 1, prompt + k - 1)), [delta(sequence.id, k + 1)])
    journey.sequence_done(sequence, "stop", tokens, "the text")
    journey.end("stop")
    return journey
