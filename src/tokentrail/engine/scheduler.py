"""What is computed in the next step: one token budget, running sequences first, then chunks of waiting
prompts.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from tokentrail.engine.block_pool import BlockPool
from tokentrail.engine.pacing import Pacing
from tokentrail.engine.prefix_cache import PrefixCache
from tokentrail.engine.sequence import Rank, Sequence, Status
from tokentrail.engine.shares import Shares
from tokentrail.engine.waiting import WaitingQueue

_MOST_PASSED_OVER = 128
"""Waiting sequences passed over in one step at most, so that a long queue costs no more than a short one."""


@dataclass
class Schedule:
    """One step: sequence i computes `counts[i]` tokens from its `num_computed` on."""

    sequences: list[Sequence] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    """Those admitted in this step."""
    cached: dict[str, int] = field(default_factory=dict)
    """By id: prompt tokens that those took from the prefix cache, where there were any."""
    preempted: list[str] = field(default_factory=list)
    decodes: int = 0
    """How many of the sequences compute their one last token."""
    num_tokens: int = 0
    num_rows: int = 0
    """Logit rows of the step."""
    drafted: int = 0
    """How many of the tokens are drafted ones, to be verified."""

    def add(self, sequence: Sequence, count: int, rows: int) -> None:
        self.sequences.append(sequence)
        self.counts.append(count)
        self.num_tokens += count
        self.num_rows += rows

    def add_drafts(self, index: int) -> None:
        """Sequence `index`, which decodes, also computes the tokens drafted for it."""
        drafted = self.sequences[index].num_drafted
        self.counts[index] += drafted
        self.num_tokens += drafted
        self.num_rows += drafted
        self.drafted += drafted


class Scheduler:
    """Shares steps, blocks and slots between sequences.

    Of one tenant all order is by rank (priority, then arrival). Of several, at one priority, those that have had
    less of the engine for their weight go first (`shares`). Why nothing starves or livelocks: in each step all but
    one of the running sequences can take that one's blocks, and whoever takes them computes a token in that step;
    every request fits into the pool alone (`fits`). So each step that preempts brings an answer on, and answers end.
    A tenant that waits falls behind those that are served until it is next.

    - A sequence is admitted when the pool has blocks for all its tokens (and one spare block for each running
      sequence to grow into), and takes them at once: a prompt in progress never waits for blocks.
    - A decoding sequence that needs a block when none is free preempts the worst-ranked running one. If that
      is itself, it pauses with its blocks in place: recomputing would cost more, and those before it may
      still take them.
    - A waiting sequence of strictly better priority preempts running ones of worse priority for a slot or for
      blocks.
    - A waiting sequence whose tenant has fewer slots than its share, for its weight, takes one from the tenant that
      has the most, the one that came last there.
    - The prompt of a tenant that has had less is begun before that of another one goes on.
    - While others decode, the prompt tokens of a step are capped (`Pacing`).
    """

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache,
        pacing: Pacing,
        *,
        block_size: int,
        max_running: int,
        max_tokens: int,
        max_rows: int,
    ) -> None:
        self.pool = pool
        self.cache = cache
        self.pacing = pacing
        self.block_size = block_size
        # So that every running sequence can decode in every step.
        self.max_running = min(max_running, max_tokens, max_rows)
        self.max_tokens = max_tokens
        self.max_rows = max_rows
        self.shares = Shares()
        self.waiting = WaitingQueue(self.shares)
        self.running: list[Sequence] = []
        """Best rank first."""
        self._free_slots = list(range(self.max_running - 1, -1, -1))
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def blocks_needed(self, sequence: Sequence) -> int:
        """Blocks that the sequence holds at its end, if it generates all it may. Its last token is never
        computed.
        """
        return self._blocks_for(sequence.max_total - 1)

    def fits(self, sequence: Sequence) -> bool:
        return self.blocks_needed(sequence) <= self.pool.num_blocks

    # --- sequences come and go ---------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        self.waiting.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence ended, for whatever reason; its blocks are free from now on."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
            self._stop(sequence)
            sequence.status = Status.FINISHED
        elif sequence.status is Status.WAITING:
            self.waiting.discard(sequence)

    def computed(self, sequence: Sequence, count: int) -> None:
        """A step has computed `count` more tokens of the sequence."""
        sequence.num_computed += count
        paid = sequence.num_computed - sequence.paid
        if paid > 0:
            sequence.paid += paid
            share = sequence.share
            share.served += paid / share.weight
        if sequence.num_computed - sequence.num_registered * self.block_size >= self.block_size:
            self.cache.register(sequence)

    # --- a step ------------------------------------------------------------------------------------

    def schedule(self) -> Schedule:
        """Choose the next step's work and give it its blocks. Empty only when there is none."""
        plan = Schedule()
        self._make_room(plan)
        decodes = 0
        for sequence in self.running:
            if sequence.num_tokens - sequence.num_computed == 1:
                decodes += 1
        budget = self.max_tokens - decodes
        rows = self.max_rows - decodes
        if decodes and (self.waiting or decodes < len(self.running)):
            wanting = min(len(self.running) + self.num_waiting, self.max_running)
            budget = min(budget, self.pacing.cap(decodes, wanting - decodes))

        order = self._order()
        short = False
        at = 0
        partial: list[Sequence] = []
        while at < len(order):  # which may lose its tail on the way
            sequence = order[at]
            at += 1
            count = sequence.num_tokens - sequence.num_computed
            if count == 1:
                if sequence.num_tokens > len(sequence.blocks) * self.block_size:
                    short |= self.pool.num_free == 0
                    if not self._grow(sequence, plan, order):
                        continue
                plan.decodes += 1
                plan.add(sequence, 1, 1)
                continue
            if self._lighter_waits(sequence):
                partial.append(sequence)
                continue
            budget, rows = self._go_on(sequence, plan, budget, rows)
        if not short:
            budget, rows = self._admit(plan, budget, rows)
        for sequence in partial:
            if sequence.status is Status.RUNNING:
                budget, rows = self._go_on(sequence, plan, budget, rows)
        return plan

    def _order(self) -> list[Sequence]:
        """Running sequences, the one first that is the last to be preempted."""
        if self.shares.active <= 1 or self.pool.num_free >= len(self.running):
            return self.running
        return sorted(self.running, key=lambda one: (one.rank[0], one.share.served, one.rank))

    def _lighter_waits(self, sequence: Sequence) -> bool:
        """Somebody waits whose tenant has had less, so the rest of this prompt can wait."""
        head = self.waiting.peek()
        if head is None or head.share is sequence.share or len(self.running) >= self.max_running:
            return False
        return (head.rank[0], head.share.served) < (sequence.rank[0], sequence.share.served)

    def _go_on(self, sequence: Sequence, plan: Schedule, budget: int, rows: int) -> tuple[int, int]:
        """Compute more of a prompt. Returns what is left of the step."""
        count = self._chunk(sequence, budget, rows)
        if not count:
            return budget, rows
        needed = sequence.num_rows(count)
        plan.add(sequence, count, needed)
        return budget - count, rows - needed

    def _admit(self, plan: Schedule, budget: int, rows: int) -> tuple[int, int]:
        """Start waiting sequences while slots, blocks and the step have room. Returns what is left of the step.

        One that needs a block which this very step computes for another is passed over: in the next step it
        finds the block in the cache. So the choices of one request (n > 1) share its prompt, and a burst of
        requests shares its system prompt.
        """
        if not self.waiting or budget <= 0 or rows <= 0:
            return budget, rows
        computing: set[bytes] = set()
        for sequence, count in zip(plan.sequences, plan.counts, strict=True):
            if count > 1:
                computing.update(self.cache.upcoming(sequence, count))
        passed_over: list[Sequence] = []
        while budget > 0 and rows > 0 and len(self.running) < self.max_running:
            candidate = self.waiting.peek()
            # At least one block is never shared, so a full pool needs no look at the cache.
            if candidate is None or self.pool.num_free <= len(self.running):
                break
            matched, next_key = self.cache.match(candidate)
            if next_key in computing and len(passed_over) < _MOST_PASSED_OVER:
                passed_over.append(self.waiting.pop())
                continue
            if not self._has_blocks(candidate, matched):
                break
            self._start(self.waiting.pop(), matched, plan)
            count = self._chunk(candidate, budget, rows)
            needed = candidate.num_rows(count)
            budget -= count
            rows -= needed
            plan.add(candidate, count, needed)
            computing.update(self.cache.upcoming(candidate, count))
        for sequence in passed_over:
            self.waiting.push(sequence)
        return budget, rows

    def _chunk(self, sequence: Sequence, budget: int, rows: int) -> int:
        """Tokens of a prompt to compute now, within what is left of the step's token budget and logit
        rows.
        """
        count = min(sequence.num_tokens - sequence.num_computed, budget)
        # Each token less is a row less: rows belong to the last token, or to a run of prompt tokens before
        # it.
        excess = sequence.num_rows(count) - rows
        return max(count - excess, 0) if excess > 0 else count

    # --- blocks ------------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _has_blocks(self, sequence: Sequence, matched: list[int]) -> bool:
        wanted = self._blocks_for(sequence.num_tokens) - len(matched) + len(self.running)
        revived = sum(self.pool.refs(block) == 0 for block in matched)
        return wanted + revived <= self.pool.num_free

    def _start(self, sequence: Sequence, matched: list[int], plan: Schedule) -> None:
        self.pool.acquire(matched)
        fresh = self.pool.allocate(self._blocks_for(sequence.num_tokens) - len(matched))
        sequence.blocks = matched + fresh
        sequence.num_computed = found = len(matched) * self.block_size
        sequence.num_registered = len(matched)
        sequence.slot = self._free_slots.pop()
        plan.started.append(sequence)
        sequence.status = Status.RUNNING
        share = sequence.share
        self.shares.started(share)
        # Its prompt is charged at once, so that others have their turn before the next one of this tenant.
        due = sequence.num_tokens - max(found, sequence.paid)
        if due > 0:
            share.served += due / share.weight
        sequence.paid = max(sequence.paid, sequence.num_tokens)
        bisect.insort(self.running, sequence, key=_rank)
        found_in_prompt = min(found, sequence.prompt_len)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = found_in_prompt
            if self.cache.enabled and not sequence.needs_all_positions:
                self.prefix_queries += sequence.prompt_len
                self.prefix_hits += found_in_prompt
        if found_in_prompt:
            plan.cached[sequence.id] = found_in_prompt

    def _stop(self, sequence: Sequence) -> None:
        self.shares.stopped(sequence.share)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed = 0
        self._free_slots.append(sequence.slot)
        sequence.slot = -1

    def _grow(self, sequence: Sequence, plan: Schedule, order: list[Sequence]) -> bool:
        """Give a decoding sequence one more block, at the cost of the last ones in `order` if need be."""
        while not self.pool.num_free:
            if order[-1] is sequence:
                return False
            self._preempt(order[-1], plan, order)
        sequence.blocks += self.pool.allocate(1)
        return True

    def room_for_drafts(self, sequence: Sequence, count: int) -> int:
        """Give a decoding sequence blocks for `count` drafted tokens, and return for how many there is room.

        Only of blocks that are free beyond the one that each running sequence may need next: nobody waits or is
        preempted for a guess.
        """
        wanted = self._blocks_for(sequence.num_tokens + count) - len(sequence.blocks)
        if wanted <= 0:
            return count
        wanted = min(wanted, max(self.pool.num_free - len(self.running), 0))
        sequence.blocks += self.pool.allocate(wanted)
        return min(count, len(sequence.blocks) * self.block_size - sequence.num_tokens)

    def _preempt(self, victim: Sequence, plan: Schedule, order: list[Sequence]) -> None:
        """Take everything from a running sequence. It keeps its tokens and waits at its rank."""
        self.running.remove(victim)
        if order is not self.running:
            order.remove(victim)
        self._stop(victim)
        self.waiting.push(victim)
        self.num_preemptions += 1
        plan.preempted.append(victim.id)

    def _make_room(self, plan: Schedule) -> None:
        """Preempt for a waiting sequence of strictly better priority than some running ones, or whose tenant has less
        than its share of the slots, where that will do.
        """
        head = self.waiting.peek()
        if head is None or not self.running:
            return
        order = self._order()
        if head.rank[0] >= order[-1].rank[0]:
            if len(self.running) >= self.max_running:
                self._share_slots(head, plan)
            return
        matched, _ = self.cache.match(head)
        worse = [sequence for sequence in order if sequence.rank[0] > head.rank[0]]
        gain = sum(self.pool.refs(block) == 1 for sequence in worse for block in sequence.blocks)
        wanted = self._blocks_for(head.num_tokens) - len(matched) + len(self.running) - len(worse)
        if wanted > self.pool.num_free + gain:
            return
        while order and order[-1].rank[0] > head.rank[0]:
            if len(self.running) < self.max_running and self._has_blocks(head, self.cache.match(head)[0]):
                return
            self._preempt(order[-1], plan, order)

    def _share_slots(self, head: Sequence, plan: Schedule) -> None:
        """All slots are taken: `head` gets one of the tenant that has the most for its weight, if that one still has as
        much as the tenant of `head` then. At most one a step.
        """
        mine = head.share
        if mine.running == len(self.running):
            return
        equals = [one for one in self.running if one.rank[0] == head.rank[0] and one.share is not mine]
        if not equals:
            return
        victim = max(equals, key=lambda one: (one.share.running / one.share.weight, one.rank))
        other = victim.share
        if (mine.running + 1) / mine.weight > (other.running - 1) / other.weight:
            return
        matched, _ = self.cache.match(head)
        gain = sum(self.pool.refs(block) == 1 for block in victim.blocks)
        wanted = self._blocks_for(head.num_tokens) - len(matched) + len(self.running) - 1
        if wanted <= self.pool.num_free + gain:
            self._preempt(victim, plan, self.running)


def grant(scheduler: Scheduler, plan: Schedule, at: list[int], wanted: list[int]) -> list[tuple[int, int]]:
    """What the step's budget of tokens and rows, and the free blocks, have left of the drafts that are wanted for the
    plan's sequences `at`. The best-ranked go first. Returns indices in the plan and lengths of those that get any.
    """
    left = min(scheduler.max_tokens - plan.num_tokens, scheduler.max_rows - plan.num_rows)
    granted: list[tuple[int, int]] = []
    for index, want in zip(at, wanted, strict=True):
        length = min(want, left)
        if length > 0 and (length := scheduler.room_for_drafts(plan.sequences[index], length)) > 0:
            left -= length
            granted.append((index, length))
    return granted


def _rank(sequence: Sequence) -> Rank:
    return sequence.rank
