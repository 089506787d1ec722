"""All journeys of a process: the live ones, and the last finished ones."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from tokentrail.journey.record import Journey, SequenceTrail, Stage
from tokentrail.journey.schema import JourneyList, JourneyView, StageTimes
from tokentrail.journey.steps import StepLog
from tokentrail.journey.view import stages, summarize, view
from tokentrail.protocol import Delta, StepRecord

# Steps that no kept journey needs are freed when so many may have piled up.
_SWEEP_EVERY = 4096


class Asked(Protocol):
    """What requests of every kind say of themselves. `received`: wall clock; None: now."""

    id: str
    endpoint: str
    model: str
    request_id: str | None
    received: float | None

    @property
    def tenant(self) -> str: ...

    @property
    def stages(self) -> Sequence[Stage]: ...


class JourneyStore:
    """Journeys by id. Not thread-safe: it lives on the event loop that receives engine messages.

    `capacity` finished journeys are kept, the oldest making room; live ones are always kept. `keep_text`:
    keep texts, token ids and alternatives too.
    """

    def __init__(self, capacity: int = 1000, *, keep_text: bool = False) -> None:
        self.capacity = capacity
        self.keep_text = keep_text
        self._steps = StepLog()
        self._watched: dict[str, SequenceTrail] = {}
        self._live: dict[str, Journey] = {}
        self._finished: OrderedDict[str, Journey] = OrderedDict()
        self._by_request_id: dict[tuple[str, str], Journey] = {}
        self._sweep_at = _SWEEP_EVERY

    # --- writing -----------------------------------------------------------------------------------

    def begin(
        self,
        id: str,
        *,
        endpoint: str,
        model: str,
        tenant: str = "",
        request_id: str | None = None,
        received: float | None = None,
    ) -> Journey:
        """A request was received (at `received`, wall clock)."""
        journey = Journey(
            self,
            id,
            request_id=request_id or id,
            tenant=tenant,
            endpoint=endpoint,
            model=model,
            received=time.time() if received is None else received,
            keep_text=self.keep_text,
        )
        self._live[id] = journey
        # Clients may repeat their own request ids; the latest journey wins.
        self._by_request_id[tenant, journey.request_id] = journey
        return journey

    def begin_for(self, request: Asked) -> Journey:
        """The same, of a request as it goes to a backend."""
        journey = self.begin(
            request.id,
            endpoint=request.endpoint,
            model=request.model,
            tenant=request.tenant,
            request_id=request.request_id,
            received=request.received,
        )
        journey.gateway = request.stages
        return journey

    def on_step(self, record: StepRecord, deltas: Sequence[Delta]) -> None:
        """One engine step, and what it brought. On the hot path: its cost is measured by the tests."""
        steps = self._steps
        ordinal = steps.append(record)
        watched = self._watched
        for share in record.sequences:
            sequence = watched.get(share.id)
            if sequence is not None:
                sequence.scheduled(ordinal, share)
        for id in record.preempted:
            sequence = watched.get(id)
            if sequence is not None:
                sequence.preempted.append(record.end)
        for delta in deltas:
            sequence = watched.get(delta.id)
            if sequence is not None:
                sequence.tokens(ordinal, delta)
        if ordinal >= self._sweep_at:
            self._sweep()

    def on_resume(self, ids: Sequence[str]) -> None:
        """An engine process died, and another one took over these of its sequences."""
        now = time.time()
        for id in ids:
            if (sequence := self._watched.get(id)) is not None:
                sequence.resumed.append(now)

    def handled(self, id: str, *, by: str, route: str, target: str, degraded: bool, attempts: int) -> None:
        """The request `id` is answered by the attempt whose journey is `by`: that one is found by both ids."""
        journey = self._live.get(by) or self._finished.get(by)
        if journey is None:
            return
        journey.route, journey.target, journey.degraded, journey.attempts = route, target, degraded, attempts
        other = self._live.get(id) or self._finished.get(id)
        if other is not None and other is not journey:
            other.superseded_by = journey
        self._by_request_id[journey.tenant, journey.request_id] = journey

    def watch(self, sequence: SequenceTrail) -> None:
        self._watched[sequence.id] = sequence

    def unwatch(self, sequence: SequenceTrail) -> None:
        self._watched.pop(sequence.id, None)

    def finish(self, journey: Journey) -> None:
        if self._live.pop(journey.id, None) is None:
            return
        self._finished[journey.id] = journey
        while len(self._finished) > self.capacity:
            _, oldest = self._finished.popitem(last=False)
            key = (oldest.tenant, oldest.request_id)
            if self._by_request_id.get(key) is oldest:
                del self._by_request_id[key]

    def _sweep(self) -> None:
        """Free the steps that no kept journey needs any more."""
        needed = self._steps.next
        for kept in (self._live, self._finished):
            for journey in kept.values():
                first = journey.first_ordinal
                if first is not None and first < needed:
                    needed = first
        self._steps.forget_before(needed)
        self._sweep_at = self._steps.next + _SWEEP_EVERY

    # --- reading -----------------------------------------------------------------------------------

    @property
    def steps(self) -> StepLog:
        return self._steps

    def live(self) -> Iterable[Journey]:
        """Those that are not over, of all tenants, the oldest first."""
        return self._live.values()

    def ended_since(self, when: float) -> Iterator[Journey]:
        """Finished ones, of all tenants, the newest first."""
        for journey in reversed(self._finished.values()):
            if journey.finished is not None and journey.finished < when:
                return
            yield journey

    @property
    def num_live(self) -> int:
        return len(self._live)

    def started_at(self, journey: Journey) -> float | None:
        """When the first step began that had a part of the journey."""
        ordinal = journey.first_ordinal
        return None if ordinal is None else self._steps[ordinal].start

    def stages(self, journey: Journey) -> StageTimes:
        return stages(journey, self._steps)

    def find(self, id: str, tenant: str = "") -> Journey | None:
        """By journey id or by the client's request id; None also if it belongs to somebody else."""
        journey = self._live.get(id) or self._finished.get(id) or self._by_request_id.get((tenant, id))
        if journey is not None and journey.superseded_by is not None:
            journey = journey.superseded_by
        return journey if journey is not None and journey.tenant == tenant else None

    def view(self, id: str, tenant: str = "") -> JourneyView | None:
        journey = self.find(id, tenant)
        if journey is None:
            return None
        kept = (one for part in (self._live, self._finished) for one in part.values())
        others = [one for one in kept if one.tenant == tenant and one is not journey]
        return view(journey, self._steps, others)

    def list(self, tenant: str = "", limit: int = 20) -> JourneyList:
        """The tenant's newest journeys, live ones first."""
        own: list[Journey] = []
        for kept in (self._live, self._finished):
            own.extend(journey for journey in reversed(kept.values()) if journey.tenant == tenant)
        return JourneyList(
            data=[summarize(journey, self._steps) for journey in own[:limit]], has_more=len(own) > limit
        )
