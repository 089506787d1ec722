"""What the engine tells about a step: the raw material of trails. Times are `time.time()` seconds (wall clock)."""

from __future__ import annotations

import msgspec


class ScheduledSequence(msgspec.Struct, array_like=True, gc=False):
    """One sequence's share of one step."""

    id: str
    tokens: int
    """Tokens computed in this step: a prompt chunk, or 1 for a decode and one for each drafted token."""
    position: int
    """First position computed."""
    cached: int
    """Prompt tokens taken from the prefix cache when the sequence was (re)admitted in this step; else 0."""
    blocks: int
    """KV blocks held after the step."""
    drafted: int = 0
    """Of `tokens`: those that had been drafted, and were verified in this step."""
    accepted: int = 0
    """Of the drafted ones: those that were right. The step brought one token more than these."""
    forced: int = 0
    """Of the drafted ones: those that a grammar left no choice about."""


class StepRecord(msgspec.Struct, array_like=True, gc=False):
    """One engine step and everyone in it."""

    step: int
    start: float
    scheduled: float
    """When scheduling ended and the forward pass began."""
    forwarded: float
    """When the forward pass ended and sampling began."""
    end: float
    num_sequences: int
    num_tokens: int
    blocks_used: int
    sequences: list[ScheduledSequence]
    preempted: list[str] = []
    """Ids of sequences that lost their blocks in this step and will be recomputed."""
    drafting: float = 0.0
    """Seconds between `start` and `scheduled` that went into drafting tokens."""
    replica: int = 0
    """Which of several engine processes of one model it was; written by who receives it."""
    life: int = 0
    """How many times that engine's process had been replaced before; written by who receives it."""
