"""An engine that says what a test tells it to, in the process of the test, with the client's interface."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence

from tokentrail.protocol import (
    Delta,
    EngineInfo,
    EngineStats,
    Finish,
    FinishReason,
    GenerateRequest,
    ScheduledSequence,
    StepRecord,
    TokenAlternatives,
    TokentrailError,
)

Script = Callable[[GenerateRequest], Sequence[int]]


def engine_info(vocab_size: int = 49152, max_model_len: int = 512, eos: Sequence[int] = (0, 2)) -> EngineInfo:
    return EngineInfo(
        architecture="scripted",
        num_parameters=1_000_000,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        block_size=16,
        num_blocks=100,
        kv_bytes_per_token=1,
        weight_bytes=1,
        eos_token_ids=list(eos),
        fingerprint="fp_scripted",
        isa="none",
        threads=1,
        max_num_seqs=64,
        max_num_batched_tokens=512,
        hidden_size=8,
    )


def scripted_vector(request: GenerateRequest) -> bytes:
    """Of its prompt alone: (1, length, first token, last token, 0 …), cut to the wanted dimensions."""
    assert request.pooling is not None
    prompt = request.prompt
    values = [1.0, len(prompt), prompt[0], prompt[-1], 0.0, 0.0, 0.0, 0.5]
    return array("f", values[: request.pooling.dimensions]).tobytes()


class ScriptedEngine:
    """Each sequence gets the tokens that `script` returns for it, cut at max_tokens and at end or stop
    tokens.

    `cut`: tokens a delta brings; `delay`: seconds between deltas; `error`: raised by every request, after
    `error_after` deltas. A token's log-probability is -id / 1000, exactly; alternatives are the ids below it.
    """

    def __init__(
        self,
        script: Script,
        *,
        info: EngineInfo | None = None,
        cut: int | Callable[[], int] = 1,
        delay: float = 0.0,
        first_delay: float = 0.0,
        error: TokentrailError | None = None,
        error_after: int = 0,
    ) -> None:
        self.script = script
        self.info = engine_info() if info is None else info
        self.cut = cut
        self.delay = delay
        self.first_delay = first_delay
        self.error = error
        self.error_after = error_after
        self.alive = True
        self.restarts = 0
        self.stats = EngineStats(blocks_total=100)
        self.requests: list[GenerateRequest] = []
        self.running: set[str] = set()
        self.most_running = 0
        self.aborted: list[str] = []
        self.deltas_taken = 0
        self._open: dict[str, bool] = {}
        """By id of those that run: whether they came to their end by themselves."""
        self._tasks: set[asyncio.Future[None]] = set()
        self._step_listeners: list[Callable[[StepRecord, list[Delta]], None]] = []
        self._resume_listeners: list[Callable[[list[str]], None]] = []

    async def block_states(self) -> list[bytes]:
        return [bytes([2] * len(self.running) + [0] * (100 - len(self.running)))]

    def add_step_listener(self, listener: Callable[[StepRecord, list[Delta]], None]) -> None:
        self._step_listeners.append(listener)

    def add_resume_listener(self, listener: Callable[[list[str]], None]) -> None:
        self._resume_listeners.append(listener)

    def restart(self) -> None:
        self.restarts += 1
        for listener in self._resume_listeners:
            listener(list(self.running))

    def submit(
        self, request: GenerateRequest, sink: Callable[[Delta | TokentrailError], None]
    ) -> Callable[[], None]:
        async def pump() -> None:
            try:
                async for delta in self._generate(request, deltas):
                    if dropped:
                        return
                    sink(delta)
            except TokentrailError as error:
                if not dropped:
                    sink(error)

        def drop() -> None:
            if not dropped:
                dropped.append(True)
                self._ended(request)

        deltas = self._deltas(request)
        dropped: list[bool] = []
        self._open[request.id] = False
        self.requests.append(request)
        self.running.add(request.id)
        self.most_running = max(self.most_running, len(self.running))
        self.stats.running += 1
        task = asyncio.ensure_future(pump())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return drop

    def _ended(self, request: GenerateRequest) -> None:
        self.running.discard(request.id)
        self.stats.running -= 1
        if not self._open.pop(request.id):
            self.aborted.append(request.id)

    async def _generate(self, request: GenerateRequest, deltas: list[Delta]) -> AsyncIterator[Delta]:
        await asyncio.sleep(self.first_delay)
        for number, delta in enumerate(deltas):
            if number:
                await asyncio.sleep(self.delay)
            if request.id not in self._open:
                return
            if self.error is not None and number >= self.error_after:
                self._open[request.id] = True
                raise self.error
            self._step(request, delta)
            self.deltas_taken += 1
            self._open[request.id] = delta.finish is not None
            yield delta

    def _deltas(self, request: GenerateRequest) -> list[Delta]:
        sampling = request.sampling
        if request.pooling is not None:
            end = Finish(FinishReason.STOP, embedding=scripted_vector(request))
            return [Delta(request.id, [], [], finish=end, cached_tokens=len(request.prompt) // 2)]
        tokens: list[int] = []
        finish = Finish(FinishReason.LENGTH)
        for token in self.script(request):
            tokens.append(token)
            if len(tokens) > sampling.min_tokens and (
                token in sampling.stop_token_ids
                or (token in self.info.eos_token_ids and not sampling.ignore_eos)
            ):
                finish = Finish(FinishReason.STOP, stop_token=token)
                break
            if len(tokens) == sampling.max_tokens:
                break
        deltas = []
        at = 0
        while at < len(tokens):
            part = tokens[at : at + (self.cut if isinstance(self.cut, int) else self.cut())]
            at += len(part)
            deltas.append(
                Delta(
                    id=request.id,
                    token_ids=part,
                    logprobs=[logprob(token) for token in part],
                    top=[_top(token, sampling.logprobs) for token in part] if sampling.logprobs else None,
                    finish=finish if at == len(tokens) else None,
                )
            )
        deltas[0].cached_tokens = len(request.prompt) // 2
        if sampling.prompt_logprobs is not None:
            deltas[0].prompt_logprobs = [logprob(token) for token in request.prompt[1:]]
            if sampling.prompt_logprobs:
                deltas[0].prompt_top = [_top(token, sampling.prompt_logprobs) for token in request.prompt[1:]]
        return deltas

    def _step(self, request: GenerateRequest, delta: Delta) -> None:
        now = time.time()
        self.stats.steps += 1
        self.stats.generated_tokens += len(delta.token_ids)
        share = ScheduledSequence(
            id=request.id, tokens=1, position=len(request.prompt) + self.stats.steps, cached=0, blocks=1
        )
        record = StepRecord(
            step=self.stats.steps,
            start=now,
            scheduled=now,
            forwarded=now,
            end=now,
            num_sequences=1,
            num_tokens=1,
            blocks_used=1,
            sequences=[share],
        )
        for listener in self._step_listeners:
            listener(record, [delta])


def logprob(token: int) -> float:
    return -token / 1024


def _top(token: int, count: int) -> TokenAlternatives:
    ids = [max(0, token - k) for k in range(count)]
    return TokenAlternatives(token_ids=ids, logprobs=[logprob(id) for id in ids])
