"""A tiny deterministic language model behind the `Runner` protocol, and the same model without an engine.

It keeps its "keys and values" the way a real one does: what it stores for a position depends on everything
before it, read back through the block table, and its logits depend on everything up to the position, read
back the same way. So a wrong block, a stale one, a hole or a write into a shared block changes the tokens
that come out.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import numpy.typing as npt

from schedules import Answer
from tokentrail.engine.batch import Batch, SampledRows, SamplingRows
from tokentrail.engine.config import EngineConfig
from tokentrail.protocol import (
    EngineInfo,
    FinishReason,
    GenerateRequest,
    ModelFileError,
    SamplingParams,
    TokenAlternatives,
)

VOCAB = 64
EOS = 1
_MASK = 2**64 - 1
U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]


def mix(value: int) -> int:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def mix_array(values: U64) -> U64:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_IDS = np.arange(VOCAB, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def stored(before: int, token: int, position: int) -> int:
    """What is kept for a position, given what is kept for the one before (0 for the first)."""
    return mix(before + 0x9E3779B97F4A7C15 * (token + 1) + position)


def logits_of(context: U64) -> F32:
    """[VOCAB] logits in [-4, 4), from what is kept for all positions."""
    weights = np.arange(1, 2 * len(context), 2, dtype=np.uint64)
    summary = np.uint64(mix(int((context * weights).sum(dtype=np.uint64))))
    return ((mix_array(summary + _IDS) >> np.uint64(40)).astype(np.float32) / np.float32(2**21)) - np.float32(
        4
    )


def log_softmax(logits: F32) -> F32:
    top = float(logits.max())
    total = math.fsum(math.exp(float(x) - top) for x in logits)
    return np.array([float(x) - top - math.log(total) for x in logits], np.float32)


def noise(seed: int, choice: int, position: int) -> F32:
    """[VOCAB] Gumbel noise keyed by (seed, choice, position)."""
    key = np.uint64(mix(mix(mix(seed) + choice) + position))
    uniform = ((mix_array(key + _IDS) >> np.uint64(41)).astype(np.float64) + 0.5) / 2**23
    return (-np.log(-np.log(uniform))).astype(np.float32)


def best(logprobs: F32, count: int) -> npt.NDArray[np.intp]:
    return np.lexsort((np.arange(VOCAB), -logprobs))[:count]


def draw(
    logits: F32,
    *,
    temperature: float,
    seed: int,
    choice: int,
    position: int,
    top_k: int,
    frequency: float,
    presence: float,
    repetition: float,
    prompt: list[int],
    output: list[int],
    bias: list[tuple[int, float]],
) -> int:
    logits = logits.copy()
    for token in set(prompt) | set(output):
        logits[token] = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
    for token in set(output):
        logits[token] -= frequency * output.count(token) + presence
    for token, value in bias:
        logits[token] += value
    if temperature == 0:
        return int(logits.argmax())
    if top_k:
        cut = np.sort(logits)[-min(top_k, VOCAB)]
        logits[logits < cut] = -np.inf
    return int((logits / np.float32(temperature) + noise(seed, choice, position)).argmax())


# --- without an engine ---------------------------------------------------------------------------------


def _top(logprobs: F32, count: int) -> TokenAlternatives:
    ids = best(logprobs, count)
    return TokenAlternatives(ids.tolist(), logprobs[ids].tolist())


def expect(request: GenerateRequest, max_model_len: int) -> Answer:
    sampling = request.sampling
    answer = Answer(top=[] if sampling.logprobs else None)
    kept: list[int] = []
    for position, token in enumerate(request.prompt):
        kept.append(stored(kept[-1] if kept else 0, token, position))
    if sampling.prompt_logprobs is not None:
        answer.prompt_logprobs = []
        answer.prompt_top = [] if sampling.prompt_logprobs else None
        for position, token in enumerate(request.prompt[1:]):
            logprobs = log_softmax(logits_of(np.array(kept[: position + 1], np.uint64)))
            answer.prompt_logprobs.append(float(logprobs[token]))
            if answer.prompt_top is not None:
                answer.prompt_top.append(_top(logprobs, sampling.prompt_logprobs))
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {EOS})
    limit = min(sampling.max_tokens or max_model_len, max_model_len - len(request.prompt))
    while answer.reason is None:
        bias = dict(sampling.logit_bias)
        if len(answer.tokens) < sampling.min_tokens:
            bias |= dict.fromkeys({EOS, *sampling.stop_token_ids}, -math.inf)
        for *before, last in sampling.bad_token_ids:
            if not before or answer.tokens[-len(before) :] == before:
                bias[last] = -math.inf
        logits = logits_of(np.array(kept, np.uint64))
        token = draw(
            logits,
            temperature=sampling.temperature,
            seed=(sampling.seed or 0) & _MASK,
            choice=request.choice,
            position=len(kept),
            top_k=max(sampling.top_k, 0),
            frequency=sampling.frequency_penalty,
            presence=sampling.presence_penalty,
            repetition=sampling.repetition_penalty,
            prompt=request.prompt if sampling.repetition_penalty != 1 else [],
            output=answer.tokens,
            bias=list(bias.items()),
        )
        logprobs = log_softmax(logits)
        answer.tokens.append(token)
        answer.logprobs.append(float(logprobs[token]))
        if answer.top is not None:
            answer.top.append(_top(logprobs, sampling.logprobs or 0))
        kept.append(stored(kept[-1], token, len(kept)))
        if token in stops:
            answer.reason, answer.stop_token = FinishReason.STOP, token
        elif len(answer.tokens) == limit:
            answer.reason = FinishReason.LENGTH
    return answer


# --- as a runner -----------------------------------------------------------------------------------------


class FakeRunner:
    """`config.kv_cache_memory` counts positions. `config.model` may be `fake:?option=value&...`:

    - delay: seconds a step takes;
    - loading: seconds that its start takes, told in ten steps;
    - rows: logit rows at most;
    - crash_token: SIGKILL when this token is computed;
    - crash_always: SIGKILL at the first step;
    - fail_start: raise at the start while this file exists;
    - fingerprint: file that holds the model's fingerprint.
    """

    def __init__(self, config: EngineConfig, *, progress: Callable[[int, int], None] | None = None) -> None:
        options = {key: values[0] for key, values in parse_qs(urlsplit(config.model or "").query).items()}
        if "fail_start" in options and Path(options["fail_start"]).exists():
            raise ModelFileError("model.gguf: the magic is wrong. Download the file again.")
        fingerprint = Path(options["fingerprint"]).read_text() if "fingerprint" in options else "fake"
        for tenth in range(1, 11 if "loading" in options else 0):
            time.sleep(float(options["loading"]) / 10)
            if progress is not None:
                progress(100 * tenth, 1000)
        self.delay = float(options.get("delay", 0))
        self.crash_token = int(options.get("crash_token", -1))
        self.crash_always = "crash_always" in options
        size = config.block_size
        num_blocks = (config.kv_cache_memory or 4096) // size
        self.max_logit_rows = int(options.get("rows", config.max_num_seqs + 16))
        self.info = EngineInfo(
            architecture="fake",
            num_parameters=0,
            max_model_len=config.max_model_len or 256,
            vocab_size=VOCAB,
            block_size=size,
            num_blocks=num_blocks,
            kv_bytes_per_token=8,
            weight_bytes=0,
            eos_token_ids=[EOS],
            fingerprint=fingerprint,
            isa="none",
            threads=1,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            hidden_size=VOCAB,
        )
        # Garbage that differs in each run: what is read without having been written shows.
        self._kv: U64 = np.frombuffer(os.urandom(8 * size * num_blocks), np.uint64).copy()
        self._lanes = np.arange(size)
        self.closed = False
        self.draft: FakeDraft | None = None
        if config.speculative_model == "fake":
            self.draft = FakeDraft(self.info, self.max_logit_rows)

    def execute(self, batch: Batch) -> SampledRows:
        self._check(batch)
        if self.delay:
            time.sleep(self.delay)
        if self.crash_always or self.crash_token in batch.tokens:
            os.kill(os.getpid(), signal.SIGKILL)
        size = self.info.block_size
        starts = batch.row_starts.tolist()
        tokens, positions = batch.tokens.tolist(), batch.positions.tolist()
        written: set[int] = set()
        for sequence, (first, end) in enumerate(pairwise(starts)):
            table = batch.block_tables[sequence].tolist()
            for row in range(first, end):
                position = positions[row]
                slot = table[position // size] * size + position % size
                assert slot not in written, "two tokens of one batch go to one place"
                written.add(slot)
                before = 0
                if position:
                    before = int(self._kv[table[(position - 1) // size] * size + (position - 1) % size])
                self._kv[slot] = stored(before, tokens[row], position)
        rows = self._look(batch, batch.logit_rows)
        result = self._sample(rows, batch.sampling)
        if batch.revealed is not None:
            result.logits = {row: rows[row].tobytes() for row in batch.revealed}
        if batch.state_rows is not None:
            result.states = np.array(self._look(batch, batch.state_rows))
        return result

    def _look(self, batch: Batch, wanted: npt.NDArray[np.int32]) -> list[F32]:
        """Logits of these rows; they serve as hidden states, too."""
        size = self.info.block_size
        owner = np.searchsorted(batch.row_starts, wanted, side="right") - 1
        rows = []
        for sequence, row in zip(owner.tolist(), wanted.tolist(), strict=True):
            count = int(batch.positions[row]) + 1
            blocks = batch.block_tables[sequence, : -(-count // size)]
            slots = (blocks[:, None] * size + self._lanes).reshape(-1)[:count]
            rows.append(logits_of(self._kv[slots]))
        return rows

    def close(self) -> None:
        self.closed = True

    def _sample(self, rows: list[F32], sampling: SamplingRows) -> SampledRows:
        count = len(rows)
        width = int(sampling.num_top.max(initial=0))
        result = SampledRows(
            tokens=np.zeros(count, np.int32),
            logprobs=np.zeros(count, np.float32),
            top_tokens=np.full((count, width), -1, np.int32) if width else None,
            top_logprobs=np.zeros((count, width), np.float32) if width else None,
            forwarded_at=time.time(),
        )
        for row, logits in enumerate(rows):
            logprobs = log_softmax(logits)
            token = int(sampling.target[row])
            if token < 0:
                token = draw(
                    logits,
                    temperature=float(sampling.temperature[row]),
                    seed=int(sampling.seed[row]),
                    choice=int(sampling.choice[row]),
                    position=int(sampling.position[row]),
                    top_k=int(sampling.top_k[row]),
                    frequency=_at(sampling.frequency_penalty, row, 0.0),
                    presence=_at(sampling.presence_penalty, row, 0.0),
                    repetition=_at(sampling.repetition_penalty, row, 1.0),
                    prompt=_part(sampling.prompt_tokens, sampling.prompt_offsets, row),
                    output=_part(sampling.output_tokens, sampling.output_offsets, row),
                    bias=list(
                        zip(
                            _part(sampling.bias_tokens, sampling.bias_offsets, row),
                            _part(sampling.bias_values, sampling.bias_offsets, row),
                            strict=True,
                        )
                    ),
                )
            result.tokens[row] = token
            result.logprobs[row] = logprobs[token]
            top = int(sampling.num_top[row])
            if top and result.top_tokens is not None and result.top_logprobs is not None:
                ids = best(logprobs, top)
                result.top_tokens[row, :top] = ids
                result.top_logprobs[row, :top] = logprobs[ids]
        return result

    def _check(self, batch: Batch) -> None:
        """The promises of batch.py to runners."""
        info, sampling = self.info, batch.sampling
        sequences, total, rows = len(batch.row_starts) - 1, len(batch.tokens), len(batch.logit_rows)
        assert 1 <= sequences <= info.max_num_seqs
        assert 1 <= total <= info.max_num_batched_tokens
        assert rows <= self.max_logit_rows
        assert batch.row_starts[0] == 0
        assert batch.row_starts[-1] == total
        assert (np.diff(batch.row_starts) > 0).all()
        assert len(batch.positions) == total
        assert batch.block_tables.shape[0] == sequences
        assert (batch.block_tables >= 0).all()
        assert (batch.block_tables < info.num_blocks).all()
        assert (np.diff(batch.logit_rows) > 0).all()
        for first, end in zip(batch.row_starts, batch.row_starts[1:], strict=False):
            assert (np.diff(batch.positions[first:end]) == 1).all()
        assert batch.positions.max() < info.max_model_len
        arrays = (sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k, sampling.seed)
        for array in (*arrays, sampling.choice, sampling.position, sampling.num_top, sampling.target):
            assert len(array) == rows
        assert (sampling.position == batch.positions[batch.logit_rows] + 1).all()
        for values, dtype in (
            (batch.tokens, np.int32),
            (batch.positions, np.int32),
            (batch.row_starts, np.int32),
            (batch.block_tables, np.int32),
            (batch.logit_rows, np.int32),
            (sampling.temperature, np.float32),
            (sampling.seed, np.uint64),
            (sampling.position, np.int32),
            (sampling.target, np.int32),
            (sampling.num_top, np.int32),
        ):
            assert values.dtype == dtype


def _at(array: F32 | None, row: int, default: float) -> float:
    return default if array is None else float(array[row])


def _part(values: npt.NDArray[np.generic] | None, offsets: npt.NDArray[np.int32] | None, row: int) -> list:
    if values is None or offsets is None:
        return []
    return values[offsets[row] : offsets[row + 1]].tolist()


class FakeDraft:
    """A draft model: the very model that answers, with its own memory, so that what it draws is right whenever its
    memory is. `confused(position)` makes it draw another token for that position.
    """

    def __init__(self, info: EngineInfo, max_logit_rows: int) -> None:
        self._runner = FakeRunner.__new__(FakeRunner)
        self._runner.info = info
        self._runner.max_logit_rows = max_logit_rows
        self._runner.delay, self._runner.crash_token, self._runner.crash_always = 0.0, -1, False
        self._runner._kv = np.frombuffer(os.urandom(8 * info.block_size * info.num_blocks), np.uint64).copy()
        self._runner._lanes = np.arange(info.block_size)
        self.max_model_len = info.max_model_len
        self.max_num_batched_tokens = info.max_num_batched_tokens
        self.confused: Callable[[int], bool] = lambda position: False

    def execute(self, batch: Batch) -> SampledRows:
        result = self._runner.execute(batch)
        for row, position in enumerate(batch.sampling.position.tolist()):
            if self.confused(position):
                result.tokens[row] = (result.tokens[row] + 1) % VOCAB
        return result


class NullRunner(FakeRunner):
    """Computes nothing: every row draws token 2. For measuring the engine itself."""

    def execute(self, batch: Batch) -> SampledRows:
        rows = len(batch.logit_rows)
        return SampledRows(tokens=np.full(rows, 2, np.int32), logprobs=np.zeros(rows, np.float32))


def request(
    id: str,
    prompt: list[int],
    *,
    priority: int = 0,
    choice: int = 0,
    group: str = "",
    salt: str = "",
    **sampling,
) -> GenerateRequest:
    sampling = {"temperature": 0.0, "max_tokens": 20, "seed": 0, **sampling}
    return GenerateRequest(
        id=id,
        group=group or id,
        prompt=prompt,
        priority=priority,
        choice=choice,
        salt=salt,
        sampling=SamplingParams(**sampling),
    )
