"""From a schedule to the flat arrays of a `Batch`, with as little Python per sequence as possible."""

from __future__ import annotations

from collections.abc import Sequence as _Seq
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tokentrail.engine.batch import Batch, SamplingRows
from tokentrail.engine.scheduler import Schedule
from tokentrail.engine.sequence import I32, Sequence

Scalar = TypeVar("Scalar", bound=np.generic)

Run = tuple[Sequence, int, int, int]
"""A sequence's part of a step: it computes its tokens `first` … `end` - 1, and draws the ones from number `drawn` (of
those after the computed ones: at most `end`) to `end`; none where `drawn` is above `end`. Tokens may be drafted ones.
"""


class BatchBuilder:
    """Keeps one row of parameters and one block table a running sequence, by slot, and gathers a step's from
    them.

    The arrays of a `Batch` are valid until the next one is built.
    """

    def __init__(self, *, max_running: int, max_tokens: int, max_blocks: int) -> None:
        """`max_blocks`: blocks that one sequence can hold."""
        self._tables = np.zeros((max_running, max_blocks), np.int32)
        self._table_lengths = [0] * max_running
        self._temperature = np.zeros(max_running, np.float32)
        self._top_p = np.ones(max_running, np.float32)
        self._min_p = np.zeros(max_running, np.float32)
        self._typical_p = np.ones(max_running, np.float32)
        self._top_k = np.zeros(max_running, np.int32)
        self._seed = np.zeros(max_running, np.uint64)
        self._choice = np.zeros(max_running, np.int32)
        self._num_top = np.zeros(max_running, np.int32)
        self._adapter = np.full(max_running, -1, np.int32)
        self._tokens = np.zeros(max_tokens, np.int32)
        self._positions = np.zeros(max_tokens, np.int32)
        self._decoding = np.zeros((3, max_running), np.int32)
        """Of a decode step: tokens, positions, positions of the tokens to be drawn. One array: one assignment."""
        self._counting = np.arange(max(max_tokens, max_running) + 1, dtype=np.int32)
        self._no_target = np.full(max_running, -1, np.int32)
        self._repeated: tuple[list[int], Batch] | None = None
        """The latest decode step, and the slots it was made from, where the next may differ from it in tokens,
        positions and blocks alone.
        """
        self._fresh_tables = False
        """No table has changed since that step's were gathered."""

    def _start(self, sequence: Sequence) -> None:
        """The sequence was given a slot, perhaps another's before."""
        self._repeated = None
        slot, sampling = sequence.slot, sequence.request.sampling
        self._temperature[slot] = sampling.temperature
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._typical_p[slot] = sampling.typical_p
        self._top_k[slot] = max(sampling.top_k, 0)
        self._seed[slot] = (sampling.seed or 0) & 0xFFFF_FFFF_FFFF_FFFF
        self._choice[slot] = sequence.request.choice
        self._num_top[slot] = sequence.num_top
        self._adapter[slot] = sequence.adapter
        self._tables[slot, : self._table_lengths[slot]] = 0
        self._tables[slot, : len(sequence.blocks)] = sequence.blocks
        self._table_lengths[slot] = len(sequence.blocks)

    def build(self, plan: Schedule) -> Batch:
        """The arrays for one step: shapes and dtypes as `Batch` documents them."""
        for sequence in plan.started:
            self._start(sequence)
        sequences = plan.sequences
        count = len(sequences)
        decoding = plan.num_tokens == count and plan.decodes == count
        slot_list = [sequence.slot for sequence in sequences]
        repeated = self._repeated
        if decoding and repeated is not None and repeated[0] == slot_list:
            return self._repeat(repeated[1], sequences, slot_list)
        if decoding and not any(sequence.pool or sequence.reveals for sequence in sequences):
            return self._build_decode(sequences, slot_list)
        runs: list[Run] = []
        for sequence, count in zip(sequences, plan.counts, strict=True):
            end = sequence.num_computed + count
            # An embedding's prompt draws nothing.
            drawn = sequence.num_tokens if sequence.pool is None else end + 1
            runs.append((sequence, sequence.num_computed, end, drawn))
        return self.build_runs(runs)

    def _grow(self, sequences: list[Sequence], slots: list[int]) -> None:
        """Take new blocks into the tables."""
        lengths = self._table_lengths
        for slot, sequence in zip(slots, sequences, strict=True):
            held = len(sequence.blocks)
            if held != lengths[slot]:
                self._tables[slot, lengths[slot] : held] = sequence.blocks[lengths[slot] :]
                lengths[slot] = held
                self._fresh_tables = False

    def _gather_tables(self, slots: list[int]) -> I32:
        """Block tables [S, W]."""
        width = max(self._table_lengths[slot] for slot in slots)
        return self._tables[slots, :width]

    def _build_decode(self, sequences: list[Sequence], slot_list: list[int]) -> Batch:
        """A step in which each sequence computes its one last token."""
        count = len(sequences)
        slots = np.array(slot_list, np.intp)
        self._fill(sequences)
        self._grow(sequences, slot_list)
        tokens, positions, following = self._decoding[:, :count]
        num_top = self._num_top[slots]
        batch = Batch(
            tokens=tokens,
            positions=positions,
            row_starts=self._counting[: count + 1],
            block_tables=self._gather_tables(slot_list),
            logit_rows=self._counting[:count],
            sampling=self._rows(sequences, slots, following, num_top, self._no_target[:count], masked=True),
            adapters=self._adapters(sequences, slots),
        )
        alike = all(sequence.draws_alike for sequence in sequences)
        self._repeated = (slot_list, batch) if alike else None
        self._fresh_tables = True
        return batch

    def _fill(self, sequences: list[Sequence]) -> None:
        self._decoding[:, : len(sequences)] = [
            [sequence.last_token for sequence in sequences],
            [sequence.num_computed for sequence in sequences],
            [sequence.num_tokens for sequence in sequences],
        ]

    def _repeat(self, batch: Batch, sequences: list[Sequence], slot_list: list[int]) -> Batch:
        """The next step of the same sequences. Most steps are such ones, and after a step that has streamed all
        weights through the caches, whatever is touched beside is slow.
        """
        self._fill(sequences)
        self._grow(sequences, slot_list)
        if not self._fresh_tables:
            batch.block_tables = self._gather_tables(slot_list)
            self._fresh_tables = True
        return batch

    def build_runs(self, runs: list[Run], *, report: bool = True) -> Batch:
        """The arrays for runs of tokens of sequences that have been started. `report` False: only draws, neither
        alternatives nor log-probabilities of the prompt.
        """
        sequences = [run[0] for run in runs]
        slot_list = [sequence.slot for sequence in sequences]
        slots = np.array(slot_list, np.intp)
        self._grow(sequences, slot_list)
        total = sum(end - first for _, first, end, _ in runs)
        tokens, positions = self._tokens[:total], self._positions[:total]
        row_starts = np.zeros(len(runs) + 1, np.int32)
        logit_rows: list[int] = []
        row_index: list[int] = []
        num_top: list[int] = []
        targets: list[int] = []
        drawing: list[Sequence | None] = []
        state_rows: list[int] = []
        revealed: list[int] = []
        start = 0
        for index, (sequence, first, end, drawn) in enumerate(runs):
            count = end - first
            tokens[start : start + count] = sequence.tokens[first:end]
            positions[start : start + count] = np.arange(first, end)
            reported = sequence.target_rows(first, end) if report else range(0)
            if reported:
                rows = len(reported)
                logit_rows += range(reported.start - first + start, reported.stop - first + start)
                row_index += [index] * rows
                num_top += [sequence.request.sampling.prompt_logprobs or 0] * rows
                targets += sequence.tokens[reported.start + 1 : reported.stop + 1].tolist()
                drawing += [None] * rows
            rows = end + 1 - drawn
            if rows > 0:  # the row at position p draws token p + 1
                if report and sequence.reveals:
                    revealed.append(len(logit_rows))
                logit_rows += range(start + count - rows, start + count)
                row_index += [index] * rows
                num_top += [sequence.num_top if report else 0] * rows
                targets += [-1] * rows
                drawing += [sequence] * rows
            if report and sequence.pool is not None:
                pooled = sequence.pool.wanted(first, end)
                state_rows += range(pooled.start - first + start, pooled.stop - first + start)
            start += count
            row_starts[index + 1] = start
        rows_of_tokens = np.array(logit_rows, np.int32)
        return Batch(
            tokens=tokens,
            positions=positions,
            row_starts=row_starts,
            block_tables=self._gather_tables(slot_list),
            logit_rows=rows_of_tokens,
            sampling=self._rows(
                drawing,
                slots[np.array(row_index, np.intp)],
                positions[rows_of_tokens] + 1,
                np.array(num_top, np.int32),
                np.array(targets, np.int32),
                masked=report,
            ),
            adapters=self._adapters(sequences, slots),
            state_rows=np.array(state_rows, np.int32) if state_rows else None,
            revealed=revealed or None,
        )

    def _adapters(self, sequences: list[Sequence], slots: npt.NDArray[np.intp]) -> I32 | None:
        if all(sequence.adapter < 0 for sequence in sequences):
            return None
        return self._adapter[slots]

    def _rows(
        self,
        drawing: _Seq[Sequence | None],
        slots: npt.NDArray[np.intp],
        position: I32,
        num_top: I32,
        target: I32,
        *,
        masked: bool,
    ) -> SamplingRows:
        """`drawing` has None for rows that report a prompt token: neither penalties nor biases concern
        those. What a draw depends on are the tokens before `position`, drafted ones included. `masked`: number the
        rows that need a mask (`StepMasks` writes them in this order).
        """
        rows = SamplingRows(
            temperature=self._temperature[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            top_k=self._top_k[slots],
            seed=self._seed[slots],
            choice=self._choice[slots],
            position=position,
            num_top=num_top,
            target=target,
        )
        typical_p = self._typical_p[slots]
        if (typical_p < 1).any():
            rows.typical_p = typical_p
        if any(sequence is not None and sequence.penalties for sequence in drawing):
            _add_penalties(rows, drawing)
        if masked:
            has_mask = [sequence is not None and sequence.masked for sequence in drawing]
            if any(has_mask):
                rows.mask_rows = np.where(has_mask, np.cumsum(has_mask) - 1, -1).astype(np.int32)
        biases = [
            None if sequence is None else sequence.bias(at)
            for sequence, at in zip(drawing, position.tolist(), strict=True)
        ]
        if any(biases):
            tokens = [None if bias is None else bias[0] for bias in biases]
            values = [None if bias is None else bias[1] for bias in biases]
            rows.bias_tokens, rows.bias_offsets = _ragged(tokens, np.int32)
            rows.bias_values, _ = _ragged(values, np.float32)
        return rows


def _add_penalties(rows: SamplingRows, drawing: _Seq[Sequence | None]) -> None:
    count = len(drawing)
    rows.frequency_penalty = np.zeros(count, np.float32)
    rows.presence_penalty = np.zeros(count, np.float32)
    rows.repetition_penalty = np.ones(count, np.float32)
    prompts: list[I32 | None] = [None] * count
    outputs: list[I32 | None] = [None] * count
    for row, sequence in enumerate(drawing):
        if sequence is None or not sequence.penalties:
            continue
        sampling = sequence.request.sampling
        rows.frequency_penalty[row] = sampling.frequency_penalty
        rows.presence_penalty[row] = sampling.presence_penalty
        rows.repetition_penalty[row] = sampling.repetition_penalty
        outputs[row] = sequence.tokens[sequence.prompt_len : rows.position[row]]
        if sampling.repetition_penalty != 1.0:  # the only one that looks at the prompt
            prompts[row] = sequence.tokens[: sequence.prompt_len]
    rows.prompt_tokens, rows.prompt_offsets = _ragged(prompts, np.int32)
    rows.output_tokens, rows.output_offsets = _ragged(outputs, np.int32)


def _ragged(parts: list[npt.NDArray[Scalar] | None], dtype: type[Scalar]) -> tuple[npt.NDArray[Scalar], I32]:
    """Concatenated parts, and offsets [len(parts) + 1]; None is an empty part."""
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([0 if part is None else len(part) for part in parts], out=offsets[1:])
    filled = [part for part in parts if part is not None and len(part)]
    return (np.concatenate(filled) if filled else np.empty(0, dtype)), offsets
