"""From compact records to the JSON shape: done only when somebody asks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from tokentrail.journey.record import Journey, SequenceTrail
from tokentrail.journey.schema import (
    AlternativeView,
    CompanyView,
    EventView,
    GatewayStageView,
    JourneySummary,
    JourneyView,
    PromptTokenView,
    SequenceView,
    StageTimes,
    StepView,
    TokenView,
)
from tokentrail.journey.steps import StepLog


def summarize(journey: Journey, steps: StepLog) -> JourneySummary:
    return JourneySummary(**_summary_fields(journey, steps))


def view(journey: Journey, steps: StepLog, others: Iterable[Journey] = ()) -> JourneyView:
    """`others`: journeys that may be told of as company, if they shared steps."""
    sequences = [sequence for one in (journey, *others) for sequence in one.sequences]
    owners = {id(sequence): one.id for one in (journey, *others) for sequence in one.sequences}
    return JourneyView(
        **_summary_fields(journey, steps),
        events=_events(journey, steps),
        gateway=[
            GatewayStageView(
                name=stage.name,
                start_at=stage.start,
                seconds=max(0.0, stage.end - stage.start),
                busy_seconds=stage.busy,
                facts=stage.facts,
            )
            for stage in sorted(journey.gateway, key=lambda stage: stage.start)
        ],
        sequences=[
            _sequence(
                sequence,
                journey,
                steps,
                [
                    CompanyView(journey=owners[id(other)], sequence=other.index, steps=[*map(list, shared)])
                    for other in sequences
                    if other is not sequence and (shared := _shared(sequence, other))
                ],
            )
            for sequence in journey.sequences
        ],
        texts=journey.texts or None,
    )


def _summary_fields(journey: Journey, steps: StepLog) -> dict[str, Any]:
    sequences = journey.sequences
    first = _first_token(journey, steps)
    return {
        "id": journey.id,
        "request_id": journey.request_id,
        "endpoint": journey.endpoint,
        "model": journey.model,
        "status": "live" if journey.finished is None else "finished",
        "served_by": journey.served_by,
        "route": journey.route,
        "target": journey.target,
        "degraded": journey.degraded,
        "attempts": journey.attempts,
        "outcome": journey.outcome,
        "received_at": journey.received,
        "first_token_at": first,
        "finished_at": journey.finished,
        "prompt_tokens": journey.prompt_tokens,
        "cached_tokens": journey.cached_tokens + sum(sequence.cached_tokens or 0 for sequence in sequences),
        "completion_tokens": _completion_tokens(journey),
        "drafted_tokens": sum(sequence.drafted_tokens for sequence in sequences),
        "accepted_tokens": sum(sequence.accepted_tokens for sequence in sequences),
        "num_sequences": len(sequences),
        "preemptions": sum(len(sequence.preempted) for sequence in sequences),
        "resumptions": sum(len(sequence.resumed) for sequence in sequences),
        "seed": journey.seed,
        "system_fingerprint": journey.fingerprint,
        "stages": _stages(journey, steps, first),
    }


def _completion_tokens(journey: Journey) -> int:
    return journey.completion_tokens + sum(len(sequence.token_steps) for sequence in journey.sequences)


def _first_token(journey: Journey, steps: StepLog) -> float | None:
    if journey.first_token is not None:
        return journey.first_token
    ends = [steps[sequence.token_steps[0]].end for sequence in journey.sequences if sequence.token_steps]
    return min(ends, default=None)


def stages(journey: Journey, steps: StepLog) -> StageTimes:
    return _stages(journey, steps, _first_token(journey, steps))


def _stages(journey: Journey, steps: StepLog, first_token: float | None) -> StageTimes:
    ordinal = journey.first_ordinal
    started = None if ordinal is None else steps[ordinal].start
    ends = (steps[s.token_steps[-1]].end for s in journey.sequences if s.token_steps)
    last = max(ends, default=journey.last_token)
    return StageTimes(
        template=journey.template_seconds,
        tokenize=journey.tokenize_seconds,
        # Clocks are those of two processes on one machine: equal but for rounding, hence the floor at 0.
        queue=_between(journey.queued, started),
        prefill=_between(started, first_token),
        decode=_between(first_token, last),
        detokenize=journey.detokenize_seconds,
        send=journey.send_seconds,
        first_token=_between(journey.received, first_token),
        total=_between(journey.received, journey.finished),
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)


def _events(journey: Journey, steps: StepLog) -> list[EventView]:
    events = [EventView(event="received", at=journey.received)]
    if journey.templated is not None:
        events.append(EventView(event="templated", at=journey.templated, tokens=journey.prompt_tokens))
    if journey.queued is not None:
        events.append(EventView(event="queued", at=journey.queued))
    if journey.first_token is not None:
        events.append(EventView(event="first_token", at=journey.first_token))
    for sequence in journey.sequences:
        index = sequence.index
        for run in sequence.runs():
            events.append(
                EventView(
                    event="scheduled",
                    at=steps[run.ordinal].start,
                    sequence=index,
                    tokens=run.tokens,
                    cached_tokens=run.cached,
                )
            )
            break
        if sequence.token_steps:
            at = steps[sequence.token_steps[0]].end
            events.append(EventView(event="first_token", at=at, sequence=index))
        events.extend(EventView(event="preempted", at=at, sequence=index) for at in sequence.preempted)
        events.extend(EventView(event="resumed", at=at, sequence=index) for at in sequence.resumed)
    if journey.finished is not None:
        tokens = _completion_tokens(journey)
        events.append(EventView(event="finished", at=journey.finished, tokens=tokens, reason=journey.outcome))
    return sorted(events, key=lambda event: event.at)


def _shared(sequence: SequenceTrail, other: SequenceTrail) -> list[tuple[int, int]]:
    """Stretches of the sequence's steps that `other` had a part in: first and last, counted among its own."""
    shared: list[tuple[int, int]] = []
    before = 0
    theirs = list(other.spans())
    begins = [begin for begin, _ in theirs]
    for begin, end in sequence.spans():
        for first, behind in theirs[max(bisect_right(begins, begin) - 1, 0) : bisect_right(begins, end)]:
            low, high = max(begin, first), min(end, behind)
            if low < high:
                start, last = before + low - begin, before + high - begin - 1
                if shared and shared[-1][1] + 1 == start:  # steps of other engines lay between
                    start = shared.pop()[0]
                shared.append((start, last))
        before += end - begin
    return shared


def _sequence(
    sequence: SequenceTrail, journey: Journey, steps: StepLog, company: list[CompanyView]
) -> SequenceView:
    pieces = None
    if sequence.prompt_ids and (text := journey.token_text) is not None:
        pieces = [PromptTokenView(id=id, text=text(id)) for id in sequence.prompt_ids]
    return SequenceView(
        index=sequence.index,
        prompt_tokens=sequence.prompt_tokens,
        cached_tokens=sequence.cached_tokens,
        completion_tokens=len(sequence.token_steps),
        finish_reason=sequence.finish_reason,
        preempted_at=list(sequence.preempted),
        resumed_at=list(sequence.resumed),
        steps=list(_steps(sequence, steps)),
        tokens=list(_tokens(sequence, journey, steps)),
        text=sequence.text,
        prompt=sequence.prompt,
        company=company,
        prompt_pieces=pieces,
    )


def _steps(sequence: SequenceTrail, steps: StepLog) -> Iterator[StepView]:
    computed = 0  # positions below this one have been computed before
    for run in sequence.runs():
        for k in range(run.length):
            row = steps[run.ordinal + k]
            position = run.position + k
            if position < computed:
                kind = "recompute"
            elif position < sequence.prompt_tokens:
                kind = "prefill"
            else:
                kind = "decode"
            # Drafted tokens that were wrong do not count: their positions are computed with others next.
            computed = max(computed, position + run.tokens - run.drafted + run.accepted)
            yield StepView(
                step=row.step,
                engine=row.engine,
                replica=row.replica,
                kind=kind,
                start_at=row.start,
                seconds=row.end - row.start,
                schedule_seconds=row.scheduled - row.start,
                forward_seconds=row.forwarded - row.scheduled,
                sample_seconds=row.end - row.forwarded,
                tokens=run.tokens,
                position=position,
                cached_tokens=run.cached,
                blocks=run.blocks,
                batch_sequences=row.num_sequences,
                batch_tokens=row.num_tokens,
                blocks_used=row.blocks_used,
                drafted_tokens=run.drafted,
                accepted_tokens=run.accepted,
                drafting_seconds=row.drafting,
            )


def _tokens(sequence: SequenceTrail, journey: Journey, steps: StepLog) -> Iterator[TokenView]:
    text = journey.token_text
    for i, ordinal in enumerate(sequence.token_steps):
        row = steps[ordinal]
        token = TokenView(at=row.end, step=row.step, logprob=sequence.logprobs[i])
        if i < len(sequence.token_ids):
            token.id = sequence.token_ids[i]
            if text is not None:
                token.text = text(token.id)
        if i < len(sequence.top):
            top = sequence.top[i]
            token.top = [
                AlternativeView(id=id, text="" if text is None else text(id), logprob=logprob)
                for id, logprob in zip(top.token_ids, top.logprobs, strict=True)
            ]
        yield token
