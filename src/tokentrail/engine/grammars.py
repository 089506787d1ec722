"""Grammars of running sequences: compiled beside the steps, and their masks computed beside the forward pass."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokentrail.engine.batch import Batch, Runner
from tokentrail.engine.scheduler import Schedule, Scheduler, grant
from tokentrail.protocol import InvalidRequest

if TYPE_CHECKING:
    from tokentrail.text.grammar import GrammarTokenizer, Matcher
    from tokentrail.text.grammar.matcher import MaskWriter

_KEPT = 64
"""Compiled grammars kept for further requests."""
_MOST_FORCED = 32
"""Forced tokens of a sequence in one step at most: a step of others is to wait for no long constant."""


class Grammars:
    """Compiles grammars in a thread of its own, one after the other; the engine goes on with its other sequences."""

    def __init__(self, runner: Runner, vocab_size: int) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._tokenizer: GrammarTokenizer | None = None
        self._compiler: ThreadPoolExecutor | None = None
        self._compiled: OrderedDict[str, Future[Matcher]] = OrderedDict()

    def compile(self, grammar: str) -> Future[Matcher]:
        """A matcher at the grammar's start, to be copied; its `InvalidRequest` says why there is none."""
        future = self._compiled.get(grammar)
        if future is None:
            if self._compiler is None:
                self._compiler = ThreadPoolExecutor(1, "grammar")
            future = self._compiled[grammar] = self._compiler.submit(self._compile, grammar)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return future

    def _compile(self, grammar: str) -> Matcher:
        from tokentrail.text.grammar import GrammarTokenizer

        if self._tokenizer is None:
            self._tokenizer = GrammarTokenizer(self._runner.tokenizer(), self._vocab_size)
        return self._tokenizer.compile(grammar)

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.shutdown(cancel_futures=True)


def outcome(future: Future[Matcher]) -> Matcher | str:
    """A finished compilation's matcher, or what is wrong with the grammar."""
    try:
        return future.result()
    except InvalidRequest as error:
        return error.message


def wait_for_one(futures: list[Future[Matcher]], seconds: float) -> None:
    wait(futures, seconds, return_when="FIRST_COMPLETED")


class StepMasks:
    """Masks of a step, written by a thread while the forward pass computes the logits that they are for."""

    def __init__(self, vocab_size: int) -> None:
        self._masks = np.zeros((0, -(-vocab_size // 32)), np.uint32)
        self._thread: ThreadPoolExecutor | None = None
        self._writer: MaskWriter | None = None

    def start(self, plan: Schedule, batch: Batch) -> None:
        """Begin to write the masks that the batch's rows ask for, and let the batch wait for them."""
        wanted: list[tuple[Matcher, int, list[int]]] = []
        fixed: list[tuple[int, int, npt.NDArray[np.uint32]]] = []
        row = 0
        for sequence, count in zip(plan.sequences, plan.counts, strict=True):
            matcher, end = sequence.matcher, sequence.num_tokens
            if not sequence.masked or sequence.num_computed + count < end:
                continue
            guessed = sequence.num_drafted
            if matcher is not None:
                wanted.append(
                    (matcher, row, sequence.tokens[end : end + guessed].tolist() if guessed else [])
                )
            elif sequence.allowed is not None:
                fixed.append((row, 1 + guessed, sequence.allowed))
            row += 1 + guessed
        if not row:
            return
        if row > len(self._masks):
            # What no guess reaches is read by nobody, but by sampling itself.
            self._masks = np.zeros((max(row, 2 * len(self._masks)), self._masks.shape[1]), np.uint32)
        batch.sampling.masks = masks = self._masks[:row]
        for first, rows, allowed in fixed:
            masks[first : first + rows] = 0
            masks[first : first + rows, : len(allowed)] = allowed
        if wanted:
            batch.masks_ready = self._submit(masks, wanted).result

    def _submit(
        self, masks: npt.NDArray[np.uint32], wanted: list[tuple[Matcher, int, list[int]]]
    ) -> Future[None]:
        if self._thread is None or self._writer is None:
            from tokentrail.text.grammar.matcher import MaskWriter

            self._thread, self._writer = ThreadPoolExecutor(1, "grammar-masks"), MaskWriter(threads=1)
        return self._thread.submit(self._writer.write, masks, wanted)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


class ForcedTokens:
    """Tokens that a grammar leaves no choice about, computed in one step instead of one after the other.

    They are drafted: the step verifies them like any guess, so each has its own row of logits, its draw and its
    log-probability, and a mistake here could cost time but change nothing. They never turn out wrong, and they would
    all have to be computed anyway, so unlike guesses they always pay.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def extend(self, plan: Schedule) -> None:
        """Add the forced tokens of decoding sequences to `plan`, within what the step and the pool have left."""
        forced: dict[int, list[int]] = {}
        for index in range(len(plan.sequences) - len(plan.started)):
            sequence = plan.sequences[index]
            if sequence.matcher is None or sequence.num_tokens - sequence.num_computed != 1:
                continue
            # The last token that the sequence may have is drawn, not verified.
            room = min(sequence.max_total - sequence.num_tokens - 1, _MOST_FORCED)
            if room > 0 and (tokens := sequence.matcher.forced()):
                forced[index] = tokens[:room]
        if not forced:
            return
        granted = grant(self._scheduler, plan, list(forced), [len(tokens) for tokens in forced.values()])
        for index, length in granted:
            sequence = plan.sequences[index]
            sequence.propose(forced[index][:length])
            sequence.forced = True
            plan.add_drafts(index)
