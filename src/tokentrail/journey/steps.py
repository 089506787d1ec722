"""The engine's steps, shared by every journey that had a part in them."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from tokentrail.protocol import StepRecord


class StepRow(NamedTuple):
    step: int
    engine: int
    replica: int
    start: float
    scheduled: float
    forwarded: float
    end: float
    num_sequences: int
    num_tokens: int
    blocks_used: int
    drafting: float


_WIDTH = len(StepRow._fields)


class StepLog:
    """Append-only rows of doubles (88 bytes a step), addressed by an ordinal that survives engine restarts.

    An engine numbers its steps from the start of its process, so its numbers repeat; ordinals do not.
    """

    def __init__(self) -> None:
        self._rows = array("d")
        self._first = 0

    @property
    def next(self) -> int:
        """The ordinal that the next step will get."""
        return self._first + len(self._rows) // _WIDTH

    def __len__(self) -> int:
        return len(self._rows) // _WIDTH

    def append(self, record: StepRecord) -> int:
        ordinal = self.next
        self._rows.extend(
            (
                record.step,
                record.life,
                record.replica,
                record.start,
                record.scheduled,
                record.forwarded,
                record.end,
                record.num_sequences,
                record.num_tokens,
                record.blocks_used,
                record.drafting,
            )
        )
        return ordinal

    def __getitem__(self, ordinal: int) -> StepRow:
        at = (ordinal - self._first) * _WIDTH
        if at < 0 or at >= len(self._rows):
            raise KeyError(ordinal)
        step, engine, replica, start, scheduled, forwarded, end, sequences, tokens, blocks, drafting = (
            self._rows[at : at + _WIDTH]
        )
        return StepRow(
            int(step),
            int(engine),
            int(replica),
            start,
            scheduled,
            forwarded,
            end,
            int(sequences),
            int(tokens),
            int(blocks),
            drafting,
        )

    def since(self, ordinal: int, most: int) -> list[tuple[int, StepRow]]:
        """(ordinal, row) of the steps from `ordinal` on that are still known, `most` of the newest at most."""
        first = max(ordinal, self._first, self.next - most)
        return [(at, self[at]) for at in range(first, self.next)]

    def forget_before(self, ordinal: int) -> None:
        """Free the rows below `ordinal`."""
        drop = min(ordinal, self.next) - self._first
        if drop > 0:
            del self._rows[: drop * _WIDTH]
            self._first += drop
