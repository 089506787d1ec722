"""The order in which waiting sequences are admitted."""

from __future__ import annotations

import heapq

from tokentrail.engine.sequence import Rank, Sequence, Status


class WaitingQueue:
    """Waiting sequences, best rank first: lower priority number, then earlier arrival.

    A preempted sequence keeps its rank, so it stands in front of all that came after it. This class alone
    decides who is next: fair shares between tenants by weight would order by virtual time here, and nowhere
    else.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, Sequence]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        heapq.heappush(self._heap, (sequence.rank, sequence))
        self._size += 1

    def peek(self) -> Sequence | None:
        heap = self._heap
        while heap and heap[0][1].status is not Status.WAITING:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def pop(self) -> Sequence:
        """Take the sequence that `peek` showed."""
        self._size -= 1
        return heapq.heappop(self._heap)[1]

    def discard(self, sequence: Sequence) -> None:
        """A waiting sequence ended. Its entry is dropped when it comes to the front."""
        sequence.status = Status.FINISHED
        self._size -= 1
