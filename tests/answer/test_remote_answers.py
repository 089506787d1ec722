"""Remote answers before an upstream that does all that upstreams do, and worse."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from scripted_upstream import MODEL, USAGE, Asked, Line, ScriptedUpstream, chunk, piece, says

from tokentrail.answer import (
    AnswerRequest,
    ChatPrompt,
    Choice,
    Chunk,
    EmbeddingRequest,
    TextPrompt,
    collect,
)
from tokentrail.answer.embedding import as_floats
from tokentrail.answer.remote import RemoteBackend, RemoteTarget, RemoteTimeouts
from tokentrail.answer.remote.answer import RemoteAnswer
from tokentrail.protocol import (
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    SamplingParams,
    TokentrailError,
    UpstreamError,
)

KEY = "sk-very-secret-0123456789"


def backend_for(upstream: ScriptedUpstream, **settings: Any) -> RemoteBackend:
    settings = {"kind": "openai", "model": MODEL, "api_key": KEY, **settings}
    return RemoteBackend(RemoteTarget(name="ours", url=upstream.url, **settings))


def request(**fields: Any) -> AnswerRequest:
    fields = {
        "id": "chatcmpl-1",
        "prompts": [ChatPrompt(messages=[{"role": "user", "content": "Hi"}])],
        "sampling": SamplingParams(),
        "unset": ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"),
        "model": "ours",
        "endpoint": "/v1/chat/completions",
        **fields,
    }
    return AnswerRequest(**fields)


async def ask(backend: RemoteBackend, **fields: Any) -> tuple[RemoteAnswer, list[Choice]]:
    answer = await backend.open(request(**fields))
    return answer, await collect(answer)


async def failure(
    play: Callable[[Asked, Line], Awaitable[None]], settings: dict[str, Any] | None = None, **fields: Any
) -> tuple[TokentrailError, RemoteBackend]:
    """What an answer ends with."""
    async with ScriptedUpstream(play) as upstream:
        backend = backend_for(upstream, **(settings or {}))
        try:
            with pytest.raises(TokentrailError) as raised:
                await ask(backend, **fields)
            # Whatever happened, nothing is left over, and the next answer is as if nothing had.
            assert backend.stats.running == 0
            upstream.play = says
            _, choices = await ask(backend)
            assert choices[0].text == "Hello there"
        finally:
            await backend.aclose()
        assert KEY not in str(raised.value)
        return raised.value, backend


def of(status: int, body: Any, **options: Any) -> Callable[[Asked, Line], Awaitable[None]]:
    async def play(asked: Asked, line: Line) -> None:
        await line.reply(status, body, **options)

    return play


def events(*given: Any, done: bool = True) -> Callable[[Asked, Line], Awaitable[None]]:
    async def play(asked: Asked, line: Line) -> None:
        await line.begin()
        for event in given:
            await line.event(event)
        await line.end(done=done)

    return play


# --- answers ---------------------------------------------------------------------------------------


async def test_an_answer_and_what_is_known_of_it() -> None:
    async with ScriptedUpstream() as upstream:
        backend = backend_for(upstream)
        answer, choices = await ask(
            backend, sampling=SamplingParams(seed=7, temperature=0.5), unset=("max_tokens",)
        )
        assert (choices[0].text, choices[0].finish_reason) == ("Hello there", "stop")
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 3)
        assert answer.seed == 7
        asked = upstream.asked[0]
        assert asked.path == "/v1/chat/completions"
        assert asked.headers["authorization"] == f"Bearer {KEY}"
        assert asked.headers["x-request-id"] == "chatcmpl-1"
        assert asked.body == {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Hi"}],
            "temperature": 0.5,
            "top_p": 1.0,
            "seed": 7,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        journey = backend.journeys.view("chatcmpl-1")
        assert journey is not None
        assert (journey.served_by, journey.outcome) == ("ours", "stop")
        assert (journey.prompt_tokens, journey.completion_tokens) == (7, 3)
        assert journey.received_at <= (journey.first_token_at or 0) <= (journey.finished_at or 0)
        assert backend.metrics.requests["stop"] == 1
        await backend.aclose()


async def test_connections_are_used_again() -> None:
    async with ScriptedUpstream() as upstream:
        backend = backend_for(upstream)
        for _ in range(5):
            await ask(backend)
        assert len(upstream.lines) == 1
        await asyncio.gather(*(ask(backend) for _ in range(4)))
        assert len(upstream.lines) <= 4
        assert backend.stats.running == 0
        await backend.aclose()


async def test_a_connection_that_was_closed_while_nobody_used_it_is_no_failure() -> None:
    closing = asyncio.Event()

    async def once(asked: Asked, line: Line) -> None:
        await says(asked, line)
        await closing.wait()
        line.cut()

    async with ScriptedUpstream(once) as upstream:
        backend = backend_for(upstream)
        await ask(backend)
        # The next request is on its way when the old connection is found closed.
        connection = backend.pool.idle()
        assert connection is not None
        backend.pool.give_back(connection)
        upstream.play = says
        asking = asyncio.ensure_future(ask(backend))
        await asyncio.sleep(0)
        closing.set()
        _, choices = await asking
        assert choices[0].text == "Hello there"
        assert len(upstream.lines) == 2
        await backend.aclose()


async def test_a_whole_answer_instead_of_a_stream_is_an_answer_too() -> None:
    body = {
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "All of it"}, "finish_reason": "length"}
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    }
    async with ScriptedUpstream(of(200, body)) as upstream:
        answer, choices = await ask(backend_for(upstream))
        assert (choices[0].text, choices[0].finish_reason) == ("All of it", "length")
        assert answer.usage.cached_tokens == 1


async def test_thoughts_calls_and_log_probabilities() -> None:
    def call(index: int, **fields: Any) -> Any:
        return piece(tool_calls=[{"index": index, **fields}])

    logprobs = {
        "content": [
            {
                "token": "é",
                "logprob": -0.5,
                "bytes": [195, 169],
                "top_logprobs": [
                    {"token": "é", "logprob": -0.5, "bytes": None},
                    {"token": "e", "logprob": -1.0},
                ],
            }
        ]
    }
    spoken = piece("é")
    spoken["choices"][0]["logprobs"] = logprobs
    play = events(
        piece(role="assistant", content=None),
        piece(reasoning_content="Hm"),
        piece(reasoning="m."),
        spoken,
        call(0, id="a", type="function", function={"name": "one", "arguments": ""}),
        call(0, function={"arguments": '{"x":'}),
        call(0, function={"arguments": "1}"}),
        call(1, id="b", function={"name": "two", "arguments": "{}"}),
        piece(reason="stop"),
        {**USAGE, "usage": {"completion_tokens_details": {"reasoning_tokens": 2}, "completion_tokens": 9}},
    )
    async with ScriptedUpstream(play) as upstream:
        answer, [choice] = await ask(backend_for(upstream), sampling=SamplingParams(logprobs=2))
        assert (choice.reasoning, choice.text, choice.finish_reason) == ("Hmm.", "é", "tool_calls")
        assert [(call.id, call.name, call.arguments, call.before) for call in choice.calls] == [
            ("a", "one", '{"x":1}', 1),
            ("b", "two", "{}", 1),
        ]
        assert choice.logprobs is not None
        [entry] = choice.logprobs
        assert (entry.token.text, entry.token.bytes, entry.logprob) == ("é", b"\xc3\xa9", -0.5)
        assert [(token.text, value) for token, value in entry.top] == [("é", -0.5), ("e", -1.0)]
        assert (answer.usage.completion_tokens, answer.usage.reasoning_tokens) == (9, 2)


async def test_several_calls_that_are_numbered_alike_are_told_apart_by_their_ids() -> None:
    calls = [{"index": 0, "id": id, "function": {"name": "f", "arguments": {"v": id}}} for id in "ab"]
    async with ScriptedUpstream(events(piece(tool_calls=calls), piece(reason="tool_calls"))) as upstream:
        _, [choice] = await ask(backend_for(upstream))
        assert [(call.id, json.loads(call.arguments)) for call in choice.calls] == [
            ("a", {"v": "a"}),
            ("b", {"v": "b"}),
        ]


async def test_choices_of_several_prompts() -> None:
    def said(index: int, text: str, reason: str | None = None) -> Any:
        return {"choices": [{"index": index, "text": text, "finish_reason": reason}]}

    play = events(
        said(3, "d"),
        said(0, "a"),
        said(1, "b", "stop"),
        said(2, "c", "length"),
        said(3, "", "stop"),
        said(0, "A", "stop"),
    )
    async with ScriptedUpstream(play) as upstream:
        prompts = [TextPrompt("x"), TextPrompt("y")]
        answer, choices = await ask(
            backend_for(upstream), prompts=prompts, sampling=SamplingParams(n=2, max_tokens=4)
        )
        assert [choice.text for choice in choices] == ["aA", "b", "c", "d"]
        assert [choice.finish_reason for choice in choices] == ["stop", "stop", "length", "stop"]
        assert upstream.asked[0].path == "/v1/completions"
        assert upstream.asked[0].body["prompt"] == ["x", "y"]
        assert len(answer.prompt_token_ids) == 2


@pytest.mark.parametrize("kind", ["text/event-stream", "text/event-stream; charset=utf-8"])
async def test_however_the_bytes_are_cut_the_answer_is_the_same(kind: str) -> None:
    async def dribble(asked: Asked, line: Line) -> None:
        await line.begin(kind)
        data = b"".join(
            chunk(b": ping\r\n\r\ndata: " + json.dumps(event).encode() + b"\r\n\r\n")
            for event in (piece("Hel"), piece("lo 中文"), piece(reason="stop"), USAGE)
        )
        for at in range(len(data)):
            line.writer.write(data[at : at + 1])
            if at % 7 == 0:
                await line.writer.drain()
                await asyncio.sleep(0)
        await line.end()

    async with ScriptedUpstream(dribble) as upstream:
        _, [choice] = await ask(backend_for(upstream))
        assert choice.text == "Hello 中文"


# --- handing over ----------------------------------------------------------------------------------


async def test_chunks_are_handed_to_who_takes_them_in_order_and_once() -> None:
    count = 200

    async def play(asked: Asked, line: Line) -> None:
        await line.begin()
        for number in range(count):
            await line.event(piece(f"{number} "))
            for _ in range(number % 5):  # some together, some alone
                await asyncio.sleep(0)
        for event in (piece(reason="stop"), USAGE):
            await line.event(event)
        await line.end()

    async with ScriptedUpstream(play) as upstream:
        answer = await backend_for(upstream).open(request())
        got: list[Chunk] = []
        offered = 0

        def take(chunk: Chunk) -> bool:
            nonlocal offered
            offered += 1
            if offered % 7 == 0:
                return False
            got.append(chunk)
            return True

        async for chunks in answer:
            got += chunks
            answer.divert(take)
        assert "".join(chunk.text for chunk in got) == "".join(f"{number} " for number in range(count))
        assert got[-1].finish_reason == "stop"
        await answer.aclose()


async def test_an_error_of_who_takes_ends_the_answer() -> None:
    read = asyncio.Event()

    async def play(asked: Asked, line: Line) -> None:
        await line.begin()
        await line.event(piece("x"))
        await read.wait()
        await line.event(piece("y"))
        await line.gone.wait()

    async with ScriptedUpstream(play) as upstream:
        answer = await backend_for(upstream).open(request())

        def take(chunk: Chunk) -> bool:
            raise KeyError("mine")

        async def reading() -> None:
            async for _ in answer:
                answer.divert(take)
                read.set()

        with pytest.raises(KeyError):
            await reading()
        await answer.aclose()


async def test_a_slow_client_holds_the_upstream_up() -> None:
    sent = 0
    text = "x" * 10_000
    stuck = asyncio.Event()

    async def flood(asked: Asked, line: Line) -> None:
        nonlocal sent
        await line.begin()
        line.writer.transport.set_write_buffer_limits(0)
        for _ in range(2000):
            line.writer.write(chunk(b"data: " + json.dumps(piece(text)).encode() + b"\n\n"))
            sent += 1
            if line.writer.transport.get_write_buffer_size() > 1_000_000:
                stuck.set()
            await line.writer.drain()
        await line.event(piece(reason="stop"))
        await line.end()

    async with ScriptedUpstream(flood) as upstream:
        # Nothing may time out while it is the client who is slow.
        answer = await backend_for(upstream, timeouts=RemoteTimeouts(between_tokens_s=0.05)).open(request())
        chunks = aiter(answer)
        total = sum(len(chunk.text) for chunk in await anext(chunks))
        last = -1
        while sent != last:  # until it stands still
            last = sent
            await asyncio.sleep(0.1)
        assert sent < 2000
        assert sum(len(chunk.text) for chunk in answer._ready) < 1_500_000
        async for more in chunks:
            total += sum(len(chunk.text) for chunk in more)
        assert total == 2000 * len(text)
        await answer.aclose()


async def test_who_goes_away_closes_the_upstreams_connection() -> None:
    async def endless(asked: Asked, line: Line) -> None:
        await line.begin()
        await line.event(piece("first"))
        await line.gone.wait()

    async with ScriptedUpstream(endless) as upstream:
        backend = backend_for(upstream)
        answer = await backend.open(request())
        async for _ in answer:
            break
        await answer.aclose()
        await asyncio.wait_for(upstream.lines[0].gone.wait(), 10)
        assert backend.metrics.requests["abort"] == 1
        # Cancelled while it waits for the first token.
        upstream.play = lambda asked, line: line.gone.wait()  # type: ignore[assignment,return-value]
        task = asyncio.ensure_future(ask(backend))
        while len(upstream.asked) < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(upstream.lines[-1].gone.wait(), 10)
        assert backend.metrics.requests["abort"] == 2


async def test_an_answer_that_is_never_begun_asks_nobody() -> None:
    async with ScriptedUpstream() as upstream:
        backend = backend_for(upstream)
        answer = await backend.open(request())
        await answer.aclose()
        assert not upstream.asked
        assert backend.journeys.num_live == 0


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, {"error": {"message": "top_p is odd", "param": "top_p"}}, InvalidRequest, "top_p is odd"),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "too many"}]}, InvalidRequest, "n: too many"),
        (400, {"object": "error", "message": "older vLLM"}, InvalidRequest, "older vLLM"),
        (422, {"error": "of TGI", "error_type": "validation"}, InvalidRequest, "of TGI"),
        (400, [{"error": {"message": "of Google", "code": 400}}], InvalidRequest, "of Google"),
        (413, b"<html>too large</html>", InvalidRequest, "413"),
        (
            400,
            {"error": {"message": "This model's maximum context length is 5 tokens", "code": 400}},
            ContextLengthExceeded,
            "5 tokens",
        ),
        (400, {"error": {"message": "x", "type": "exceed_context_size_error"}}, ContextLengthExceeded, "x"),
        (429, {"error": {"message": "slow down"}}, Overloaded, "slow down"),
        (503, b"", Overloaded, "503"),
    ],
)
async def test_refusals(status: int, body: Any, kind: type[TokentrailError], message: str) -> None:
    error, backend = await failure(of(status, body))
    assert type(error) is kind
    assert message in error.message
    assert not backend.metrics.upstream_failures


async def test_when_to_come_again_is_passed_on() -> None:
    error, _ = await failure(of(429, {}, headers="retry-after: 17\r\n"))
    assert isinstance(error, Overloaded)
    assert error.retry_after == 17
    for odd, meant in (("Fri, 31 Dec 1999 23:59:59 GMT", 0), ("soon", 1), ("nan", 1), ("1e99", 3600)):
        error, _ = await failure(of(503, {}, headers=f"retry-after: {odd}\r\n"))
        assert isinstance(error, Overloaded)
        assert error.retry_after == meant


@pytest.mark.parametrize(
    ("status", "body", "code", "told"),
    [
        (401, {"error": {"message": f"Incorrect API key: {KEY}"}}, "upstream_refused", 502),
        (403, {}, "upstream_refused", 502),
        (404, {"error": {"message": "no such model"}}, "upstream_refused", 502),
        (301, b"", "upstream_refused", 502),
        (429, {"error": {"code": "insufficient_quota"}}, "upstream_refused", 502),
        (500, {"error": {"message": f"out of {KEY}"}}, "upstream_failed", 502),
        (504, b"<html>", "upstream_timeout", 504),
        (200, b"<html>hello</html>", "upstream_broken", 502),
    ],
)
async def test_failures_are_told_from_refusals(status: int, body: Any, code: str, told: int) -> None:
    kind = "text/html" if isinstance(body, bytes) else "application/json"
    error, backend = await failure(of(status, body, kind=kind))
    assert isinstance(error, UpstreamError)
    assert (error.code, error.status, error.target) == (code, told, "ours")
    assert error.retryable
    assert backend.metrics.upstream_failures == {("ours", code): 1}
    assert backend.metrics.requests["error"] == 1


async def test_a_limit_that_nobody_asked_for_is_left_out_where_the_context_is_too_short_for_it() -> None:
    async def play(asked: Asked, line: Line) -> None:
        if "max_tokens" in asked.body:
            await line.reply(400, {"error": {"message": "no", "code": "context_length_exceeded"}})
        else:
            await says(asked, line)

    async with ScriptedUpstream(play) as upstream:
        backend = backend_for(upstream)
        _, [choice] = await ask(backend, default_max_tokens=100_000)
        assert choice.text == "Hello there"
        assert len(upstream.asked) == 2
        with pytest.raises(ContextLengthExceeded):
            await ask(backend, sampling=SamplingParams(max_tokens=100_000))


# --- broken answers --------------------------------------------------------------------------------


async def cut_now(asked: Asked, line: Line) -> None:
    line.cut()


async def cut_within(asked: Asked, line: Line) -> None:
    await line.begin()
    await line.event(piece("Hel"))
    await line.send(b"20\r\ndata: {")
    line.writer.close()


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def raw(data: bytes) -> Callable[[Asked, Line], Awaitable[None]]:
    async def play(asked: Asked, line: Line) -> None:
        await line.send(data)
        line.writer.close()

    return play


@pytest.mark.parametrize(
    ("play", "code", "sent"),
    [
        (cut_now, "upstream_cut", False),
        (cut_within, "upstream_cut", True),
        (events(piece("a")), "upstream_cut", True),
        (events(piece("a"), done=False), "upstream_cut", True),
        (events(), "upstream_cut", False),
        (events(piece("a"), piece(reason="abort")), "upstream_cut", True),
        (events(piece("a"), {"error": {"message": "boom"}}), "upstream_failed", True),
        (events({"error": {"message": "boom", "code": 500}}), "upstream_failed", False),
        (events({"object": "error", "message": "boom"}), "upstream_failed", False),
        (events(piece("a"), b"error: {\"message\": \"boom\"}\n\n"), "upstream_failed", True),
        (events(piece("a"), b"data: {nonsense\n\n"), "upstream_broken", True),
        (events(b"data: " + b"[" * 100_000 + b"\n\n"), "upstream_broken", False),
        (events(b"data: \xff\xfe\n\n"), "upstream_broken", False),
        (events({"choices": "none"}), "upstream_broken", False),
        (events({"choices": [{"index": 5, "delta": {}}]}), "upstream_broken", False),
        (events({"choices": [{"index": -1, "delta": {}}]}), "upstream_broken", False),
        (events(piece(tool_calls=[{"index": 0, "function": {"arguments": "1"}}])), "upstream_broken", False),
        (of(200, {"choices": []}), "upstream_cut", False),
        (of(200, b"{"), "upstream_broken", False),
        (of(200, b"x", kind="text/plain"), "upstream_broken", False),
        (of(200, b"", kind=""), "upstream_broken", False),
        (raw(b"SSH-2.0-x\r\n\r\n"), "upstream_broken", False),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000), "upstream_broken", False),
        (raw(STREAM + b"data: " + b"x" * 17_000_000), "upstream_broken", False),
        (raw(STREAM), "upstream_cut", False),
    ],
)  # fmt: skip
async def test_broken_answers_end_with_an_error(
    play: Callable[[Asked, Line], Awaitable[None]], code: str, sent: bool
) -> None:
    error, backend = await failure(play)
    assert isinstance(error, UpstreamError)
    assert (error.code, error.sent, error.retryable) == (code, sent, not sent)
    assert backend.metrics.upstream_failures == {("ours", code): 1}
    assert backend.metrics.requests["error"] == 1


async def test_an_error_within_a_stream_that_concerns_the_request_is_a_refusal_before_anything_came() -> None:
    refused = {"error": {"message": "bad grammar", "type": "invalid_request_error", "code": 400}}
    error, _ = await failure(events(refused))
    assert type(error) is InvalidRequest
    assert error.message == "bad grammar"


async def test_an_answer_whose_last_word_is_there_is_whole_though_its_count_is_not() -> None:
    async def play(asked: Asked, line: Line) -> None:
        await line.begin()
        await line.event(piece("Whole"))
        await line.event(piece(reason="stop"))
        line.writer.close()

    async with ScriptedUpstream(play) as upstream:
        answer, [choice] = await ask(backend_for(upstream))
        assert choice.text == "Whole"
        assert answer.usage.completion_tokens == 1  # as far as they could be counted


# --- time ------------------------------------------------------------------------------------------


async def hang(asked: Asked, line: Line) -> None:
    await line.gone.wait()


async def hang_within(asked: Asked, line: Line) -> None:
    await line.begin()
    await line.event(piece(role="assistant"))
    await line.event(piece("a"))
    while not line.gone.is_set():  # signs of life are no tokens
        await line.event(b": ping\n\n")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("play", "sent"), [(hang, False), (hang_within, True)])
async def test_silence_is_an_error(play: Callable[[Asked, Line], Awaitable[None]], sent: bool) -> None:
    patience = RemoteTimeouts(first_token_s=0.2 if not sent else 60, between_tokens_s=0.2)
    async with ScriptedUpstream(play) as upstream:
        backend = backend_for(upstream, timeouts=patience)
        with pytest.raises(UpstreamError) as raised:
            await ask(backend)
        assert (raised.value.code, raised.value.sent, raised.value.status) == ("upstream_timeout", sent, 504)
        await asyncio.wait_for(upstream.lines[-1].gone.wait(), 10)


async def test_a_deadline_is_kept_wherever_the_answer_is() -> None:
    async with ScriptedUpstream(hang) as upstream:
        backend = backend_for(upstream)
        with pytest.raises(DeadlineExceeded):
            await ask(backend, received=time.time(), deadline=time.time() + 0.1)
        assert backend.metrics.requests["timeout"] == 1
        await asyncio.wait_for(upstream.lines[-1].gone.wait(), 10)


async def test_nobody_there() -> None:
    async with ScriptedUpstream() as upstream:
        url = upstream.url
    backend = RemoteBackend(RemoteTarget(name="ours", url=url, kind="openai"))
    with pytest.raises(UpstreamError) as raised:
        await ask(backend)
    assert (raised.value.code, raised.value.status, raised.value.retryable) == (
        "upstream_unreachable",
        503,
        True,
    )
    assert not (await backend.probe()).ready
    # What it is cannot be found out, either; the next request tries again.
    unknown = RemoteBackend(RemoteTarget(name="ours", url=url))
    for _ in range(2):
        with pytest.raises(UpstreamError):
            await unknown.open(request())


async def test_more_requests_than_are_allowed_at_once_are_refused() -> None:
    async with ScriptedUpstream(hang) as upstream:
        backend = backend_for(upstream, max_connections=2)
        running = [asyncio.ensure_future(ask(backend)) for _ in range(2)]
        while len(upstream.asked) < 2:
            await asyncio.sleep(0.001)
        with pytest.raises(Overloaded):
            await ask(backend)
        await backend.aclose()
        for task in running:
            with pytest.raises(UpstreamError):
                await task


# --- beside answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "kind"),
    [("vllm", "vllm"), ("llamacpp", "llama.cpp"), ("tokentrail", "tokentrail"), ("me", "openai")],
)
async def test_what_an_upstream_is_is_found_out(owner: str, kind: str) -> None:
    async def play(asked: Asked, line: Line) -> None:
        if asked.path == "/info":
            await line.reply(404, {"error": "no"})
        else:
            await says(asked, line)

    async with ScriptedUpstream(play, owner=owner, context=4096) as upstream:
        backend = backend_for(upstream, kind=None)
        await asyncio.gather(ask(backend), ask(backend))
        assert backend.kind == kind
        assert backend.models()[0].max_model_len == 4096
        assert (await backend.probe()).ready
        assert backend.details("ours").file == MODEL
        upstream.models["data"][0]["id"] = "another"
        assert (await backend.probe()).ready is (kind not in ("vllm", "tokentrail"))


async def test_tgi_is_found_out() -> None:
    async def play(asked: Asked, line: Line) -> None:
        if asked.path == "/info":
            await line.reply(200, {"model_id": "m", "max_total_tokens": 2048})
        else:
            await says(asked, line)

    async with ScriptedUpstream(play) as upstream:
        backend = backend_for(upstream, kind=None)
        await ask(backend)
        assert (backend.kind, backend.models()[0].max_model_len) == ("tgi", 2048)


@pytest.mark.parametrize("vectors", [[[1.0, 0.5], [2.0, -1.0]], ["AACAPwAAAD8=", "AAAAQAAAgL8="]])
async def test_embeddings(vectors: list[Any]) -> None:
    data = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)][::-1]
    async with ScriptedUpstream(of(200, {"data": data, "usage": {"prompt_tokens": 5}})) as upstream:
        backend = backend_for(upstream)
        asked = EmbeddingRequest(
            id="e", prompts=[TextPrompt("a"), TextPrompt("b")], model="ours", endpoint="/v1/embeddings"
        )
        made = await backend.embed(asked)
        assert [as_floats(vector) for vector in made.vectors] == [[1.0, 0.5], [2.0, -1.0]]
        assert made.usage.prompt_tokens == 5
        assert upstream.asked[0].body == {"model": MODEL, "encoding_format": "base64", "input": ["a", "b"]}


@pytest.mark.parametrize(
    "data",
    [
        [],
        [{"embedding": [1.0]}],
        [{"embedding": [1.0], "index": 0}, {"embedding": [1.0], "index": 0}],
        [{"embedding": "?"}, {"embedding": "AACAPw=="}],
        [{"embedding": "AAA="}, {"embedding": "AACAPw=="}],
        [{"embedding": [1e999]}, {"embedding": ["x"]}],
    ],
)
async def test_embeddings_that_are_none(data: Any) -> None:
    async with ScriptedUpstream(of(200, {"data": data})) as upstream:
        backend = backend_for(upstream)
        asked = EmbeddingRequest(
            id="e", prompts=[TextPrompt("a"), TextPrompt("b")], model="ours", endpoint="/x"
        )
        with pytest.raises(UpstreamError) as raised:
            await backend.embed(asked)
        assert raised.value.code == "upstream_broken"


async def test_tokens_where_the_upstream_tells_them() -> None:
    async def play(asked: Asked, line: Line) -> None:
        body = {"/tokenize": {"tokens": [1, 2]}, "/detokenize": {"prompt": "text"}}[asked.path]
        await line.reply(200, body)

    loop = asyncio.get_running_loop()
    async with ScriptedUpstream(play, owner="vllm") as upstream:
        backend = backend_for(upstream, kind="vllm")
        assert await loop.run_in_executor(None, backend.tokenize, TextPrompt("x")) == [1, 2]
        assert await loop.run_in_executor(None, backend.detokenize, [1, 2]) == "text"
        chat = ChatPrompt(messages=[{"role": "user", "content": "x"}])
        assert await loop.run_in_executor(None, backend.render, chat) == "text"
        cloud = backend_for(upstream)
        with pytest.raises(InvalidRequest, match="not told for the model ours"):
            await loop.run_in_executor(None, cloud.tokenize, TextPrompt("x"))
        with pytest.raises(InvalidRequest):
            cloud.detokenize([1])  # on the loop itself, where waiting would be for ever


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://h:99999"}, "url"),
        ({"url": "http://me:secret@h"}, "url"),
        ({"url": "http://h/v1?x=1"}, "url"),
        ({"url": "http://h/a b"}, "url"),
        ({"kind": "best"}, "kind"),
        ({"api_key": "a\r\nb"}, "api_key"),
        ({"headers": {"x": "a\nb"}}, "headers.x"),
        ({"headers": {"x y": "a"}}, "headers.x y"),
        ({"headers": {"Content-Length": "3"}}, "headers"),
        ({"url": "https://h", "ca_file": "/nowhere"}, "ca_file"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        RemoteBackend(RemoteTarget(**{"name": "m", "url": "http://h", **settings}))
    assert raised.value.param == field
    assert "secret" not in repr(
        RemoteTarget(name="m", url="http://h", api_key="secret", headers={"x": "secret"})
    )


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://h", "/v1/x"),
        ("http://h/", "/v1/x"),
        ("http://h/v1", "/v1/x"),
        ("http://h/a/openai/", "/a/openai/x"),
    ],
)
def test_where_the_api_is(url: str, path: str) -> None:
    backend = RemoteBackend(RemoteTarget(name="m", url=url))
    assert backend.wire("/x", b"{}", "id").startswith(f"POST {path} HTTP/1.1\r\nhost: h\r\n".encode())
