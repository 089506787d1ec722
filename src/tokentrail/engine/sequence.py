"""The state of one sequence on its way through the engine: its tokens, its KV blocks, when it ends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokentrail.engine.pooling import Pool
from tokentrail.engine.shares import Share
from tokentrail.protocol import GenerateRequest, InvalidRequest, TokenAlternatives

if TYPE_CHECKING:
    from tokentrail.text.grammar import Matcher

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]

Rank = tuple[int, float, int]


class Status(IntEnum):
    WAITING = 0
    RUNNING = 1
    FINISHED = 2


class Sequence:
    """One sequence. `tokens[:num_tokens]` are its prompt and output; K and V of `tokens[:num_computed]` are
    cached.

    Computing position num_tokens - 1 brings the logits from which token num_tokens is drawn, so a sequence
    that decodes always has num_computed == num_tokens - 1.
    """

    __slots__ = (
        "adapter",
        "allowed",
        "bad_runs",
        "ban_below",
        "banned",
        "biases",
        "blocks",
        "cached_tokens",
        "eos_ids",
        "forced",
        "hashes",
        "id",
        "last_token",
        "matcher",
        "max_total",
        "num_computed",
        "num_drafted",
        "num_registered",
        "num_tokens",
        "num_top",
        "paid",
        "penalties",
        "pool",
        "prompt_len",
        "prompt_logprobs",
        "prompt_top",
        "rank",
        "request",
        "salt",
        "share",
        "slot",
        "status",
        "stop_ids",
        "tokens",
        "told_first",
        "wants_prompt_logprobs",
    )

    def __init__(
        self,
        request: GenerateRequest,
        serial: int,
        arrival: float,
        max_model_len: int,
        eos_ids: frozenset[int],
        share: Share | None = None,
    ) -> None:
        """`share`: its tenant's; None: one of its own."""
        sampling = request.sampling
        self.request = request
        self.id = request.id
        self.salt = request.salt
        self.adapter = -1
        """Number of the low-rank adapter among those of the runner; -1: none."""
        self.rank: Rank = (request.priority, arrival, serial)
        """Lower goes first, in admission and in the fight for blocks. Total, so that nobody starves in a
        priority.
        """
        self.status = Status.WAITING
        self.share = Share(request.tenant) if share is None else share
        """Its tenant's, of the engine."""
        self.paid = 0
        """Leading tokens that its tenant has been charged for: what is computed once more costs nothing."""

        self.prompt_len = len(request.prompt)
        self.num_tokens = self.prompt_len + len(request.output)
        limit = max_model_len - self.prompt_len if sampling.max_tokens is None else sampling.max_tokens
        self.max_total = min(self.prompt_len + limit, max_model_len)
        """Tokens, prompt and output, at which the sequence ends with `length`."""
        self.pool: Pool | None = None
        """Where its states go, if an embedding is wanted: nothing is drawn then."""
        if request.pooling is not None:
            self.pool = Pool(request.pooling, self.prompt_len)
            # As if one more token came, which is never computed: the whole prompt is.
            self.max_total = self.prompt_len + 1
        self.tokens: I32 = np.empty(
            min(self.num_tokens + 128, max(self.max_total, self.num_tokens)), np.int32
        )
        self.tokens[: self.prompt_len] = request.prompt
        self.tokens[self.prompt_len : self.num_tokens] = request.output

        self.last_token: int = (request.output or request.prompt)[-1]
        """`tokens[num_tokens - 1]`, which NumPy takes its time to give out."""
        self.num_computed = 0
        self.num_drafted = 0
        """Tokens behind its own that a drafter has proposed; only between scheduling a step and its results."""
        self.forced = False
        """Those are the only ones that the grammar allows."""
        self.matcher: Matcher | None = None
        """The place in its grammar that its output has reached, where it has one."""
        self.blocks: list[int] = []
        self.slot = -1
        """Row in the batch builder's tables while running."""
        self.hashes: list[bytes] = []
        """Hash chain over the full blocks of `tokens`, as far as it was needed."""
        self.num_registered = 0
        """Leading blocks that are filled and which the prefix cache was told of."""
        self.cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache at the first admission."""

        self.eos_ids = frozenset[int]() if sampling.ignore_eos else eos_ids
        self.stop_ids = frozenset(sampling.stop_token_ids) | self.eos_ids
        self.num_top = sampling.logprobs or 0
        self.penalties = (
            sampling.frequency_penalty != 0.0
            or sampling.presence_penalty != 0.0
            or sampling.repetition_penalty != 1.0
        )
        never = [run[0] for run in sampling.bad_token_ids if len(run) == 1]
        biases = {**sampling.logit_bias, **dict.fromkeys(never, -math.inf)}
        self.bad_runs = [np.array(run, np.int32) for run in sampling.bad_token_ids if len(run) > 1]
        """Runs of tokens of which the last must not follow the others."""
        self.biases = _bias_arrays(biases)
        """(token ids, values) added to the logits, or None."""
        self.ban_below = self.prompt_len + sampling.min_tokens if sampling.min_tokens else 0
        # As vLLM does, min_tokens bans the model's end tokens even where ignore_eos lets them pass.
        banned = eos_ids | self.stop_ids
        self.banned = (
            _bias_arrays({**biases, **dict.fromkeys(banned, -math.inf)}) if sampling.min_tokens else None
        )
        """The same with end and stop tokens banned: used while fewer than min_tokens have come."""
        self.allowed = _mask(sampling.allowed_token_ids)
        """Words of the mask of tokens that may come, as far as the highest of them; None: all may."""
        self.wants_prompt_logprobs = sampling.prompt_logprobs is not None
        self.prompt_logprobs: list[float] = []
        """So far: entry i is that of prompt token i + 1. Kept over preemptions."""
        self.prompt_top: list[TokenAlternatives] = []
        self.told_first = bool(request.output)
        """The first delta, which carries what concerns the prompt, was sent (perhaps by an earlier
        process).
        """

    @property
    def needs_all_positions(self) -> bool:
        """Each of the prompt's positions must be computed, so what the prefix cache knows of them is of no use."""
        if self.pool is not None:
            return self.pool.needs_all
        # Log-probabilities of prompt tokens need the logits of every position.
        return self.wants_prompt_logprobs and self.num_tokens == self.prompt_len

    @property
    def reveals(self) -> bool:
        """The logits of its next token are to be told."""
        return self.request.reveal and self.num_tokens == self.prompt_len + len(self.request.output)

    @property
    def remaining(self) -> int:
        """Tokens still to be computed before the next one can be drawn."""
        return self.num_tokens - self.num_computed

    def append(self, token: int) -> None:
        if self.num_tokens == len(self.tokens):
            self._grow(self.num_tokens + 1)
        self.tokens[self.num_tokens] = self.last_token = token
        self.num_tokens += 1

    def propose(self, drafted: Iterable[int]) -> None:
        """Write drafted tokens behind the sequence's own and those drafted so far. They are none of its own until
        `append` has brought the same ones; what reads `tokens[:num_tokens]` never sees them.
        """
        for token in drafted:
            at = self.num_tokens + self.num_drafted
            if at == len(self.tokens):
                self._grow(at + 1)
            self.tokens[at] = token
            self.num_drafted += 1

    def _grow(self, size: int) -> None:
        grown = np.empty(max(size, min(2 * len(self.tokens), self.max_total)), np.int32)
        grown[: len(self.tokens)] = self.tokens
        self.tokens = grown

    @property
    def draws_alike(self) -> bool:
        """What shapes a draw does not depend on the tokens before it: the next step may take the same rows again."""
        return not (self.penalties or self.biases or self.banned or self.bad_runs)

    def bias(self, at: int) -> tuple[I32, F32] | None:
        """Additive biases for the draw of token number `at`."""
        biases = self.banned if at < self.ban_below else self.biases
        if not self.bad_runs:
            return biases
        ends = [run[-1] for run in self.bad_runs if self._follows(at, run[:-1])]
        if not ends:
            return biases
        tokens, values = np.array(ends, np.int32), np.full(len(ends), -np.inf, np.float32)
        if biases is None:
            return tokens, values
        return np.concatenate((biases[0], tokens)), np.concatenate((biases[1], values))

    def _follows(self, at: int, run: I32) -> bool:
        """Whether `run` was generated just before token number `at`."""
        start = at - len(run)
        return start >= self.prompt_len and bool((self.tokens[start:at] == run).all())

    @property
    def masked(self) -> bool:
        """Its draws need a mask of allowed tokens."""
        return self.matcher is not None or self.allowed is not None

    @property
    def constrained(self) -> bool:
        """They do, or will once its grammar is compiled."""
        return self.request.grammar is not None or self.allowed is not None

    def allows(self, token: int) -> bool:
        allowed = self.allowed
        if allowed is None:
            return True
        return token // 32 < len(allowed) and bool(int(allowed[token // 32]) >> token % 32 & 1)

    def target_rows(self, start: int, end: int) -> range:
        """Positions in [start, end) whose logits must report the log-probability of the next prompt token."""
        if not self.wants_prompt_logprobs:
            return range(0)
        return range(max(start, len(self.prompt_logprobs)), min(end, self.prompt_len - 1))

    def num_rows(self, count: int) -> int:
        """Logit rows needed when the next `count` tokens are computed."""
        end = self.num_computed + count
        drawing = end == self.num_tokens and self.pool is None
        return len(self.target_rows(self.num_computed, end)) + drawing


def check_request(
    request: GenerateRequest, vocab_size: int, max_model_len: int, hidden_size: int = 0
) -> None:
    """Raise `InvalidRequest` for what would make the engine read or write out of bounds, or never end.

    The rooms above have validated the parameters for their users; this is the engine's own threshold.
    """
    if not request.prompt:
        raise InvalidRequest("The prompt has no tokens; it needs at least one.", param="prompt")
    for name, tokens in (("prompt", request.prompt), ("output", request.output)):
        if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
            wrong = next(token for token in tokens if not 0 <= token < vocab_size)
            raise InvalidRequest(
                f"{name} holds token id {wrong}; the model's vocabulary has ids 0 to {vocab_size - 1}.",
                param=name,
            )
    if request.pooling is not None:
        request.pooling.validate(hidden_size)
        if len(request.prompt) > max_model_len or request.output:
            raise InvalidRequest(
                f"The input has {len(request.prompt)} tokens; the context holds {max_model_len}. Shorten it or raise "
                "--max-model-len.",
                param="input",
                code="context_length_exceeded",
            )
        return
    total = len(request.prompt) + len(request.output)
    # A resumed sequence may have reached the context's end; a fresh one needs room for a token.
    if len(request.prompt) >= max_model_len or total > max_model_len:
        raise InvalidRequest(
            f"The prompt has {len(request.prompt)} tokens; the context holds {max_model_len}, "
            "with at least one for the answer. Shorten the prompt or raise --max-model-len.",
            param="prompt",
            code="context_length_exceeded",
        )
    request.sampling.validate(vocab_size=vocab_size)
    if request.grammar is not None and request.sampling.allowed_token_ids is not None:
        # Together they could leave nothing to draw.
        raise InvalidRequest(
            "allowed_token_ids cannot be combined with a form or tool calls that are held to by a grammar.",
            param="allowed_token_ids",
        )
    if request.sampling.seed is None and not request.sampling.greedy:
        raise InvalidRequest("seed must be resolved before a request reaches the engine.", param="seed")


def _bias_arrays(biases: dict[int, float]) -> tuple[I32, F32] | None:
    if not biases:
        return None
    return np.fromiter(biases.keys(), np.int32, len(biases)), np.fromiter(
        biases.values(), np.float32, len(biases)
    )


def _mask(allowed: tuple[int, ...] | None) -> npt.NDArray[np.uint32] | None:
    """Bit t % 32 of word t // 32 is set where token t may come."""
    if allowed is None:
        return None
    ids = np.array(allowed, np.int64)
    bits = np.zeros((int(ids.max()) // 32 + 1) * 32, np.uint8)
    bits[ids] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
