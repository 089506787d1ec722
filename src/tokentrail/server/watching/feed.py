"""Puts together what one watcher may see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from itertools import chain

import msgspec
import numpy as np

from tokentrail.answer import Identity
from tokentrail.journey import Journey
from tokentrail.server.state import ServerState
from tokentrail.server.watching.rates import Rates
from tokentrail.server.watching.schema import Live, LiveBlocks, LiveRequest, LiveStep, LiveTarget, LiveTotals

_MOST_STEPS = 200
_MOST_CELLS = 4096
_BLOCKS_EVERY = 0.5
"""Seconds between two looks at the KV blocks."""
_LOOK_TIMEOUT = 1.0
_LETTERS = b"fcus"
_TO_LETTERS = bytes.maketrans(bytes(range(4)), _LETTERS)


class Feed:
    """What all watchers share: rates, and the blocks as they were seen last."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self._rates = Rates(state.metrics, time.time())
        self._blocks: list[LiveBlocks] = []
        self._seen = 0.0
        self._looking: asyncio.Task[None] | None = None

    def watch(self, identity: Identity) -> Watcher:
        return Watcher(self, identity)

    async def blocks(self) -> list[LiveBlocks]:
        """By engine, at most half a second old; older ones if an engine is too busy to tell."""
        if self._looking is None and time.monotonic() - self._seen >= _BLOCKS_EVERY:
            self._looking = asyncio.create_task(self._look())
        if self._looking is not None and not self._blocks:
            await asyncio.wait({self._looking}, timeout=_LOOK_TIMEOUT)
        return self._blocks

    async def _look(self) -> None:
        try:
            metrics = self.state.metrics
            asked = [ask for one in (metrics, *metrics.others) for ask in one.block_maps]
            maps = [await ask() for ask in asked]
            blocks = [block_map(states) for one in maps for states in one]
            if blocks != self._blocks:
                self._blocks = blocks
            self._seen = time.monotonic()
        finally:
            self._looking = None

    async def live(self, watcher: Watcher) -> Live:
        state = self.state
        backend = state.ready_backend()
        now = time.time()
        stats = backend.stats
        journeys = state.journeys
        first = watcher.next_step
        rows = journeys.steps.since(first, _MOST_STEPS)
        watcher.next_step = journeys.steps.next
        own: list[Journey] = []
        others: list[Journey] = []
        for journey in journeys.live():
            (own if watcher.may_see(journey) else others).append(journey)
        waiting = sum(_state_of(journey) == "waiting" for journey in others)
        company: dict[int, list[str]] = {}
        if rows:
            begin = rows[0][0]
            ended = (one for one in journeys.ended_since(rows[0][1].start) if watcher.may_see(one))
            company = _company([*own, *ended], begin)
        blocks = await self.blocks()
        told = None if blocks is watcher.blocks else blocks
        watcher.blocks = blocks
        return Live(
            at=now,
            engine_up=backend.ready,
            draining=state.draining,
            totals=LiveTotals(**{name: getattr(stats, name) for name in LiveTotals.__struct_fields__}),
            requests=[watcher.request(journey) for journey in own],
            others_running=len(others) - waiting,
            others_waiting=waiting,
            steps=[
                LiveStep(
                    number=ordinal,
                    replica=row.replica,
                    start_at=row.start,
                    seconds=row.end - row.start,
                    forward_seconds=row.forwarded - row.scheduled,
                    batch_sequences=row.num_sequences,
                    batch_tokens=row.num_tokens,
                    blocks_used=row.blocks_used,
                    journeys=company.get(ordinal, []),
                )
                for ordinal, row in rows
            ],
            rates=self._rates.look(now, stats),
            blocks=told,
            targets=watcher.targets(),
        )


class Watcher:
    """One who watches, and what it was told already."""

    def __init__(self, feed: Feed, identity: Identity) -> None:
        self._feed = feed
        self._identity = identity
        self.next_step = 0
        self.blocks: list[LiveBlocks] | None = None

    async def look(self) -> Live:
        """What is new."""
        return await self._feed.live(self)

    def targets(self) -> list[LiveTarget] | None:
        gateway = self._feed.state.gateway
        if gateway is None or gateway.routing is None or self._identity.models is not None:
            return None
        return [
            LiveTarget(
                name=one.name,
                state=one.state,
                detail=msgspec.to_builtins(one) if self._identity.admin else None,
            )
            for one in gateway.routing.targets()
        ]

    def may_see(self, journey: Journey) -> bool:
        return self._identity.admin or journey.tenant == self._identity.tenant

    def request(self, journey: Journey) -> LiveRequest:
        sequences = journey.sequences
        return LiveRequest(
            id=journey.id,
            model=journey.model,
            endpoint=journey.endpoint,
            state=_state_of(journey),
            received_at=journey.received,
            prompt_tokens=journey.prompt_tokens,
            cached_tokens=journey.cached_tokens + sum(one.cached_tokens or 0 for one in sequences),
            completion_tokens=journey.completion_tokens + sum(len(one.token_steps) for one in sequences),
            sequences=len(sequences),
            blocks=sum(one.blocks for one in sequences if one.finish_reason is None),
            own=journey.tenant == self._identity.tenant,
        )


def _state_of(journey: Journey) -> str:
    if not journey.sequences:
        return "elsewhere" if journey.queued is None and journey.served_by != "engine" else "waiting"
    if any(sequence.token_steps for sequence in journey.sequences):
        return "answer"
    return "waiting" if journey.first_ordinal is None else "prompt"


def _company(journeys: Iterable[Journey], begin: int) -> dict[int, list[str]]:
    """By step, from `begin` on: whose it was."""
    company: dict[int, list[str]] = {}
    for journey in journeys:
        spans = [range(*span) for sequence in journey.sequences for span in sequence.spans_from(begin)]
        # A sequence has each step once; several of one journey share them.
        steps = chain(*spans) if len(journey.sequences) == 1 else set(chain(*spans))
        for step in steps:
            company.setdefault(step, []).append(journey.id)
    return company


def block_map(states: bytes) -> LiveBlocks:
    """`states`: a byte a block, as `protocol.BlockStates` has them."""
    each = max(1, -(-len(states) // _MOST_CELLS))
    cells = states
    if each > 1:
        # 60,000 blocks in 20 µs; one by one they would take 5 ms, twice a second.
        whole = np.frombuffer(states.ljust(-(-len(states) // each) * each, b"\0"), np.uint8)
        cells = whole.reshape(-1, each).max(axis=1).tobytes()
    free, cached, used, shared = np.bincount(np.frombuffer(states, np.uint8), minlength=4).tolist()
    return LiveBlocks(
        total=len(states),
        free=free,
        cached=cached,
        used=used,
        shared=shared,
        blocks_per_cell=each,
        cells=cells.translate(_TO_LETTERS).decode(),
    )
