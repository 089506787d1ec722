"""The order in which waiting sequences are admitted."""

from __future__ import annotations

import heapq

from tokentrail.engine.sequence import Rank, Sequence, Status
from tokentrail.engine.shares import Share, Shares


class _Lane:
    """What waits of one tenant at one priority."""

    __slots__ = ("entry", "heap", "priority", "share")

    def __init__(self, priority: int, share: Share) -> None:
        self.priority = priority
        self.share = share
        self.heap: list[tuple[Rank, Sequence]] = []
        self.entry: _Entry | None = None
        """Its place among lanes. Others of it, which are not true any more, are dropped when they come to the front."""

    def __lt__(self, other: _Lane) -> bool:
        """Of entries that are alike in all else, one of which is not true any more, either may come first."""
        return False

    def head(self) -> Sequence | None:
        heap = self.heap
        while heap and heap[0][1].status is not Status.WAITING:
            heapq.heappop(heap)
        return heap[0][1] if heap else None


_Entry = tuple[int, float, Rank, _Lane]
"""Priority, the tenant's counter, its first sequence's rank (which no other one has), the lane."""


class WaitingQueue:
    """Waiting sequences: lower priority numbers first; at one priority the tenant that has had least of the engine for
    its weight (`shares`); of one tenant, whoever came first.

    A preempted sequence keeps its rank, so it stands in front of all that came after it. This class alone decides who
    is next. Each step costs O(log tenants), as counters that grew meanwhile are looked at only at the front.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._lanes: dict[tuple[int, str], _Lane] = {}
        self._front: list[_Entry] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        share = sequence.share
        self._shares.waits(share)
        key = sequence.rank[0], share.tenant
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key[0], share)
        heapq.heappush(lane.heap, (sequence.rank, sequence))
        if lane.heap[0][1] is sequence:
            self._place(lane, sequence)
        self._size += 1

    def peek(self) -> Sequence | None:
        front = self._front
        while front:
            entry = front[0]
            lane = entry[3]
            if lane.entry is not entry:
                heapq.heappop(front)
                continue
            head = lane.head()
            if head is None:
                heapq.heappop(front)
                del self._lanes[lane.priority, lane.share.tenant]
                continue
            if entry[1] == lane.share.served and entry[2] == head.rank:
                return head
            lane.entry = lane.priority, lane.share.served, head.rank, lane
            heapq.heapreplace(front, lane.entry)
        return None

    def pop(self) -> Sequence:
        """Take the sequence that `peek` showed."""
        lane = self._front[0][3]
        sequence = heapq.heappop(lane.heap)[1]
        self._shares.chosen(sequence.share)
        self._size -= 1
        return sequence

    def discard(self, sequence: Sequence) -> None:
        """A waiting sequence ended. Its entry is dropped when it comes to the front."""
        sequence.status = Status.FINISHED
        sequence.share.waiting -= 1
        self._size -= 1

    def newest_of(self, share: Share, priority: int) -> Sequence | None:
        """Of a tenant's sequences that wait, are of no better priority and have never run: the one to give up first."""
        fresh = [
            sequence
            for (at, tenant), lane in self._lanes.items()
            if tenant == share.tenant and at >= priority
            for _, sequence in lane.heap
            if sequence.status is Status.WAITING
            and sequence.cached_tokens is None
            and not sequence.request.resumed
        ]
        return max(fresh, key=lambda sequence: sequence.rank, default=None)

    def _place(self, lane: _Lane, head: Sequence) -> None:
        lane.entry = lane.priority, lane.share.served, head.rank, lane
        heapq.heappush(self._front, lane.entry)
