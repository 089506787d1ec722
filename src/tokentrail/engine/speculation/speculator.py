"""Joins drafts to the schedule of a step."""

from __future__ import annotations

import time

from tokentrail.engine.batch import Runner
from tokentrail.engine.batching import BatchBuilder
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.scheduler import Schedule, Scheduler, grant
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
            # Where a grammar leaves no choice, there is nothing to guess.
            if room > 0 and sequence.num_tokens - sequence.num_computed == 1 and not sequence.num_drafted:
                at.append(index)
                most.append(room)
        slots = [plan.sequences[index].slot for index in at]
        chosen = lengths.choose(slots, most, plan.decodes, drafter.pass_seconds)
        granted = grant(self._scheduler, plan, at, chosen)
        if granted:
            sequences = [plan.sequences[index] for index, _ in granted]
            drafter.draft(sequences, [length for _, length in granted])
            for index, _ in granted:
                _trim(plan.sequences[index])
                plan.add_drafts(index)
        else:
            drafter.pass_seconds *= _FADE
        return time.perf_counter() - start

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Of the tokens drafted for the sequence, the first `accepted` were right."""
        self.lengths.verified(sequence.slot, drafted, accepted)

    def observe(self, rows: int, seconds: float) -> None:
        """A step that only decoded, with so many rows, took so many seconds to compute."""
        self.lengths.cost.observe(rows, seconds)


def _trim(sequence: Sequence) -> None:
    """Drop guesses that the sequence's grammar does not allow: they cannot be right."""
    if sequence.matcher is not None and sequence.num_drafted:
        end = sequence.num_tokens
        guesses = sequence.tokens[end : end + sequence.num_drafted].tolist()
        sequence.num_drafted = sequence.matcher.count_allowed(guesses)


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
