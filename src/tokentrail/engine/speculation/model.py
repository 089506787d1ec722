"""Drafts by a smaller model, which runs a few tokens ahead of the one that answers."""

from __future__ import annotations

import time

from tokentrail.engine.batch import DraftRunner, SampledRows
from tokentrail.engine.batching import BatchBuilder, Run
from tokentrail.engine.sequence import Sequence

_CATCH_UP = 128
"""Tokens of prompts that the draft model computes in one step at most, so that streams wait little for it."""
_NEWEST = 0.1
"""Of the newest measurement in the running mean of a pass's seconds."""


class ModelDrafter:
    """Keeps a draft model's KV cache in step with the sequences, and lets it draw the next tokens.

    The draft model draws with the sequence's own parameters, seed and position. As a draw walks the vocabulary with
    the same random number in both models, they often draw the same token even where several are likely.

    Its cache has a block for each of the target's, under the same number. What it holds is known by content: the
    hash of the prefix that the target's block is found by. So a prefix hit brings the draft model's part along if
    it was ever computed, and preemption, eviction and sharing need no second set of books. What is missing (a
    prompt, or what was decoded without drafts) is computed when drafts are wanted, in chunks; until then the
    sequence has none. A mistake here would make bad guesses, never wrong answers.
    """

    def __init__(
        self, runner: DraftRunner, builder: BatchBuilder, *, block_size: int, num_blocks: int, slots: int
    ) -> None:
        self.pass_seconds = 0.0
        self._runner = runner
        self._builder = builder
        self._block_size = block_size
        self._content: list[bytes | None] = [None] * num_blocks
        """By block: the hash of the prefix that it is the end of, if all its positions are computed."""
        self._cached = [0] * slots
        """By slot: positions computed, drafted ones included."""
        self._named = [0] * slots
        """By slot: leading blocks that `_content` tells of."""

    def started(self, sequence: Sequence) -> None:
        self._cached[sequence.slot] = self._named[sequence.slot] = 0

    def draft(self, sequences: list[Sequence], lengths: list[int]) -> None:
        ready = self._catch_up(sequences, lengths)
        while ready:
            runs: list[Run] = []
            for sequence, _ in ready:
                end = sequence.num_tokens + sequence.num_drafted
                runs.append(self._run(sequence, end - 1, end, end))
            drawn = self._execute(runs).tokens.tolist()
            ready = _propose(ready, drawn)

    def _catch_up(self, sequences: list[Sequence], lengths: list[int]) -> list[tuple[Sequence, int]]:
        """Compute what is missing, and draw the first token for those that miss nothing more. Returns those that want
        more tokens.
        """
        runner = self._runner
        # At least two a sequence: after a step that accepted everything, two are missing.
        left = min(max(_CATCH_UP, 2 * len(sequences)), runner.max_num_batched_tokens)
        runs: list[Run] = []
        ready: list[tuple[Sequence, int]] = []
        filling: set[int] = set()
        for sequence, length in zip(sequences, lengths, strict=True):
            first, end = self._missing(sequence), sequence.num_tokens
            most = min(length, runner.max_model_len - end + 1)
            count = min(end - first, left)
            if most <= 0 or not count:
                continue
            blocks = self._blocks(sequence, first, first + count)
            if not filling.isdisjoint(blocks):
                continue  # another computes what both begin with: next time it is there
            filling.update(blocks)
            left -= count
            runs.append(self._run(sequence, first, first + count, end))
            if first + count == end:
                ready.append((sequence, most))
        if not runs:
            return []
        return _propose(ready, self._execute(runs).tokens.tolist())

    def _missing(self, sequence: Sequence) -> int:
        """The first position that is not computed with the sequence's own tokens."""
        slot, size = sequence.slot, self._block_size
        # What was drafted and turned out wrong is not the sequence's.
        at = min(self._cached[slot], sequence.num_computed)
        hashes, blocks, content = sequence.hashes, sequence.blocks, self._content
        named = self._named[slot]
        while named < min(at // size, len(hashes)):
            content[blocks[named]] = hashes[named]
            named += 1
        if named * size == at:
            full = min(sequence.num_computed // size, len(hashes))
            while named < full and content[blocks[named]] == hashes[named]:
                named += 1
            at = named * size
        self._named[slot] = named
        return at

    def _run(self, sequence: Sequence, first: int, end: int, drawn: int) -> Run:
        """The sequence computes these positions now."""
        for block in self._blocks(sequence, first, end):
            self._content[block] = None
        self._cached[sequence.slot] = end
        return sequence, first, end, drawn

    def _blocks(self, sequence: Sequence, first: int, end: int) -> list[int]:
        size = self._block_size
        return sequence.blocks[first // size : (end - 1) // size + 1]

    def _execute(self, runs: list[Run]) -> SampledRows:
        start = time.perf_counter()
        batch = self._builder.build_runs(runs, report=False)
        result = self._runner.execute(batch)
        if len(batch.tokens) <= 2 * len(runs):  # catching up is not what a drafted token costs
            seconds = time.perf_counter() - start
            mean = self.pass_seconds
            self.pass_seconds = mean + _NEWEST * (seconds - mean) if mean else seconds
        return result


def _propose(ready: list[tuple[Sequence, int]], drawn: list[int]) -> list[tuple[Sequence, int]]:
    """Each sequence gets its token; returns those that want more."""
    for (sequence, _), token in zip(ready, drawn, strict=True):
        sequence.propose((token,))
    return [item for item in ready if item[0].num_drafted < item[1]]
