"""Several engine processes of one model, as one engine.

A request goes to the least loaded one, or to one that has computed the beginning of its prompt before, as long as that
is not much busier; requests of one session to the same one, where they say so (`GenerateRequest.session`). When a
process dies, what it had in flight goes on at once on another one, from the prompt and the tokens already sent: the
same bytes, as they are the same model. Only where none is alive it waits for the first that comes back.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from tokentrail.engine.affinity import PrefixMap
from tokentrail.engine.client import EngineClient, ResumeListener, Sink, StepListener
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.supervision import InFlight
from tokentrail.protocol import EngineDead, EngineInfo, EngineStats, GenerateRequest, InvalidRequest

if TYPE_CHECKING:
    from tokentrail.engine.loading import Progress

logger = logging.getLogger(__name__)

_SILENT_AFTER = 2.0
"""Seconds without a word after which an engine that has work is asked only if all are silent."""
_MORE_FOR_A_PREFIX = 4
"""Sequences by which an engine that knows a prompt's beginning may be busier than the idlest."""


class ReplicaSet:
    """See `answer.local.Engine`, and `EngineClient`, of which it has several. On one event loop only."""

    def __init__(
        self, config: EngineConfig, cores: Sequence[tuple[int, ...]], *, runner: str | None = None
    ) -> None:
        """`cores`: those of each replica, of which there are as many; `runner`: as `EngineClient` takes it."""
        self.replicas = [
            EngineClient(msgspec.structs.replace(config, cores=own), runner=runner, number=number)
            for number, own in enumerate(cores)
        ]
        for replica in self.replicas:
            replica.on_death = self._rescue
            replica.on_birth = self._welcome
        self.moved = 0
        """Sequences that went on on another replica when theirs had died."""
        self._homes: dict[str, EngineClient] = {}
        """Where each sequence is, by its id."""
        self._prefixes = PrefixMap()
        self._turn = 0

    # --- life ----------------------------------------------------------------------------------------------

    async def start(self, progress: Progress | None = None) -> None:
        """Start all. Raises what kept one from starting; none runs then."""
        first, *others = self.replicas
        try:
            await first.start(progress)
            # The others take what the first one found room for, so that a prompt fits all or none; and so does
            # whoever takes over from one of them, whatever memory is free then.
            info = first.info
            same = {
                "max_model_len": info.max_model_len,
                "kv_cache_memory": info.num_blocks * info.block_size * info.kv_bytes_per_token,
            }
            for replica in self.replicas:
                replica.config = msgspec.structs.replace(replica.config, **same)
            await asyncio.gather(*(replica.start() for replica in others))
            if any(replica.info.fingerprint != info.fingerprint for replica in others):
                raise InvalidRequest(
                    "The model's file changed while its replicas loaded it. Start the server again."
                )
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await asyncio.gather(*(replica.close() for replica in self.replicas))

    @property
    def alive(self) -> bool:
        return any(replica.alive for replica in self.replicas)

    @property
    def info(self) -> EngineInfo:
        return self.replicas[0].info

    @property
    def restarts(self) -> int:
        return sum(replica.restarts for replica in self.replicas)

    @property
    def stats(self) -> EngineStats:
        parts = [replica.stats for replica in self.replicas]
        fields = EngineStats.__struct_fields__
        return EngineStats(**{name: sum(getattr(part, name) for part in parts) for name in fields})

    async def block_states(self) -> list[bytes]:
        """See `EngineClient.block_states`: those of each replica that is there."""
        shown = await asyncio.gather(*(replica.block_states() for replica in self.replicas))
        return [states for one in shown for states in one]

    def add_step_listener(self, listener: StepListener) -> None:
        for replica in self.replicas:
            replica.add_step_listener(listener)

    def add_resume_listener(self, listener: ResumeListener) -> None:
        for replica in self.replicas:
            replica.add_resume_listener(listener)

    # --- requests ------------------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest, sink: Sink) -> Callable[[], None]:
        """See `EngineClient.submit`."""
        if request.id in self._homes:
            raise InvalidRequest(f"A request with id {request.id} is already in the engine.", param="id")
        hashes = self._prefixes.hashes(request.prompt, (request.salt, request.adapter))
        replica = self._choose(request, hashes)
        flight = replica.begin(request, sink)
        self._prefixes.add(hashes, replica.number)
        self._homes[request.id] = replica

        def drop() -> None:
            home = self._homes.pop(request.id, None)
            if home is not None:
                home.drop(flight)

        return drop

    def _choose(self, request: GenerateRequest, hashes: Sequence[int]) -> EngineClient:
        candidates = self._usable()
        if len(candidates) == 1:
            return candidates[0]
        if request.session:
            return max(candidates, key=lambda replica: _affinity(request.session, replica.number))
        least = min(replica.load for replica in candidates)
        known = self._prefixes.engines(hashes)
        near = [
            replica
            for replica in candidates
            if replica.number in known and replica.load <= least + _MORE_FOR_A_PREFIX
        ]
        return self._idlest(near or candidates)

    def _usable(self) -> list[EngineClient]:
        """Replicas to choose from: the best kind of which there are any. Raises `EngineDead` if all have given up."""
        usable = [replica for replica in self.replicas if not replica.down]
        if not usable:
            raise EngineDead("All engines of this model died several times in a row. Try again later.")
        for good in (_is_well, _is_calm, _is_alive):
            if found := [replica for replica in usable if good(replica)]:
                return found
        return usable

    def _idlest(self, candidates: Sequence[EngineClient]) -> EngineClient:
        """Of equally loaded ones each in turn."""
        self._turn += 1
        count = len(self.replicas)
        return min(candidates, key=lambda replica: (replica.load, (replica.number + self._turn) % count))

    # --- deaths --------------------------------------------------------------------------------------------

    def _rescue(self, dead: EngineClient) -> None:
        """`dead` has no process any more: others go on with what it had, if there are any."""
        self._prefixes.forget(dead.number)
        self._move(dead, [replica for replica in self.replicas if replica.alive and not replica.down])

    def _welcome(self, born: EngineClient) -> None:
        """`born` has a process again: it goes on with what waits for others that have none."""
        for replica in self.replicas:
            if not replica.alive:
                self._move(replica, [born])

    def _move(self, dead: EngineClient, candidates: Sequence[EngineClient]) -> None:
        if not candidates:
            return
        best = next(
            (found for good in (_is_well, _is_calm) if (found := [one for one in candidates if good(one)])),
            candidates,
        )
        moved: list[tuple[InFlight, Sink, EngineClient]] = []
        loads = {replica.number: replica.load for replica in best}
        for flight in sorted(dead.flights, key=lambda flight: not flight.told_first):
            target = min(best, key=lambda replica: loads[replica.number])
            same = target.info.fingerprint == dead.info.fingerprint
            if flight.suspect or (flight.told_first and not same):
                continue
            loads[target.number] += 1
            moved.append((flight, dead.release(flight), target))
            self._homes[flight.request.id] = target
        if not moved:
            return
        self.moved += len(moved)
        logger.warning("%d sequences of a dead engine go on on other replicas.", len(moved))
        dead.tell_resumed([flight.request.id for flight, _, _ in moved if flight.accepted])
        for flight, sink, target in moved:
            target.take(flight, sink)


def _is_alive(replica: EngineClient) -> bool:
    return replica.alive


def _is_calm(replica: EngineClient) -> bool:
    return replica.alive and not replica.cautious


def _is_well(replica: EngineClient) -> bool:
    return replica.alive and not replica.cautious and replica.silence < _SILENT_AFTER


def _affinity(session: str, number: int) -> bytes:
    """Rendezvous hashing: while a replica is away its sessions are spread over the others, and return with it."""
    return hashlib.blake2b(f"{number}:{session}".encode(), digest_size=8).digest()
