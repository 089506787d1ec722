"""A model of a remote upstream, asked as local engines are."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import sys
import time
from array import array
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from tokentrail.answer.admission import draw_seed
from tokentrail.answer.embedding import EmbeddingRequest, Embeddings
from tokentrail.answer.estimate import estimated
from tokentrail.answer.remote import failures, kinds
from tokentrail.answer.remote.answer import RemoteAnswer
from tokentrail.answer.remote.asking import Asking
from tokentrail.answer.remote.calls import Call, call
from tokentrail.answer.remote.connections import ConnectionPool
from tokentrail.answer.remote.kinds import Kind
from tokentrail.answer.remote.target import KINDS, RemoteTarget
from tokentrail.answer.remote.wire import EmbeddingBody, ModelItem, read_embeddings, read_models
from tokentrail.answer.types import (
    AnswerRequest,
    ChatPrompt,
    InfillPrompt,
    ModelCard,
    ModelDetails,
    Prompt,
    TextPrompt,
    TokensPrompt,
    TokenText,
    Usage,
)
from tokentrail.journey import JourneyStore
from tokentrail.observability import Metrics
from tokentrail.protocol import (
    EngineStats,
    InvalidRequest,
    SamplingDefaults,
    TokentrailError,
    UpstreamError,
)

T = TypeVar("T")

_WAIT_FOR_TOKENS = 30.0
"""Seconds that telling tokens may take."""
_PROBE_TIMEOUT = 10.0


class Probed(msgspec.Struct, frozen=True):
    """What a health probe found."""

    ready: bool
    seconds: float
    """How long the upstream took to say so."""
    problem: str | None = None
    """Why it is not ready, in one line."""


class RemoteBackend:
    """See `answer.backend.Backend`. Connects when it is first asked. To be closed."""

    def __init__(
        self, target: RemoteTarget, *, journeys: JourneyStore | None = None, metrics: Metrics | None = None
    ) -> None:
        """Raises `InvalidRequest`, naming the setting, for a target that cannot be asked."""
        if target.kind is not None and target.kind not in kinds.BY_NAME:
            raise InvalidRequest(
                f"kind must be one of {', '.join(KINDS)}, not {target.kind!r}.", param="kind"
            )
        self.target = target
        self.pool = ConnectionPool(target)
        self.journeys = JourneyStore() if journeys is None else journeys
        self.metrics = Metrics() if metrics is None else metrics
        self.fingerprint = ""
        self._api, self._head = _head(target)
        self._kind = None if target.kind is None else kinds.BY_NAME[target.kind]
        self._context = target.context_length
        self._asking: Asking | None = None
        self._getting_known: asyncio.Task[Asking] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where its connections live: other threads ask for tokens there."""
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        self._created = int(time.time())

    async def aclose(self) -> None:
        """End what runs, and all connections."""
        if self._getting_known is not None:
            self._getting_known.cancel()
        self.pool.close()

    # --- what it is ----------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return not self.pool.closed

    @property
    def stats(self) -> EngineStats:
        return EngineStats(running=self.pool.busy)

    @property
    def kind(self) -> str | None:
        """None: not known yet."""
        return None if self._kind is None else self._kind.name

    def models(self) -> list[ModelCard]:
        target = self.target
        return [
            ModelCard(
                id=target.name,
                created=self._created,
                max_model_len=self._context or 0,
                root=target.model or target.name,
            )
        ]

    def for_model(self, id: str) -> RemoteBackend:
        return self

    def details(self, id: str) -> ModelDetails:
        """What an upstream does not tell is 0 or empty. What it may be able to do it is taken to be, and may refuse."""
        kind = self._kind
        return ModelDetails(
            architecture="" if kind is None else kind.name,
            num_parameters=0,
            num_layers=0,
            num_heads=0,
            num_kv_heads=0,
            hidden_size=0,
            vocab_size=0,
            context_length=self._context or 0,
            max_sequences=self.target.max_connections,
            file=self.target.model or self.target.name,
            file_format="",
            quantization="",
            file_bytes=0,
            fingerprint=self.fingerprint,
            chat_template="",
            bos_token=None,
            eos_token=None,
            calls_tools=True,
            infills=kind is None or "suffix" in kind.knows,
            thinks=True,
            defaults=SamplingDefaults(),
        )

    async def probe(self) -> Probed:
        """Ask for the list of models, by which routing knows whether the upstream is there. Raises nothing."""
        began = time.monotonic()
        try:
            models = await self._models()
        except TokentrailError as error:
            return Probed(False, time.monotonic() - began, error.message)
        seconds = time.monotonic() - began
        name = self.target.model or self.target.name
        # llama.cpp and TGI answer to any name.
        strict = self._kind is not None and self._kind.name in ("vllm", "tokentrail")
        if strict and all(model.id != name for model in models):
            return Probed(False, seconds, f"The upstream has no model {name}.")
        return Probed(True, seconds)

    # --- answers -------------------------------------------------------------------------------------

    async def open(self, request: AnswerRequest) -> RemoteAnswer:
        if request.received is None:
            request.received = time.time()
        if request.reveal or request.begun:
            raise InvalidRequest(
                f"{request.model!r} is answered by another server, which tells no logits. Ask a model that runs here.",
                param="model",
            )
        sampling = request.sampling
        sampling.replace(max_tokens=None, min_tokens=0).validate()
        asking = self._asking or await self._known()
        assert self._kind is not None
        seed = draw_seed() if sampling.seed is None else sampling.seed
        # Some cloud APIs know no seeds: they are sent one only if the request has one.
        sent = seed if sampling.seed is not None or "seed_always" in self._kind.knows else None
        asked = asking.answer(request, sent)
        return RemoteAnswer(self, request, asked, seed, estimate=estimated(request.prompts))

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        if request.received is None:
            request.received = time.time()
        asking = self._asking or await self._known()
        body = asking.embedding(request)
        name = self.target.name
        journey = self.journeys.begin_for(request)
        journey.served_by = name
        outcome = "error"
        try:
            data = await self._call(
                "POST", self._api + "/embeddings", body, self.target.timeouts.first_token_s, request.id
            )
            try:
                made = read_embeddings(data)
                vectors = _vectors(made, len(request.prompts))
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
                what = str(error) if type(error) is ValueError else "an answer that is no list of embeddings"
                raise failures.unreadable(self.target, what, sent=False) from None
            told = made.usage.prompt_tokens if made.usage is not None else None
            usage = Usage(prompt_tokens=estimated(request.prompts) if told is None else told)
            journey.prompt_tokens = usage.prompt_tokens
            outcome = "stop"
        except asyncio.CancelledError:
            outcome = "abort"
            raise
        except UpstreamError as error:
            self.metrics.upstream_failures[name, error.code or ""] += 1
            raise
        finally:
            journey.end(outcome)
            self.metrics.requests[outcome] += 1
            self.metrics.latency.observe(time.time() - journey.received)
        return Embeddings(
            id=request.id, model=request.model, created=int(journey.received), vectors=vectors, usage=usage
        )

    # --- tokens, where the upstream tells them ---------------------------------------------------------

    def render(self, prompt: ChatPrompt) -> str:
        """From another thread than the event loop's."""
        return self._wait(self._render(prompt))

    def tokenize(
        self, prompt: Prompt, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """From another thread than the event loop's, or of a prompt that has tokens already."""
        if isinstance(prompt, TokensPrompt):
            return list(prompt.token_ids)
        return self._wait(self._tokenize(prompt, add_special_tokens, parse_special))

    def detokenize(self, ids: Sequence[int]) -> str:
        """From another thread than the event loop's."""
        return self._wait(self._detokenize(list(ids))) if ids else ""

    def token_texts(self, ids: Sequence[int]) -> list[TokenText]:
        raise self._untold("The texts of single tokens are")

    def tokenizer_info(self) -> dict[str, Any]:
        return {"tokenizer_class": None, "bos_token": None, "eos_token": None, "chat_template": None}

    async def room(self, request: AnswerRequest) -> int:
        """Tokens that the first prompt leaves of the context; at least 1."""
        prompt = request.prompts[0]
        ids = (
            prompt.token_ids if isinstance(prompt, TokensPrompt) else await self._tokenize(prompt, True, True)
        )
        assert self._context is not None
        return max(1, self._context - len(ids))

    async def _render(self, prompt: ChatPrompt) -> str:
        kind = await self._telling()
        if kind.tokenize == "llama.cpp":
            tools: dict[str, Any] = {"tools": prompt.tools} if prompt.tools else {}
            said = await self._json("/apply-template", {"messages": prompt.messages, **tools})
            return str(said.get("prompt", ""))
        return await self._detokenize(await self._tokenize(prompt, False, True))

    async def _tokenize(self, prompt: Prompt, add_special_tokens: bool, parse_special: bool) -> list[int]:
        kind = await self._telling()
        if isinstance(prompt, InfillPrompt):
            raise self._untold("The tokens of a prompt with a suffix are")
        if kind.tokenize == "llama.cpp":
            text = await self._render(prompt) if isinstance(prompt, ChatPrompt) else ""
            if isinstance(prompt, TextPrompt):
                text = prompt.text
                add_special_tokens = add_special_tokens and prompt.add_special_tokens
            said = await self._json(
                "/tokenize",
                {"content": text, "add_special": add_special_tokens, "parse_special": parse_special},
            )
        else:
            if not parse_special and kind is not kinds.TOKENTRAIL:
                raise self._untold("The tokens of a text without its control tokens are")
            body: dict[str, Any] = {"model": self.target.model or self.target.name}
            if isinstance(prompt, ChatPrompt):
                body |= {
                    "messages": prompt.messages,
                    "add_generation_prompt": prompt.add_generation_prompt,
                    "add_special_tokens": prompt.add_special_tokens,
                }
            elif isinstance(prompt, TextPrompt):
                special = add_special_tokens and prompt.add_special_tokens
                if parse_special:
                    body |= {"prompt": prompt.text, "add_special_tokens": special}
                else:
                    body = {"content": prompt.text, "add_special": special, "parse_special": False}
            said = await self._json("/tokenize", body)
        tokens = said.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(id, int) for id in tokens):
            raise failures.unreadable(self.target, "tokens that are none", sent=False)
        return tokens

    async def _detokenize(self, ids: list[int]) -> str:
        await self._telling()
        said = await self._json(
            "/detokenize", {"model": self.target.model or self.target.name, "tokens": ids}
        )
        text = said.get("prompt", said.get("content"))
        if not isinstance(text, str):
            raise failures.unreadable(self.target, "a text of tokens that is none", sent=False)
        return text

    async def _telling(self) -> Kind:
        """The upstream's kind, if it tells tokens."""
        await self._known()
        assert self._kind is not None
        if self._kind.tokenize is None:
            raise self._untold("Tokens are")
        return self._kind

    def _untold(self, what: str) -> InvalidRequest:
        kind = self.kind or "remote"
        return InvalidRequest(
            f"{what} not told for the model {self.target.name}: its upstream ({kind}) has no route for it.",
            code="not_supported",
        )

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it on the event loop, which waits for nobody: so never from there."""
        loop = self._loop
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not None or loop is None or loop.is_closed():
            work.close()
            raise self._untold("Tokens, at this place, are")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(_WAIT_FOR_TOKENS)
        except TimeoutError:
            future.cancel()
            raise failures.silent(self.target, _WAIT_FOR_TOKENS, sent=False) from None

    # --- getting to know the upstream ------------------------------------------------------------------

    async def _known(self) -> Asking:
        """Once: what kind of upstream it is, and how long its context."""
        if self._asking is not None:
            return self._asking
        if self._getting_known is None or self._getting_known.done():
            self._getting_known = asyncio.ensure_future(self._get_known())
        # Who asks may go away; others wait for the same.
        return await asyncio.shield(self._getting_known)

    async def _get_known(self) -> Asking:
        if self._kind is None:
            await self._models()
            if self._kind is None:
                self._kind = await self._guess()
        elif self._context is None and self._kind.name in ("vllm", "tokentrail", "llama.cpp"):
            await self._models()
        self._asking = Asking(self.target, self._kind, self._context)
        return self._asking

    async def _models(self) -> list[ModelItem]:
        """The upstream's list of models, and what it tells of itself by the way."""
        data = await self._call("GET", self._api + "/models", None, _PROBE_TIMEOUT)
        try:
            models = read_models(data).data
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise failures.unreadable(self.target, "a list of models that is none", sent=False) from None
        name = self.target.model or self.target.name
        ours = next((model for model in models if model.id == name), models[0] if models else ModelItem())
        owners = {"vllm": kinds.VLLM, "llamacpp": kinds.LLAMA_CPP, "tokentrail": kinds.TOKENTRAIL}
        if self._kind is None:
            self._kind = owners.get(ours.owned_by or "")
        if self.target.context_length is None:
            self._context = ours.max_model_len or self._context
        return models

    async def _guess(self) -> Kind:
        """TGI lists its models as OpenAI does, and has a route of its own that tells of it."""
        try:
            said = await self._json("/info", None)
        except (UpstreamError, InvalidRequest):
            return kinds.OPENAI
        if "model_id" not in said or "max_total_tokens" not in said:
            return kinds.OPENAI
        if self._context is None and isinstance(said["max_total_tokens"], int):
            self._context = said["max_total_tokens"]
        return kinds.TGI

    async def _json(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """Of a route beside /v1."""
        data = await self._call("GET" if body is None else "POST", path, body, _WAIT_FOR_TOKENS)
        try:
            said = json.loads(data)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise failures.unreadable(self.target, "an answer that is no object in JSON", sent=False)
        return said

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float, id: str = ""
    ) -> bytes:
        self._loop = asyncio.get_running_loop()
        data = b"" if body is None else msgspec.json.encode(body)
        head = self._head.request(method, path, data, id)
        return await call(self.pool, self.target, Call(head, seconds))

    def wire(self, path: str, body: bytes, id: str) -> bytes:
        return self._head.request("POST", self._api + path, body, id)


class _Head:
    """The heads of requests, of which only little differs."""

    def __init__(self, prefix: str, fields: list[tuple[str, str]]) -> None:
        self._prefix = prefix
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields)

    def request(self, method: str, path: str, body: bytes, id: str) -> bytes:
        kind = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if method == "POST" else ""
        )
        named = f"x-request-id: {id}\r\n" if id else ""
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._fields}{kind}{named}\r\n"
        return head.encode("latin-1") + body


def _head(target: RemoteTarget) -> tuple[str, _Head]:
    """Where the API is below the upstream's root, and the heads of requests. Raises `InvalidRequest`."""
    from tokentrail import __version__

    parts = urlsplit(target.url)
    path = parts.path.rstrip("/")
    # A path is taken as it is, as OpenAI's clients take theirs; without one it is the usual one.
    root = path.removesuffix("/v1")
    api = path.removeprefix(root) if path else "/v1"
    fields = [
        ("host", parts.netloc),
        ("accept", "application/json, text/event-stream"),
        ("user-agent", f"tokentrail/{__version__}"),
    ]
    if target.api_key:
        fields.append(("authorization", f"Bearer {target.api_key}"))
    fields += target.headers.items()
    if not root.isascii() or not root.isprintable() or " " in root or not parts.netloc.isascii():
        raise InvalidRequest("url must be written in ASCII, without spaces.", param="url")
    for name, value in fields:
        where = "api_key" if name == "authorization" else f"headers.{name}"
        written = value.isprintable() and value.isascii() and name.isascii() and name.isprintable()
        if not written or not name or any(sign in name for sign in ' :,;()"'):
            raise InvalidRequest(f"{where} must be printable ASCII.", param=where)
        if name.lower() in ("content-length", "transfer-encoding", "connection", "accept-encoding", "expect"):
            raise InvalidRequest(f"headers must not hold {name}.", param="headers")
    return api, _Head(root, fields)


def _vectors(made: EmbeddingBody, count: int) -> list[bytes]:
    """In the order of the prompts. Raises `ValueError`."""
    if len(made.data) != count:
        raise ValueError(f"{len(made.data)} embeddings of {count}")
    vectors: list[bytes | None] = [None] * count
    for at, item in enumerate(made.data):
        index = at if item.index is None else item.index
        if not 0 <= index < count or vectors[index] is not None:
            raise ValueError("embeddings that are numbered wrongly")
        if isinstance(item.embedding, str):
            try:
                vector = base64.b64decode(item.embedding, validate=True)
            except binascii.Error:
                vector = b"?"
            if not vector or len(vector) % 4:
                raise ValueError("an embedding that is none")
        else:
            numbers = array("f", item.embedding)
            if sys.byteorder == "big":
                numbers.byteswap()
            vector = numbers.tobytes()
        vectors[index] = vector
    return [vector for vector in vectors if vector is not None]
