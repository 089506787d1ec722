"""Answers from an engine on this machine."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokentrail.answer.choice import ChoiceWriter, TokenTexts
from tokentrail.answer.prompts import Prepared, echo_of, prepare, resolve_max_tokens, size
from tokentrail.answer.types import AnswerRequest, Chunk, ModelCard, Usage
from tokentrail.checkpoints import demo_model_path, open_checkpoint
from tokentrail.journey import Journey, JourneyStore, SequenceTrail
from tokentrail.observability import Metrics
from tokentrail.protocol import (
    Delta,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerateRequest,
    ModelFileError,
    Overloaded,
    StepRecord,
    TokentrailError,
)
from tokentrail.text import ChatTemplate, Tokenizer

# Characters of prompt from which tokenizing may hold up other streams, and goes to a thread.
_LONG = 20_000
# Drawn seeds stay below 2^53, so that JSON readers with floating-point numbers repeat them exactly.
_SEED_BITS = 53
# Outcomes of a request with several choices: the worst one is told.
_BADNESS = {"stop": 0, "length": 1, "abort": 2, "rejected": 3, "error": 4}


class Engine(Protocol):
    """What is needed of an engine: `engine.client.EngineClient` has it, and tests bring their own."""

    restarts: int

    @property
    def info(self) -> EngineInfo: ...

    @property
    def alive(self) -> bool: ...

    @property
    def stats(self) -> EngineStats: ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]: ...

    def add_step_listener(self, listener: Callable[[StepRecord, list[Delta]], None]) -> None: ...

    def add_restart_listener(self, listener: Callable[[], None]) -> None: ...


@dataclass(frozen=True)
class TextParts:
    """What a checkpoint says about text."""

    tokenizer: Tokenizer
    template: ChatTemplate
    name: str
    """The model's name in its file."""


def load_text_parts(model: str | None, chat_template: str | None = None) -> TextParts:
    """Open a checkpoint for its text parts only. `model` None: the demo model; `chat_template`: a file's
    path.

    Raises `ModelFileError` naming what is wrong with the file.
    """
    checkpoint = open_checkpoint(demo_model_path() if model is None else Path(model))
    tokenizer = Tokenizer.from_checkpoint(checkpoint)
    source, origin = checkpoint.chat_template, f"{checkpoint.path}: the chat template"
    if chat_template is not None:
        origin = chat_template
        try:
            source = Path(chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(f"{chat_template}: cannot read the chat template: {error}.") from None

    def text(id: int | None) -> str:
        return "" if id is None else tokenizer.id_to_token(id)

    template = ChatTemplate(
        source,
        bos_token=text(tokenizer.bos_token_id),
        eos_token=text(checkpoint.tokenizer.eos_token_id),
        origin=origin,
    )
    return TextParts(tokenizer, template, checkpoint.name)


class LocalBackend:
    """Template → tokens → engine → text, for one model. See `answer.backend.Backend`."""

    def __init__(
        self,
        engine: Engine,
        parts: TextParts,
        *,
        names: Sequence[str] = (),
        journeys: JourneyStore | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """`names`: those the model answers to; none: the one in its file."""
        self.engine = engine
        self.tokenizer = parts.tokenizer
        self.template = parts.template
        self.journeys = JourneyStore() if journeys is None else journeys
        self.metrics = Metrics() if metrics is None else metrics
        self.texts = TokenTexts(parts.tokenizer)
        created = int(time.time())
        self._cards = [
            ModelCard(id=name, created=created, max_model_len=engine.info.max_model_len, root=parts.name)
            for name in names or (parts.name,)
        ]
        self.metrics.before_scrape.append(self._refresh_metrics)
        engine.add_step_listener(self.journeys.on_step)
        engine.add_restart_listener(self.journeys.on_restart)

    @property
    def ready(self) -> bool:
        return self.engine.alive

    def models(self) -> list[ModelCard]:
        return self._cards

    async def open(self, request: AnswerRequest) -> LocalAnswer:
        received = time.time() if request.received is None else request.received
        info = self.engine.info
        request.sampling.replace(max_tokens=None).validate(vocab_size=info.vocab_size)
        if size(request.prompts) < _LONG:
            prepared = prepare(request.prompts, self.tokenizer, self.template)
        else:
            loop = asyncio.get_running_loop()
            prepared = await loop.run_in_executor(
                None, prepare, request.prompts, self.tokenizer, self.template
            )
        limits = [resolve_max_tokens(request, ids, info.max_model_len) for ids in prepared.token_ids]
        for limit in limits:
            request.sampling.replace(max_tokens=max(1, limit)).validate()
        return LocalAnswer(self, request, prepared, limits, received)

    def _refresh_metrics(self) -> None:
        self.metrics.info = self.engine.info
        self.metrics.engine_up = self.engine.alive
        self.metrics.engine_restarts = self.engine.restarts
        self.metrics.stats = self.engine.stats


class _Sequence:
    """One choice on its way."""

    def __init__(self, request: GenerateRequest, writer: ChoiceWriter, trail: SequenceTrail) -> None:
        self.request = request
        self.writer = writer
        self.trail = trail
        self.last_token: float | None = None
        self.texts: list[str] = []


class LocalAnswer:
    """See `answer.backend.Answer`."""

    def __init__(
        self,
        backend: LocalBackend,
        request: AnswerRequest,
        prepared: Prepared,
        limits: Sequence[int],
        received: float,
    ) -> None:
        sampling = request.sampling
        self.id = request.id
        self.model = request.model
        self.created = int(received)
        self.seed = secrets.randbits(_SEED_BITS) if sampling.seed is None else sampling.seed
        self.fingerprint = backend.engine.info.fingerprint
        self.prompt_token_ids = prepared.token_ids
        self.usage = Usage(prompt_tokens=sum(map(len, prepared.token_ids)))
        self.num_choices = len(request.prompts) * sampling.n
        self.journey: Journey = backend.journeys.begin(
            request.id,
            endpoint=request.endpoint,
            model=request.model,
            tenant=request.tenant,
            request_id=request.request_id,
            received=received,
        )
        self.journey.template_done(
            self.usage.prompt_tokens,
            template_seconds=prepared.template_seconds,
            tokenize_seconds=prepared.tokenize_seconds,
        )
        self.journey.seed = self.seed
        self.journey.fingerprint = self.fingerprint
        self.journey.token_text = backend.texts.text
        self._backend = backend
        self._engine = backend.engine
        self._metrics = backend.metrics
        self._first_token: float | None = None
        self._last_token: float | None = None
        self._ended = False
        self._sequences = [
            self._sequence(request, prepared, limits[prompt], prompt, choice)
            for prompt in range(len(request.prompts))
            for choice in range(sampling.n)
        ]
        self._chunks = self._run()

    def _sequence(
        self, request: AnswerRequest, prepared: Prepared, limit: int, prompt: int, choice: int
    ) -> _Sequence:
        ids, text = prepared.token_ids[prompt], prepared.texts[prompt]
        index = prompt * request.sampling.n + choice
        score_only = limit == 0
        sampling = request.sampling.replace(seed=self.seed, max_tokens=max(1, limit), n=1)
        echo = None
        if request.echo:
            echo = echo_of(ids, text, sampling, self._backend.tokenizer)
            sampling = sampling.replace(prompt_logprobs=sampling.logprobs)
        generate = GenerateRequest(
            id=f"{request.id}-{index}",
            group=request.id,
            prompt=ids,
            sampling=sampling,
            # Of its own prompt: a prompt in a list is answered as if it were alone.
            choice=choice,
            priority=request.priority,
            tenant=request.tenant,
            salt=request.salt,
            deadline=request.deadline,
            arrival=self.journey.received,
        )
        writer = ChoiceWriter(
            index, sampling, self._backend.tokenizer, self._backend.texts, echo=echo, score_only=score_only
        )
        trail = self.journey.add_sequence(
            generate.id, prompt_tokens=len(ids), prompt=text if text is not None else None
        )
        return _Sequence(generate, writer, trail)

    # --- the stream --------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    async def aclose(self) -> None:
        """Stop: the engine is told at once to end what still runs."""
        await self._chunks.aclose()
        self._end("abort")

    def sent(self, seconds: float) -> None:
        self.journey.send_seconds += seconds

    async def _run(self) -> AsyncGenerator[list[Chunk], None]:
        outcome = "error"
        try:
            if len(self._sequences) == 1:
                chunks = self._run_one(self._sequences[0])
            else:
                chunks = self._run_many(self._sequences)
            try:
                async for chunk in chunks:
                    yield chunk
            finally:
                await chunks.aclose()
            reasons = [sequence.writer.finish_reason or "error" for sequence in self._sequences]
            outcome = max(reasons, key=_BADNESS.__getitem__)
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "abort"
            raise
        except Overloaded:
            outcome = "rejected"
            raise
        finally:
            self._end(outcome)

    async def _run_one(self, sequence: _Sequence) -> AsyncGenerator[list[Chunk], None]:
        deltas: Any = self._engine.generate(sequence.request)
        try:
            async for delta in deltas:
                yield [self._write(sequence, delta)]
                if sequence.writer.finish_reason is not None:
                    return
        finally:
            await deltas.aclose()

    async def _run_many(self, sequences: Sequence[_Sequence]) -> AsyncGenerator[list[Chunk], None]:
        """All sequences at once; a batch holds what came in the meantime."""
        ready: deque[Chunk | Exception] = deque()
        wake = asyncio.Event()

        async def pump(sequence: _Sequence) -> None:
            try:
                async for (chunk,) in self._run_one(sequence):
                    ready.append(chunk)
                    wake.set()
            except Exception as error:
                ready.append(error)
                wake.set()

        tasks = [asyncio.create_task(pump(sequence)) for sequence in sequences]
        running = len(tasks)
        try:
            while running:
                await wake.wait()
                wake.clear()
                batch: list[Chunk] = []
                while ready:
                    item = ready.popleft()
                    if isinstance(item, Exception):
                        raise item
                    running -= item.finish_reason is not None
                    batch.append(item)
                if batch:
                    yield batch
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _write(self, sequence: _Sequence, delta: Delta) -> Chunk:
        finish = delta.finish
        if finish is not None and finish.reason in (FinishReason.ABORT, FinishReason.ERROR):
            raise TokentrailError(finish.error or "The engine gave the request up.", code=finish.reason.value)
        now = time.time()
        writer = sequence.writer
        before = writer.num_tokens
        start = time.perf_counter()
        chunk = writer.push(delta)
        self.journey.detokenize_seconds += time.perf_counter() - start
        new = writer.num_tokens - before
        self.usage.completion_tokens += new
        self._observe(sequence, now, new)
        if delta.cached_tokens is not None and sequence.request.choice == 0:
            self.usage.cached_tokens += delta.cached_tokens
        if self.journey.keep_text:
            sequence.texts.append(chunk.text)
        if chunk.finish_reason is not None:
            self.journey.sequence_done(
                sequence.trail, chunk.finish_reason, writer.num_tokens, "".join(sequence.texts)
            )
        return chunk

    # --- measuring ---------------------------------------------------------------------------------

    def _observe(self, sequence: _Sequence, now: float, tokens: int) -> None:
        if not tokens:
            return
        if self._first_token is None:
            self._first_token = now
            self._metrics.first_token.observe(now - self.journey.received)
        if sequence.last_token is not None:
            self._metrics.inter_token.observe((now - sequence.last_token) / tokens, tokens)
        sequence.last_token = self._last_token = now

    def _end(self, outcome: str) -> None:
        if self._ended:
            return
        self._ended = True
        self.journey.end(outcome)
        metrics = self._metrics
        metrics.requests[outcome] += 1
        if outcome == "rejected":
            return
        now = time.time()
        metrics.latency.observe(now - self.journey.received)
        metrics.request_prompt_tokens.observe(self.usage.prompt_tokens)
        metrics.request_generation_tokens.observe(self.usage.completion_tokens)
        between = self.usage.completion_tokens - len(self._sequences)
        if self._first_token is not None and self._last_token is not None and between > 0:
            seconds = (self._last_token - self._first_token) * len(self._sequences)
            metrics.per_output_token.observe(seconds / between)
        queue = self.journey.queue_seconds()
        if queue is not None:
            metrics.queue_time.observe(queue)
