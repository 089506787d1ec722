"""Every endpoint that answers with text, through its own unmodified client: synchronous and asynchronous, streamed and
whole, with a text whose characters are cut by tokens. What clients do beyond that is in the tests of each dialect.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import huggingface_hub
import ollama
import openai
import pytest
from scripted_server import TEXT, ScriptedServer

from tokentrail.answer.parts import TextParts

MODEL = "tgi"
"""What the client `text-generation` asks for, whatever there is."""
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
SAID = f"{TEXT} 你好 👩‍👩‍👧‍👦 e\u0301\u0323 नमस्ते 🏳️‍🌈\n\u2028 end"

Ask = Callable[[str, bool, bool], Any]
"""(the server's address, asynchronously, streamed) → the text, or something that gives it when it is awaited."""


def each(pieces: Any, text: Callable[[Any], str | None]) -> Any:
    """The texts of a stream's pieces, joined; `pieces` may have to be awaited, or be iterated asynchronously."""
    if hasattr(pieces, "__aiter__") or inspect.isawaitable(pieces):

        async def joined() -> str:
            stream = await pieces if inspect.isawaitable(pieces) else pieces
            return "".join([text(piece) or "" async for piece in stream])

        return joined()
    return "".join([text(piece) or "" for piece in pieces])


def one(answer: Any, text: Callable[[Any], str | None]) -> Any:
    if inspect.isawaitable(answer):

        async def found() -> str:
            return text(await answer) or ""

        return found()
    return text(answer)


def openai_client(url: str, later: bool) -> Any:
    kind = openai.AsyncOpenAI if later else openai.OpenAI
    return kind(api_key="none", base_url=f"{url}/v1", max_retries=0)


def openai_chat(url: str, later: bool, stream: bool) -> Any:
    asked = openai_client(url, later).chat.completions.create(model=MODEL, messages=MESSAGES, stream=stream)
    if stream:
        return each(asked, lambda chunk: chunk.choices[0].delta.content)
    return one(asked, lambda answer: answer.choices[0].message.content)


def openai_chat_helper(url: str, later: bool, stream: bool) -> Any:
    """`chat.completions.stream`, which puts the whole together itself; `parse` is its sibling."""
    chat = openai_client(url, later).chat.completions
    if not stream:
        return one(
            chat.parse(model=MODEL, messages=MESSAGES), lambda answer: answer.choices[0].message.content
        )
    manager = chat.stream(model=MODEL, messages=MESSAGES)
    if not later:
        with manager as events:
            return events.get_final_completion().choices[0].message.content

    async def final() -> str:
        async with manager as events:
            return (await events.get_final_completion()).choices[0].message.content

    return final()


def openai_completions(url: str, later: bool, stream: bool) -> Any:
    client = openai_client(url, later)
    asked = client.completions.create(model=MODEL, prompt="Hi", max_tokens=300, stream=stream)
    read = each if stream else one
    return read(asked, lambda answer: answer.choices[0].text)


def openai_responses(url: str, later: bool, stream: bool) -> Any:
    asked = openai_client(url, later).responses.create(model=MODEL, input="Hi", stream=stream)
    if stream:
        return each(asked, lambda event: event.delta if event.type == "response.output_text.delta" else None)
    return one(asked, lambda answer: answer.output_text)


def anthropic_messages(url: str, later: bool, stream: bool) -> Any:
    kind: Any = anthropic.AsyncAnthropic if later else anthropic.Anthropic
    messages = kind(api_key="none", base_url=url, max_retries=0).messages
    asked = messages.create(model=MODEL, messages=MESSAGES, max_tokens=300, stream=stream)
    if stream:
        return each(asked, lambda event: getattr(getattr(event, "delta", None), "text", None))
    return one(asked, lambda answer: answer.content[0].text)


def ollama_client(url: str, later: bool) -> Any:
    return (ollama.AsyncClient if later else ollama.Client)(url)


def ollama_chat(url: str, later: bool, stream: bool) -> Any:
    asked = ollama_client(url, later).chat(MODEL, MESSAGES, stream=stream)
    return (each if stream else one)(asked, lambda answer: answer.message.content)


def ollama_generate(url: str, later: bool, stream: bool) -> Any:
    asked = ollama_client(url, later).generate(MODEL, "Hi", stream=stream)
    return (each if stream else one)(asked, lambda answer: answer.response)


def hub_client(**where: str) -> tuple[Any, Any]:
    """Both kinds. They end their streams when nobody holds them any more."""
    return huggingface_hub.InferenceClient(**where), huggingface_hub.AsyncInferenceClient(**where)


def hub_text_generation(url: str, later: bool, stream: bool) -> Any:
    clients = hub_client(model=url)
    asked = clients[later].text_generation("Hi", max_new_tokens=300, stream=stream)
    return (each if stream else one)(asked, lambda answer: answer if clients else None)


def hub_chat_completion(url: str, later: bool, stream: bool) -> Any:
    clients = hub_client(base_url=url)
    asked = clients[later].chat_completion(MESSAGES, model=MODEL, max_tokens=300, stream=stream)
    if stream:
        return each(asked, lambda chunk: chunk.choices[0].delta.content if clients else None)
    return one(asked, lambda answer: answer.choices[0].message.content if clients else None)


def tgi_client(url: str, later: bool) -> Any:
    tgi = pytest.importorskip("text_generation")
    return (tgi.AsyncClient if later else tgi.Client)(url)


def tgi_generate(url: str, later: bool, stream: bool) -> Any:
    client = tgi_client(url, later)
    if stream:
        return each(client.generate_stream("Hi", max_new_tokens=300), lambda part: part.token.text)
    return one(client.generate("Hi", max_new_tokens=300), lambda answer: answer.generated_text)


def tgi_chat(url: str, later: bool, stream: bool) -> Any:
    if stream:
        pytest.skip("with pydantic 2 this client wants tool_calls in every piece, which OpenAI does not send")
    asked = tgi_client(url, later).chat(MESSAGES, max_tokens=300)
    return one(asked, lambda answer: answer.choices[0].message.content)


ASKS: list[Ask] = [
    openai_chat,
    openai_chat_helper,
    openai_completions,
    openai_responses,
    anthropic_messages,
    ollama_chat,
    ollama_generate,
    hub_text_generation,
    hub_chat_completion,
    tgi_generate,
    tgi_chat,
]


@pytest.fixture(scope="module")
def named(text_parts: TextParts) -> Iterator[ScriptedServer]:
    tokens = [*text_parts.tokenizer.encode(SAID), 2]
    script = {"script": lambda request: tokens, "cut": 2}
    running = ScriptedServer(text_parts, {"served_model_names": (MODEL,)}, script, True)
    yield running
    running.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:text_generation")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.__name__)
def test_the_text_is_what_the_model_said(named: ScriptedServer, ask: Ask, later: bool, stream: bool) -> None:
    if not later:
        assert ask(named.url, False, stream) == SAID
        return

    async def several() -> list[str]:
        return await asyncio.gather(*[ask(named.url, True, stream) for _ in range(3)])

    assert asyncio.run(several()) == [SAID] * 3


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_what_is_not_streamed(named: ScriptedServer, later: bool) -> None:
    """Vectors, models, counts of tokens."""
    ours, theirs = openai_client(named.url, later), ollama_client(named.url, later)
    kind: Any = anthropic.AsyncAnthropic if later else anthropic.Anthropic
    claude = kind(api_key="none", base_url=named.url, max_retries=0)
    asks = [
        lambda: ours.embeddings.create(model=MODEL, input=["a", "b"]),
        lambda: ours.models.retrieve(MODEL),
        lambda: ours.responses.input_tokens.count(model=MODEL, input="Hi"),
        lambda: claude.messages.count_tokens(model=MODEL, messages=MESSAGES),
        lambda: claude.models.retrieve(MODEL),
        lambda: theirs.embed(MODEL, ["a", "b"]),
        lambda: theirs.embeddings(MODEL, "a"),
        theirs.list,
        theirs.ps,
        lambda: theirs.show(MODEL),
        lambda: theirs.pull(MODEL),
    ]

    async def awaited() -> list[Any]:
        return [await ask() for ask in asks]

    answers = asyncio.run(awaited()) if later else [ask() for ask in asks]
    vectors, model, counted, messages, claude_model, embedded, older, listed, running, shown, pulled = answers
    assert [len(entry.embedding) for entry in vectors.data] == [len(embedded.embeddings[0])] * 2
    assert len(older.embedding) == len(embedded.embeddings[0])
    assert (model.id, claude_model.id) == (MODEL, MODEL)
    assert counted.input_tokens == messages.input_tokens > 0
    assert [entry.model for entry in listed.models] == [f"{MODEL}:latest"]
    assert [entry.model for entry in running.models] == [f"{MODEL}:latest"]
    assert shown.modelinfo["general.architecture"]
    assert pulled.status == "success"
    assert time.time() - model.created < 3600
