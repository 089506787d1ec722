"""Joins drafts to the schedule of a step."""

from __future__ import annotations

import time

from tokentrail.engine.batch import Runner
from tokentrail.engine.batching import BatchBuilder
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.scheduler import Schedule, Scheduler
from tokentrail.engine.sequence import Sequence
from tokentrail.engine.speculation.drafter import Drafter
from tokentrail.engine.speculation.lengths import Lengths
from tokentrail.engine.speculation.model import ModelDrafter
from tokentrail.engine.speculation.ngram import NgramDrafter

_FADE = 0.99
"""Of a drafter's cost, in each step that does not use it: one bad measurement must not keep it out for good."""


class Speculator:
    """Adds drafted tokens to decoding sequences of a step that has been scheduled, within what the step and the pool
    have left. Nothing else in the engine knows who drafts, or how many.
    """

    def __init__(self, drafter: Drafter, lengths: Lengths, scheduler: Scheduler) -> None:
        self.drafter = drafter
        self.lengths = lengths
        self._scheduler = scheduler

    def extend(self, plan: Schedule) -> float:
        """Draft for the sequences of `plan`. Returns the seconds that it took."""
        start = time.perf_counter()
        drafter, lengths = self.drafter, self.lengths
        for sequence in plan.started:
            lengths.started(sequence.slot)
            drafter.started(sequence)
        if not plan.decodes:
            return time.perf_counter() - start
        at: list[int] = []
        most: list[int] = []
        # Those that start stand last. One that starts with a single token is drafted for from the next step on.
        for index in range(len(plan.sequences) - len(plan.started)):
            sequence = plan.sequences[index]
            # The last token that the sequence may have is drawn, not verified.
            room = min(lengths.longest, sequence.max_total - sequence.num_tokens - 1)
            if room > 0 and sequence.num_tokens - sequence.num_computed == 1:
                at.append(index)
                most.append(room)
        slots = [plan.sequences[index].slot for index in at]
        chosen = lengths.choose(slots, most, plan.decodes, drafter.pass_seconds)
        at, sequences, granted = self._grant(plan, at, chosen)
        if sequences:
            drafter.draft(sequences, granted)
            for index in at:
                plan.add_drafts(index)
        else:
            drafter.pass_seconds *= _FADE
        return time.perf_counter() - start

    def _grant(
        self, plan: Schedule, at: list[int], wanted: list[int]
    ) -> tuple[list[int], list[Sequence], list[int]]:
        """What the step's budget of tokens and rows, and the free blocks, have left of what is wanted.

        The best-ranked go first. Returns indices in the plan, sequences and lengths of those that get any.
        """
        scheduler = self._scheduler
        left = min(scheduler.max_tokens - plan.num_tokens, scheduler.max_rows - plan.num_rows)
        indices: list[int] = []
        sequences: list[Sequence] = []
        lengths: list[int] = []
        for index, want in zip(at, wanted, strict=True):
            length = min(want, left)
            if length <= 0:
                continue
            sequence = plan.sequences[index]
            length = scheduler.room_for_drafts(sequence, length)
            if length > 0:
                left -= length
                indices.append(index)
                sequences.append(sequence)
                lengths.append(length)
        return indices, sequences, lengths

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Of the tokens drafted for the sequence, the first `accepted` were right."""
        self.lengths.verified(sequence.slot, drafted, accepted)

    def observe(self, rows: int, seconds: float) -> None:
        """A step that only decoded, with so many rows, took so many seconds to compute."""
        self.lengths.cost.observe(rows, seconds)


def is_ngram(model: str | None) -> bool:
    """Whether the setting `speculative_model` names prompt lookup; `[ngram]` is vLLM's older spelling."""
    return model in ("ngram", "[ngram]")


def create_speculator(
    config: EngineConfig, runner: Runner, scheduler: Scheduler, builder: BatchBuilder
) -> Speculator | None:
    """As the configuration says; None: it names no drafter."""
    if config.speculative_model is None:
        return None
    drafter: Drafter
    if is_ngram(config.speculative_model):
        drafter = NgramDrafter()
    elif runner.draft is not None:
        info = runner.info
        drafter = ModelDrafter(
            runner.draft,
            builder,
            block_size=info.block_size,
            num_blocks=info.num_blocks,
            slots=scheduler.max_running,
        )
    else:
        raise RuntimeError("the runner has no draft model although the configuration names one")
    return Speculator(drafter, Lengths(scheduler.max_running, config.num_speculative_tokens), scheduler)
