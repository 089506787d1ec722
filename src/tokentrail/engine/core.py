"""The engine's heart: requests in, steps out. Knows neither processes nor models, only a `Runner`."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from tokentrail.engine.batch import Runner, SampledRows
from tokentrail.engine.batching import BatchBuilder
from tokentrail.engine.block_pool import BlockPool
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.grammars import ForcedTokens, Grammars, StepMasks, outcome, wait_for_one
from tokentrail.engine.pacing import Pacing
from tokentrail.engine.pooling import Pool
from tokentrail.engine.prefix_cache import PrefixCache
from tokentrail.engine.scheduler import Schedule, Scheduler
from tokentrail.engine.sequence import Sequence, Status, check_request
from tokentrail.engine.shares import Share
from tokentrail.engine.speculation import create_speculator
from tokentrail.protocol import (
    Delta,
    EngineStats,
    Finish,
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    Rejected,
    ScheduledSequence,
    StepOutput,
    StepRecord,
    TokenAlternatives,
)

if TYPE_CHECKING:
    from tokentrail.text.grammar import Matcher

_NOT_FINITE = (
    "The model's logits are not finite numbers (NaN or infinity): its file is damaged, or its values are too "
    "large for how it is computed. Download the model again, or use another one."
)
_STATES_NOT_FINITE = (
    "The model's hidden states are not finite numbers (NaN or infinity): its file is damaged, or its values are too "
    "large for how it is computed. Download the model again, or use another one."
)
_TOO_COMPLEX = (
    "The grammar of the answer became too complex at this place to say which tokens may follow. "
    "Simplify the schema or grammar."
)
_NOTHING_ALLOWED = (
    "The grammar of the answer allows no token of the model's vocabulary at this place, or none that the request "
    "does not ban."
)
_COMPILING_PAUSE = 0.02
"""Seconds to wait for a grammar where there is nothing else to do, before looking for new requests."""


class EngineCore:
    """Continuous batching over one `Runner`. Not thread-safe; `step` blocks while the runner computes."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        info = runner.info
        self.runner = runner
        self._clock = clock
        self._max_waiting = config.max_waiting
        self._eos_ids = frozenset(info.eos_token_ids)
        self._adapters = {adapter.name: number for number, adapter in enumerate(info.adapters)}
        self.pool = BlockPool(info.num_blocks)
        self.cache = PrefixCache(self.pool, info.block_size, enabled=config.enable_prefix_caching)
        self.scheduler = Scheduler(
            self.pool,
            self.cache,
            Pacing(info.max_num_batched_tokens),
            block_size=info.block_size,
            max_running=info.max_num_seqs,
            max_tokens=info.max_num_batched_tokens,
            max_rows=runner.max_logit_rows,
        )
        self._builder = BatchBuilder(
            max_running=self.scheduler.max_running,
            max_tokens=info.max_num_batched_tokens,
            max_blocks=min(info.num_blocks, -(-info.max_model_len // info.block_size)),
        )
        self.speculator = create_speculator(config, runner, self.scheduler, self._builder)
        """Drafts tokens for steps to verify; None: every step brings each sequence one token."""
        self._grammars = Grammars(runner, info.vocab_size)
        self._compiling: dict[str, tuple[Sequence, Future[Matcher]]] = {}
        """By id: sequences whose grammar is being compiled. They are in no queue yet."""
        self._masks = StepMasks(info.vocab_size)
        self._forced = ForcedTokens(self.scheduler)
        self._num_constrained = 0
        """Sequences with a grammar: without any, no step has a thought for them."""
        self.refused: list[Rejected] = []
        """Requests that were taken and then turned out to be wrong: whoever steps tells of them and clears this."""
        self._sequences: dict[str, Sequence] = {}
        self._deadlines: list[tuple[float, int, Sequence]] = []
        self._ended: list[Delta] = []
        """Ends that no step brought: told with the next one."""
        self._aborted = False
        """Since the last step, so that its statistics no longer hold."""
        self._serial = 0
        self._steps = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._drafted_tokens = 0
        self._accepted_tokens = 0

    # --- requests ----------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self._ended or self._aborted or self.refused)

    def add_request(self, request: GenerateRequest) -> Rejected | None:
        """Queue a request, or say why not: `queue_full`, or the code of what is wrong with it."""
        info = self.runner.info
        if request.id in self._sequences:
            return Rejected(
                request.id, f"A request with id {request.id} is already in the engine.", "duplicate_id"
            )
        if request.adapter and request.adapter not in self._adapters:
            return Rejected(
                request.id, f"The adapter {request.adapter!r} is not loaded; see --lora.", "unknown_adapter"
            )
        try:
            check_request(request, info.vocab_size, info.max_model_len, info.hidden_size)
        except InvalidRequest as error:
            return Rejected(request.id, error.message, error.code or "invalid_request")
        scheduler = self.scheduler
        # Those that the next step can start do not wait.
        starting = scheduler.max_running - len(scheduler.running)
        waiting = scheduler.num_waiting + len(self._compiling)
        full = not request.resumed and waiting >= self._max_waiting + starting
        share = scheduler.shares.of(request.tenant, request.weight)
        other = self._less_entitled(share, request.priority) if full else None
        if full and other is None:
            return Rejected(
                request.id,
                f"The waiting queue is full ({self._max_waiting} requests). Try again a little later.",
            )
        self._serial += 1
        sequence = Sequence(
            request, self._serial, request.arrival or self._clock(), info.max_model_len, self._eos_ids, share
        )
        sequence.adapter = self._adapters.get(request.adapter, -1)
        if not scheduler.fits(sequence):
            new = sequence.max_total - sequence.prompt_len
            return Rejected(
                request.id,
                f"The request needs {sequence.max_total - 1} positions of KV cache ({sequence.prompt_len} of "
                f"prompt, up to {new} new ones); the whole cache has {info.num_blocks * info.block_size}. "
                "Lower max_tokens, shorten the prompt or raise --kv-cache-memory.",
                "kv_cache_exceeded",
            )
        if sequence.num_tokens >= sequence.max_total:
            self._ended.append(_last_delta(sequence, FinishReason.LENGTH))
            return None
        if other is not None:
            self._refuse(other)
        self._sequences[request.id] = sequence
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, self._serial, sequence))
        self._num_constrained += sequence.constrained
        if request.grammar is None:
            scheduler.add(sequence)
        else:
            self._compiling[sequence.id] = sequence, self._grammars.compile(request.grammar)
            self._take_compiled()
        return None

    def _less_entitled(self, share: Share, priority: int) -> Sequence | None:
        """Who can be refused when the queue is full, in the place of a request of `share`: what came last of the tenant
        with the longest queue for its weight, if that one has more of it even then. A flood keeps nobody else out.
        """
        heaviest = self.scheduler.shares.most_waiting()
        if (
            heaviest is None
            or heaviest is share
            or (share.waiting + 1) / share.weight > (heaviest.waiting - 1) / heaviest.weight
        ):
            return None
        return self.scheduler.waiting.newest_of(heaviest, priority)

    def _refuse(self, sequence: Sequence) -> None:
        self._drop(sequence)
        self.refused.append(
            Rejected(
                sequence.id,
                "The waiting queue is full, and others have fewer requests in it. Try again a little later.",
            )
        )

    def _take_compiled(self) -> None:
        """Queue the sequences whose grammar has been compiled."""
        done = [id for id, (_, future) in self._compiling.items() if future.done()]
        for id in done:
            sequence, future = self._compiling[id]
            compiled = outcome(future)
            if isinstance(compiled, str):
                self._drop(sequence)
                self.refused.append(Rejected(id, compiled, "invalid_grammar"))
                continue
            del self._compiling[id]
            sequence.matcher = compiled.copy()
            # What an engine process that died had made of it.
            if not all(map(sequence.matcher.consume, sequence.request.output)):
                raise RuntimeError("an answer that is to go on has tokens that its grammar does not allow")
            self.scheduler.add(sequence)

    def abort(self, ids: Iterable[str]) -> None:
        """End these sequences and free their blocks at once. Unknown ids are ignored. No delta tells of it, but the
        next step has an output in any case.
        """
        for id in ids:
            sequence = self._sequences.get(id)
            if sequence is not None:
                self._drop(sequence)
        self._aborted = True

    def _drop(self, sequence: Sequence) -> None:
        del self._sequences[sequence.id]
        self._num_constrained -= sequence.constrained
        if self._compiling.pop(sequence.id, None) is not None:
            sequence.status = Status.FINISHED
        else:
            self.scheduler.remove(sequence)

    # --- steps -------------------------------------------------------------------------------------

    def step(self) -> StepOutput | None:
        """Schedule, compute, sample; None when there was nothing to do.

        Where sequences have only ended, by abort or deadline, there is an output with a record without
        sequences.
        """
        start = self._clock()
        self._expire(start)
        deltas, self._ended = self._ended, []
        if self._compiling:
            if len(self._compiling) == len(self._sequences):
                wait_for_one([future for _, future in self._compiling.values()], _COMPILING_PAUSE)
            self._take_compiled()
        if len(self._sequences) == len(self._compiling):
            if not deltas and not self._aborted:
                return None
            self._aborted = False
            return StepOutput(deltas, self._record(start, start, start, Schedule(), []), self.stats())
        plan = self.scheduler.schedule()
        if not plan.sequences:
            raise RuntimeError("the scheduler found no work although sequences are unfinished")
        if self._num_constrained:
            self._forced.extend(plan)
        drafting = self.speculator.extend(plan) if self.speculator is not None else 0.0
        batch = self._builder.build(plan)
        if self._num_constrained:
            self._masks.start(plan, batch)
        before = time.perf_counter()
        scheduled = self._clock()
        sampled = self.runner.execute(batch)
        forwarded = sampled.forwarded_at or self._clock()
        seconds = time.perf_counter() - before
        prompt_tokens = plan.num_tokens - plan.decodes - plan.drafted
        self.scheduler.pacing.observe(plan.decodes, prompt_tokens, seconds)
        if self.speculator is not None and not prompt_tokens:
            self.speculator.observe(plan.num_tokens, seconds)
        self._steps += 1
        shares = self._apply(plan, sampled, deltas)
        self._aborted = False
        record = self._record(start, scheduled, forwarded, plan, shares)
        record.drafting = drafting
        return StepOutput(deltas, record, self.stats())

    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=scheduler.num_waiting,
            blocks_total=self.pool.num_blocks,
            blocks_used=self.pool.num_used,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            preemptions=scheduler.num_preemptions,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
            steps=self._steps,
        )

    def close(self) -> None:
        self._grammars.close()
        self._masks.close()
        self.runner.close()

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, sequence = heapq.heappop(self._deadlines)
            if sequence.status is not Status.FINISHED:
                self.abort([sequence.id])
                self._ended.append(
                    _last_delta(
                        sequence, FinishReason.TIMEOUT, "The request's deadline passed before it was done."
                    )
                )

    def _apply(self, plan: Schedule, sampled: SampledRows, deltas: list[Delta]) -> list[ScheduledSequence]:
        """Take a step's results into the sequences; append what there is to tell to `deltas`."""
        tokens: list[int] = sampled.tokens.tolist()
        logprobs: list[float] = sampled.logprobs.tolist()
        cached = plan.cached
        computed = self.scheduler.computed
        shares = []
        row = pooled = 0
        for sequence, count in zip(plan.sequences, plan.counts, strict=True):
            first = sequence.num_computed
            drafted = sequence.num_drafted
            share = ScheduledSequence(
                sequence.id,
                count,
                first,
                cached.get(sequence.id, 0) if cached else 0,
                len(sequence.blocks),
            )
            shares.append(share)
            if first < sequence.prompt_len:
                self._prompt_tokens += min(count, sequence.prompt_len - first)
                targets = len(sequence.target_rows(first, first + count))
                if targets:
                    sequence.prompt_logprobs += logprobs[row : row + targets]
                    if sequence.request.sampling.prompt_logprobs:
                        sequence.prompt_top += [
                            _alternatives(sampled, at) for at in range(row, row + targets)
                        ]
                    row += targets
                if (pool := sequence.pool) is not None:
                    taken = len(pool.wanted(first, first + count))
                    if taken:
                        assert sampled.states is not None
                        pool.add(sampled.states[pooled : pooled + taken])
                        pooled += taken
                    computed(sequence, count)
                    if sequence.num_computed == sequence.prompt_len:
                        deltas.append(_embedded(sequence, pool))
                        self.abort([sequence.id])
                    continue
            if drafted:
                forced, sequence.forced = sequence.forced, False
                delta, accepted = _verify(sequence, sampled, tokens, logprobs, row)
                row += drafted + 1
                # What else was computed belongs to no token of the sequence: it is written over before it is read.
                computed(sequence, len(delta.token_ids) or 1)
                share.drafted, share.accepted = drafted, accepted
                if forced:
                    share.forced = drafted
                else:
                    self._drafted_tokens += drafted
                    self._accepted_tokens += accepted
                    if self.speculator is not None:
                        self.speculator.verified(sequence, drafted, accepted)
            else:
                computed(sequence, count)
                if sequence.num_computed != sequence.num_tokens:
                    continue
                delta = _drawn(sequence, sampled, tokens[row], logprobs[row], row)
                if sampled.logits is not None:
                    delta.logits = sampled.logits.get(row)
                row += 1
            self._generated_tokens += len(delta.token_ids)
            if delta.token_ids and not sequence.told_first:
                _tell_first(sequence, delta)
            if delta.finish is not None:
                self.abort([sequence.id])
            deltas.append(delta)
        return shares

    def _record(
        self,
        start: float,
        scheduled: float,
        forwarded: float,
        plan: Schedule,
        shares: list[ScheduledSequence],
    ) -> StepRecord:
        return StepRecord(
            step=self._steps,
            start=start,
            scheduled=scheduled,
            forwarded=forwarded,
            end=self._clock(),
            num_sequences=len(plan.sequences),
            num_tokens=plan.num_tokens,
            blocks_used=self.pool.num_used,
            sequences=shares,
            preempted=plan.preempted,
        )


def _embedded(sequence: Sequence, pool: Pool) -> Delta:
    """The one delta of a sequence whose embedding is done."""
    vector = pool.vector()
    if vector is None:
        return _last_delta(sequence, FinishReason.ERROR, _STATES_NOT_FINITE)
    finish = Finish(FinishReason.STOP, embedding=vector)
    return Delta(sequence.id, [], [], finish=finish, cached_tokens=sequence.cached_tokens)


def _drawn(sequence: Sequence, sampled: SampledRows, token: int, logprob: float, row: int) -> Delta:
    """Take the token drawn in `row` into its sequence."""
    if math.isnan(logprob):  # NaN: there was a NaN or infinity among the logits
        return _last_delta(sequence, FinishReason.ERROR, _NOT_FINITE)
    matcher = sequence.matcher
    if matcher is not None and not matcher.consume(token):
        return _stuck(sequence, matcher)
    if sequence.allowed is not None and not sequence.allows(token):
        return _last_delta(sequence, FinishReason.STOP)  # all that is allowed is banned by other parameters
    sequence.append(token)
    top = [_alternatives(sampled, row)] if sequence.num_top else None
    delta = Delta(sequence.id, [token], [logprob], top)
    if token in sequence.stop_ids:
        delta.finish = Finish(FinishReason.STOP, stop_token=token)
    elif matcher is not None and matcher.finished:
        delta.finish = Finish(FinishReason.STOP)
    elif sequence.num_tokens >= sequence.max_total:
        delta.finish = Finish(FinishReason.LENGTH)
    return delta


def _stuck(sequence: Sequence, matcher: Matcher) -> Delta:
    """No token could be drawn that the grammar allows."""
    if matcher.too_complex:
        return _last_delta(sequence, FinishReason.ERROR, _TOO_COMPLEX)
    if matcher.accepting:  # only an end token was left, and min_tokens or ignore_eos bans these
        return _last_delta(sequence, FinishReason.STOP)
    return _last_delta(sequence, FinishReason.ERROR, _NOTHING_ALLOWED)


def _verify(
    sequence: Sequence, sampled: SampledRows, tokens: list[int], logprobs: list[float], row: int
) -> tuple[Delta, int]:
    """Take the tokens drawn in `row` and the rows behind it, one for each drafted token: each is what a step without
    drafts would have drawn as long as all drafted tokens before it are the ones that were drawn.

    Returns what there is to tell, and how many drafted tokens were right.
    """
    first = sequence.num_tokens
    guesses: list[int] = sequence.tokens[first : first + sequence.num_drafted].tolist()
    sequence.num_drafted = 0
    whole = _drawn(sequence, sampled, tokens[row], logprobs[row], row)
    accepted = 0
    while accepted < len(guesses) and whole.token_ids and whole.token_ids[-1] == guesses[accepted]:
        accepted += 1
        at = row + accepted
        # Logits that are no numbers are for the next step to meet, in a first row: what came before them is told first.
        if whole.finish is not None or math.isnan(logprobs[at]):
            break
        more = _drawn(sequence, sampled, tokens[at], logprobs[at], at)
        whole.token_ids += more.token_ids
        whole.logprobs += more.logprobs
        if whole.top is not None and more.top is not None:
            whole.top += more.top
        whole.finish = more.finish
    return whole, accepted


def _tell_first(sequence: Sequence, delta: Delta) -> None:
    """What the first delta says about the prompt."""
    sequence.told_first = True
    delta.cached_tokens = sequence.cached_tokens
    if sequence.wants_prompt_logprobs:
        delta.prompt_logprobs = sequence.prompt_logprobs
        if sequence.request.sampling.prompt_logprobs:
            delta.prompt_top = sequence.prompt_top


def _last_delta(sequence: Sequence, reason: FinishReason, error: str | None = None) -> Delta:
    return Delta(sequence.id, [], [], finish=Finish(reason, error=error))


def _alternatives(sampled: SampledRows, row: int) -> TokenAlternatives:
    """The row's most likely tokens; rows that asked for fewer than the widest are padded with -1."""
    if sampled.top_tokens is None or sampled.top_logprobs is None:
        raise RuntimeError("the runner returned no alternatives although a row asked for them")
    tokens: list[int] = sampled.top_tokens[row].tolist()
    width = tokens.index(-1) if -1 in tokens else len(tokens)
    return TokenAlternatives(tokens[:width], sampled.top_logprobs[row, :width].tolist())
