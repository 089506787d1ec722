"""Answers from an engine process on this machine."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from tokentrail.answer.admission import Admission, AnswerSequence, Desk
from tokentrail.answer.embedding import EmbeddingJob, EmbeddingRequest, Embeddings, prepare_embedding
from tokentrail.answer.local_embedding import compute
from tokentrail.answer.parts import TextParts, load_text_parts
from tokentrail.answer.prompts import check_length, check_token_id, prepare, render, size
from tokentrail.answer.types import (
    AnswerRequest,
    ChatPrompt,
    Chunk,
    ModelCard,
    ModelDetails,
    Prompt,
    TextPrompt,
    TokenText,
)
from tokentrail.engine.replicas import ReplicaSet
from tokentrail.journey import JourneyStore
from tokentrail.observability import Metrics
from tokentrail.protocol import (
    DeadlineExceeded,
    Delta,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    InvalidRequest,
    Overloaded,
    StepRecord,
    TokentrailError,
)

__all__ = ["Engine", "LocalAnswer", "LocalBackend", "TextParts", "load_text_parts"]

# Characters of prompt from which tokenizing may hold up other streams, and goes to a thread.
_LONG = 20_000
_LONGEST_PREPARATION = 30.0
"""Seconds."""


class Engine(Protocol):
    """What is needed of an engine: `engine.client.EngineClient` has it, and tests bring their own."""

    @property
    def restarts(self) -> int: ...

    @property
    def info(self) -> EngineInfo: ...

    @property
    def alive(self) -> bool: ...

    @property
    def stats(self) -> EngineStats: ...

    def submit(
        self, request: GenerateRequest, sink: Callable[[Delta | TokentrailError], None]
    ) -> Callable[[], None]: ...

    async def block_states(self) -> list[bytes]: ...

    def add_step_listener(self, listener: Callable[[StepRecord, list[Delta]], None]) -> None: ...

    def add_resume_listener(self, listener: Callable[[list[str]], None]) -> None: ...


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
        self.journeys = JourneyStore() if journeys is None else journeys
        self.metrics = Metrics() if metrics is None else metrics
        self.desk = Desk(parts, self.journeys, self.metrics)
        created = int(time.time())
        self._cards = [
            ModelCard(id=name, created=created, max_model_len=engine.info.max_model_len, root=parts.name)
            for name in names or (parts.name,)
        ]
        base = self._cards[0].id
        for adapter in engine.info.adapters:
            if any(card.id == adapter.name for card in self._cards):
                raise InvalidRequest(
                    f"--lora {adapter.name}: this is already the name of a model; choose another.",
                    param="lora",
                )
            self._cards.append(
                ModelCard(
                    id=adapter.name,
                    created=created,
                    max_model_len=engine.info.max_model_len,
                    root=adapter.path,
                    parent=base,
                )
            )
        self.tell_metrics()
        engine.add_step_listener(self.journeys.on_step)
        engine.add_resume_listener(self.journeys.on_resume)

    @property
    def ready(self) -> bool:
        return self.engine.alive

    @property
    def stats(self) -> EngineStats:
        return self.engine.stats

    def models(self) -> list[ModelCard]:
        return self._cards

    def details(self, id: str) -> ModelDetails:
        parts, info = self.desk.parts, self.engine.info
        config = parts.config
        assert config is not None
        tokens = self.tokenizer_info()
        return ModelDetails(
            architecture=info.architecture,
            num_parameters=info.num_parameters,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            hidden_size=config.hidden_size,
            vocab_size=info.vocab_size,
            context_length=config.max_position,
            max_sequences=info.max_num_seqs,
            file=parts.path.name,
            file_format="gguf" if parts.path.suffix.lower() == ".gguf" else "safetensors",
            quantization=parts.quantization,
            file_bytes=parts.file_bytes,
            fingerprint=info.fingerprint_with(id),
            chat_template=tokens["chat_template"],
            bos_token=tokens["bos_token"],
            eos_token=tokens["eos_token"],
            calls_tools=parts.template.takes_tools or parts.formats.tools is not None,
            infills=parts.infill is not None,
            thinks=parts.formats.reasoning is not None,
            defaults=parts.defaults,
        )

    def for_model(self, id: str) -> LocalBackend:
        return self

    def render(self, prompt: ChatPrompt) -> str:
        return render(prompt, self.desk.parts.template)

    def tokenize(
        self, prompt: Prompt, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        tokenizer = self.desk.parts.tokenizer
        if isinstance(prompt, TextPrompt) and not (add_special_tokens and parse_special):
            check_length(prompt.text, "prompt", tokenizer, self.engine.info.max_model_len)
            return tokenizer.encode(
                prompt.text, add_special_tokens=add_special_tokens, parse_special=parse_special
            )
        parts = self.desk.parts
        return prepare([prompt], tokenizer, parts.template, self.engine.info.max_model_len).token_ids[0]

    def token_texts(self, ids: Sequence[int]) -> list[TokenText]:
        for id in ids:
            check_token_id(id, self.desk.parts.tokenizer, "tokens")
        return [self.desk.texts[id] for id in ids]

    def detokenize(self, ids: Sequence[int]) -> str:
        tokenizer = self.desk.parts.tokenizer
        for id in ids:
            check_token_id(id, tokenizer, "tokens")
        return tokenizer.decode(ids, skip_special_tokens=False)

    def tokenizer_info(self) -> dict[str, Any]:
        tokenizer, template = self.desk.parts.tokenizer, self.desk.parts.template

        def text(id: int | None) -> str | None:
            return None if id is None else tokenizer.id_to_token(id)

        return {
            "tokenizer_class": type(tokenizer).__name__,
            "bos_token": text(tokenizer.bos_token_id),
            "eos_token": text(next(iter(self.engine.info.eos_token_ids), None)),
            "chat_template": template.source,
        }

    async def open(self, request: AnswerRequest) -> LocalAnswer:
        if request.received is None:
            request.received = time.time()
        info = self.engine.info
        self.desk.check(request, info)
        chat = request.chat
        # Grammars take a while, and the first of them the import of a library.
        light = request.sampling.structured_outputs is None and (
            chat is None or (not chat.tools and chat.thinking_token_budget is None)
        )
        own_template = any(isinstance(prompt, ChatPrompt) and prompt.template for prompt in request.prompts)
        if light and not own_template and size(request.prompts) < _LONG:
            prepared = self.desk.prepare(request, info)
        else:
            preparing = asyncio.get_running_loop().run_in_executor(None, self.desk.prepare, request, info)
            left = math.inf if request.deadline is None else request.deadline - time.time()
            try:
                prepared = await asyncio.wait_for(preparing, min(left, _LONGEST_PREPARATION))
            except asyncio.TimeoutError:
                if left < _LONGEST_PREPARATION:
                    raise request.late() from None
                raise InvalidRequest(
                    f"The prompt or the answer's schema took more than {_LONGEST_PREPARATION:g} seconds to "
                    "prepare. Make it smaller or simpler."
                ) from None
        return LocalAnswer(self.engine, self.desk.admit(request, prepared, info))

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        if request.received is None:
            request.received = time.time()
        info = self.engine.info
        if size(request.prompts) < _LONG:
            prepared = prepare_embedding(self.desk, request, info)
        else:
            preparing = asyncio.get_running_loop().run_in_executor(
                None, prepare_embedding, self.desk, request, info
            )
            try:
                prepared = await asyncio.wait_for(preparing, _LONGEST_PREPARATION)
            except asyncio.TimeoutError:
                raise InvalidRequest(
                    f"The {request.field} took more than {_LONGEST_PREPARATION:g} seconds to prepare. Make it smaller."
                ) from None
        return await compute(self.engine, EmbeddingJob(self.desk, request, prepared, info))

    def tell_metrics(self) -> None:
        """From now on its engine's numbers are those of `metrics`."""
        self.metrics.before_scrape.append(self._refresh_metrics)
        self.metrics.block_maps.append(self.engine.block_states)

    def _refresh_metrics(self) -> None:
        if isinstance(self.engine, ReplicaSet):
            self.metrics.replicas = [
                (replica.alive, replica.restarts, replica.stats) for replica in self.engine.replicas
            ]
            self.metrics.moved = self.engine.moved
        self.metrics.info = self.engine.info
        self.metrics.engine_up = self.engine.alive
        self.metrics.engine_restarts = self.engine.restarts
        self.metrics.stats = self.engine.stats


class LocalAnswer:
    """See `answer.backend.Answer`."""

    def __init__(self, engine: Engine, admission: Admission) -> None:
        self.id = admission.request.id
        self.model = admission.request.model
        self.created = int(admission.journey.received)
        self.seed = admission.seed
        self.fingerprint = admission.fingerprint
        self.prompt_token_ids = admission.prompt_token_ids
        self.usage = admission.usage
        self.timing = admission.timing
        self.sampling = admission.request.sampling
        self.num_choices = len(admission.sequences)
        self.headers: dict[str, str] = {}
        self._engine = engine
        self._admission = admission
        self._chunks = self._run()
        self._ready: list[Chunk] = []
        """Not handed on yet."""
        self._take: Callable[[Chunk], bool] | None = None
        self._error: Exception | None = None
        self._wake: asyncio.Future[None] | None = None
        self._unfinished = 0
        self._drops: list[Callable[[], None]] = []
        """End in the engine whatever does not know yet that it is over."""

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        self._take = None
        for number, chunk in enumerate(self._ready):
            if not take(chunk):
                del self._ready[:number]
                return
        self._ready.clear()
        self._take = take

    async def aclose(self) -> None:
        """Stop: the engine is told at once to end what still runs."""
        await self._chunks.aclose()
        self._admission.end("abort" if self._admission.request.handling.refusal is None else "rejected")

    def sent(self, seconds: float) -> None:
        self._admission.journey.send_seconds += seconds

    async def _run(self) -> AsyncGenerator[list[Chunk], None]:
        admission = self._admission
        outcome = "error"
        deadline = admission.request.deadline
        timer: asyncio.TimerHandle | None = None
        try:
            self._unfinished = len(admission.sequences)
            for sequence in admission.sequences:
                self._drops.append(self._submit(sequence))
            if deadline is not None:
                # The engine keeps to it too, but may just be starting, or hang.
                left = max(0.0, deadline - time.time())
                timer = asyncio.get_running_loop().call_later(left, self._expire)
            while True:
                if self._ready:
                    ready, self._ready = self._ready, []
                    yield ready
                elif self._error is not None:
                    raise self._error
                elif not self._unfinished:
                    break
                else:
                    self._wake = asyncio.get_running_loop().create_future()
                    await self._wake
            outcome = admission.outcome
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "abort"
            raise
        except Overloaded:
            outcome = "rejected"
            raise
        except DeadlineExceeded:
            outcome = "timeout"
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._drop()
            admission.end(outcome)

    def _drop(self) -> None:
        for drop in self._drops:
            drop()

    def _expire(self) -> None:
        """The time is up, though who iterates may be busy with a client that reads slowly."""
        if self._error is None and self._unfinished:
            self._error = self._admission.request.late()
            self._take = None
            self._drop()
            self._stir()

    def _submit(self, sequence: AnswerSequence) -> Callable[[], None]:
        """Called in the very call in which a step of the engine arrives; nobody is woken for what is taken."""
        write = self._admission.write
        writer = sequence.writer

        def sink(item: Delta | TokentrailError) -> None:
            if self._error is not None or writer.finish_reason is not None:
                return
            try:
                if isinstance(item, TokentrailError):
                    raise item
                chunk = write(sequence, item)
                over = chunk.finish_reason is not None
                if over:
                    self._unfinished -= 1
                    drop()
                take = self._take
                if take is not None and take(chunk):
                    if not self._unfinished:
                        self._stir()
                    return
                self._take = None
                self._ready.append(chunk)
            except Exception as error:
                self._error = error
            self._stir()

        drop = self._engine.submit(sequence.request, sink)
        return drop

    def _stir(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
