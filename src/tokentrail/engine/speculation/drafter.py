"""What the speculator asks of those who guess tokens."""

from __future__ import annotations

from typing import Protocol

from tokentrail.engine.sequence import Sequence


class Drafter(Protocol):
    pass_seconds: float
    """What drafting one more token costs, for however many sequences at once; 0: nothing, or not known yet."""

    def started(self, sequence: Sequence) -> None:
        """The sequence was given a slot and blocks, of which the first `num_computed` positions are filled."""
        ...

    def draft(self, sequences: list[Sequence], lengths: list[int]) -> None:
        """Propose (`Sequence.propose`) up to `lengths[i]` tokens, at least 1, to follow sequence i. Fewer or none are
        fine. The sequences have blocks for them.
        """
        ...
