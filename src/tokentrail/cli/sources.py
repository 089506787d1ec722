"""Where `chat` and `generate` get their answers: an engine of their own, or a server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Union

import typer

from tokentrail.cli.options import KEY_VARIABLE, bearer, note
from tokentrail.cli.terminal import loading
from tokentrail.protocol.errors import TokentrailError

if TYPE_CHECKING:
    import httpx

    from tokentrail.answer import LocalBackend
    from tokentrail.cli.options import EngineOptions
    from tokentrail.engine import EngineClient, EngineConfig
    from tokentrail.journey import JourneyView
    from tokentrail.protocol import SamplingParams

Message = dict[str, Any]
Prompt = Union[str, "list[Message]"]
"""Text to go on with, or a conversation to answer."""

REMOTE = "Another server"


@dataclass(frozen=True)
class RemoteOptions:
    """Ask a server instead of loading a model here."""

    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            "--base-url",
            help="OpenAI-compatible server to ask, with or without /v1; --model is then a name it knows.",
            rich_help_panel=REMOTE,
        ),
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar=KEY_VARIABLE,
            show_envvar=True,
            help="Key to send to it.",
            rich_help_panel=REMOTE,
        ),
    ] = None


@dataclass
class Reply:
    """One answer: what it was, filled in while its text is streamed."""

    started: float = field(default_factory=time.perf_counter)
    id: str = ""
    model: str = ""
    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seed: int | None = None
    first_token_seconds: float | None = None
    seconds: float = 0.0
    engine_rate: float | None = None
    """Tokens per second as the answer's journey tells it; None: only what arrived here is known."""

    def add(self, text: str) -> None:
        now = time.perf_counter() - self.started
        if text and self.first_token_seconds is None:
            self.first_token_seconds = now
        self.text += text
        self.seconds = now

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first, by the time from the first to the last: as journeys count it."""
        if self.engine_rate is not None:
            return self.engine_rate
        if self.first_token_seconds is None or self.completion_tokens < 2:
            return None
        seconds = self.seconds - self.first_token_seconds
        return (self.completion_tokens - 1) / seconds if seconds > 0 else None


class Source(Protocol):
    """Something that answers."""

    model: str

    def stream(self, prompt: Prompt, sampling: SamplingParams, reply: Reply) -> Iterator[str]:
        """Pieces of the answer's text. Closing the iterator, or Ctrl-C, stops the answer."""
        ...

    def journey(self, reply: Reply) -> JourneyView:
        """What happened to it."""
        ...

    def close(self) -> None: ...


def open_source(
    engine: EngineOptions,
    remote: RemoteOptions,
    model: str | None = None,
    *,
    default_max_tokens: int | None = None,
    unset: Collection[str] = (),
) -> Source:
    """The server that `remote` names, or else an engine with `engine`'s settings.

    `default_max_tokens`: of requests that do not say; None: all the context has left. `unset`: sampling parameters that
    are left to the model's makers, or to the server.
    """
    if remote.url is not None:
        return RemoteSource(remote.url, remote.api_key, engine.model or model, default_max_tokens, unset)
    config = engine.engine_config(model)
    with loading(config.name or config.model or "the demo model") as shown:
        source = LocalSource(
            config,
            engine.chat_template,
            default_max_tokens,
            generation_config=engine.generation_config,
            unset=unset,
            progress=shown.progress,
        )
    info = source.info
    if shown.was_long:
        note(f"loaded {info.loaded}.")
    if info.max_model_len < info.wanted_model_len:
        note(
            f"the context was cut from {info.wanted_model_len} to {info.max_model_len} tokens, which is what the KV "
            "cache holds; --kv-cache-memory makes it larger."
        )
    return source


class LocalSource:
    """An engine process of this command's own."""

    def __init__(
        self,
        config: EngineConfig,
        chat_template: str | None = None,
        default_max_tokens: int | None = None,
        *,
        generation_config: str = "auto",
        unset: Collection[str] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        from tokentrail.cli.background import Background

        self._default_max_tokens = default_max_tokens
        self._unset = unset
        self._background = Background().__enter__()
        try:
            self._engine, self._backend = self._background.call(
                _open_backend(config, chat_template, generation_config, progress)
            )
        except BaseException:
            self._background.__exit__(None, None, None)
            raise
        self.model = self._backend.models()[0].id
        self.info = self._engine.info

    def stream(self, prompt: Prompt, sampling: SamplingParams, reply: Reply) -> Iterator[str]:
        return self._background.stream(self._answer(prompt, sampling, reply))

    async def _answer(self, prompt: Prompt, sampling: SamplingParams, reply: Reply) -> AsyncIterator[str]:
        import uuid

        from tokentrail.answer import AnswerRequest, ChatPrompt, TextPrompt

        answer = await self._backend.open(
            AnswerRequest(
                id=f"cli-{uuid.uuid4().hex[:16]}",
                prompts=[TextPrompt(prompt) if isinstance(prompt, str) else ChatPrompt(messages=prompt)],
                sampling=sampling,
                unset=self._unset,
                model=self.model,
                endpoint="tokentrail",
                default_max_tokens=self._default_max_tokens,
            )
        )
        reply.id, reply.model, reply.seed = answer.id, answer.model, answer.seed
        reply.prompt_tokens = answer.usage.prompt_tokens
        try:
            async for chunks in answer:
                for chunk in chunks:
                    reply.finish_reason = chunk.finish_reason
                    reply.add(chunk.text)
                    reply.completion_tokens = answer.usage.completion_tokens
                    if chunk.text:
                        yield chunk.text
        finally:
            await answer.aclose()
            if (journey := self._backend.journeys.view(reply.id)) is not None:
                reply.first_token_seconds = journey.stages.first_token
                reply.engine_rate = journey.tokens_per_second

    def journey(self, reply: Reply) -> JourneyView:
        view = self._backend.journeys.view(reply.id)
        if view is None:
            raise TokentrailError("The answer left no journey.")
        return view

    def close(self) -> None:
        try:
            self._background.call(self._engine.close())
        finally:
            self._background.__exit__(None, None, None)


async def _open_backend(
    config: EngineConfig,
    template: str | None,
    generation_config: str,
    progress: Callable[[int, int], None] | None,
) -> tuple[EngineClient, LocalBackend]:
    import asyncio

    from tokentrail.engine.client import EngineClient

    engine = EngineClient(config)
    starting = asyncio.ensure_future(engine.start(progress))
    try:
        # While the engine process loads the weights, this one loads what it needs of the text.
        await asyncio.sleep(0)
        from tokentrail.answer.local import LocalBackend
        from tokentrail.answer.parts import load_text_parts
        from tokentrail.journey import JourneyStore

        loop = asyncio.get_running_loop()
        load = partial(
            load_text_parts,
            config.model,
            template,
            name=config.name,
            generation_config=generation_config,
        )
        parts = await loop.run_in_executor(None, load)
        await starting
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await engine.close()
        raise
    return engine, LocalBackend(engine, parts, journeys=JourneyStore(keep_text=True))


class RemoteSource:
    """A server that speaks OpenAI's API."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        model: str | None,
        default_max_tokens: int | None = None,
        unset: Collection[str] = (),
    ) -> None:
        import httpx

        self._unset = unset
        self._default_max_tokens = default_max_tokens
        base = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
        self.url = base if base.endswith("/v1") else f"{base}/v1"
        # No limit on reading: a token may take as long as the server's queue makes it.
        self._client = httpx.Client(headers=bearer(api_key), timeout=httpx.Timeout(30, read=None))
        self.model = model or self._first_model()

    def _first_model(self) -> str:
        models = self._get("models").get("data")
        if not models:
            raise TokentrailError(f"{self.url} names no model; give one with --model.")
        return str(models[0]["id"])

    def _get(self, path: str) -> dict[str, Any]:
        import httpx

        try:
            response = self._client.get(f"{self.url}/{path}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TokentrailError(f"{self.url} does not answer: {error}.") from None
        self._check(response)
        result: dict[str, Any] = response.json()
        return result

    def _check(self, response: httpx.Response) -> None:
        if response.status_code == 200:
            return
        response.read()
        message = response.text
        with contextlib.suppress(ValueError, LookupError, TypeError):
            message = response.json()["error"]["message"]
        raise TokentrailError(f"{self.url} answered {response.status_code}: {message[:300]}")

    def stream(self, prompt: Prompt, sampling: SamplingParams, reply: Reply) -> Iterator[str]:
        import json

        import httpx

        body: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **request_fields(sampling, self._unset),
        }
        if self._default_max_tokens is not None:
            body.setdefault("max_tokens", self._default_max_tokens)
        if isinstance(prompt, str):
            path, body["prompt"] = "completions", prompt
        else:
            path, body["messages"] = "chat/completions", prompt
        try:
            with self._client.stream("POST", f"{self.url}/{path}", json=body) as response:
                self._check(response)
                for line in response.iter_lines():
                    if not line.startswith("data:") or line[5:].strip() == "[DONE]":
                        continue
                    yield from self._event(json.loads(line[5:]), reply)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise TokentrailError(f"{self.url} broke off: {error}.") from None

    def _event(self, event: dict[str, Any], reply: Reply) -> Iterator[str]:
        if event.get("error"):
            error = event["error"]
            raise TokentrailError(f"{self.url}: {error.get('message') if isinstance(error, dict) else error}")
        reply.id = event.get("id") or reply.id
        reply.model = event.get("model") or self.model
        reply.seed = event.get("seed", reply.seed)
        if usage := event.get("usage"):
            reply.prompt_tokens = usage.get("prompt_tokens", 0)
            reply.completion_tokens = usage.get("completion_tokens", 0)
        for choice in event.get("choices", ()):
            reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if text:
                reply.add(text)
                yield text

    def journey(self, reply: Reply) -> JourneyView:
        import msgspec

        from tokentrail.journey import JourneyView

        return msgspec.convert(self._get(f"journeys/{reply.id}"), JourneyView)

    def close(self) -> None:
        self._client.close()


def request_fields(sampling: SamplingParams, unset: Collection[str] = ()) -> dict[str, Any]:
    """Fields of an OpenAI request, without those in `unset`, which are the server's to choose. What only some servers
    know is left out where it says nothing, and nobody has said so.
    """
    fields: dict[str, Any] = {
        name: getattr(sampling, name) for name in ("temperature", "top_p") if name not in unset
    }
    if sampling.max_tokens is not None:
        fields["max_tokens"] = sampling.max_tokens
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    for name, nothing in (("top_k", 0), ("min_p", 0.0), ("repetition_penalty", 1.0), ("ignore_eos", False)):
        value = getattr(sampling, name)
        if name not in unset and value != nothing:
            fields[name] = value
    return fields
