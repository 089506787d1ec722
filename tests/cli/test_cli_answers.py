"""`chat` and `generate`: with an engine of their own, and against a server."""

from __future__ import annotations

import io
import json
import re
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from command_line import Run, program

from tokentrail.cli.chat import Conversation
from tokentrail.cli.sources import RemoteSource, Reply, request_fields
from tokentrail.protocol import ContextLengthExceeded, SamplingParams, TokentrailError


class FakeServer(ThreadingHTTPServer):
    """Streams `pieces` as OpenAI does, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pieces = ["Par", "is", "."]
        self.status = 200
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.server.asked.append((self.path, {}, self.headers["authorization"]))
        self.send(200, "application/json", json.dumps({"data": [{"id": "first"}, {"id": "second"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, body, self.headers["authorization"]))
        if self.server.status != 200:
            error = {"error": {"message": "no room", "type": "x"}}
            self.send(self.server.status, "application/json", json.dumps(error).encode())
            return
        events: list[dict[str, Any]] = []
        for piece in self.server.pieces:
            choice = {"text": piece} if "prompt" in body else {"delta": {"content": piece}}
            events.append({"id": "id-1", "model": "first", "choices": [choice]})
        events.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        events.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self.send(200, "text/event-stream", text.encode())


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as fake:
        threading.Thread(target=fake.serve_forever, args=(0.05,), daemon=True).start()
        yield fake
        fake.shutdown()


# --- generate --------------------------------------------------------------------------------------


def test_generate_from_a_server(server: FakeServer, run: Run) -> None:
    outcome = run(
        "generate", "capital?", "--url", server.url, "--api-key", "k,other", "--system", "Brief.", "-n", "8"
    )
    assert (outcome.code, outcome.out, outcome.err) == (0, "Paris.\n", "")
    path, body, key = server.asked[-1]
    assert (path, key) == ("/v1/chat/completions", "Bearer k")
    assert body["model"] == "first"
    assert body["messages"] == [
        {"role": "system", "content": "Brief."},
        {"role": "user", "content": "capital?"},
    ]
    assert body["max_tokens"] == 8
    assert "top_k" not in body


def test_generate_raw_and_json(server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("The capital of France is\n"))
    outcome = run("generate", "--raw", "--json", "--url", f"{server.url}/v1/", "-m", "second", "--top-k", "5")
    result = json.loads(outcome.out)
    assert (result["text"], result["finish_reason"]) == ("Paris.", "stop")
    assert (result["prompt_tokens"], result["completion_tokens"], result["id"]) == (9, 3, "id-1")
    path, body, _ = server.asked[-1]
    assert (path, body["prompt"], body["model"], body["top_k"]) == (
        "/v1/completions",
        "The capital of France is",
        "second",
        5,
    )


def test_generate_needs_a_prompt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    outcome = run("generate")
    assert outcome.code == 2
    assert "standard input is empty" in outcome.err


def test_a_servers_errors_are_told(server: FakeServer, run: Run) -> None:
    server.status = 429
    outcome = run("generate", "x", "--url", server.url)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == f"tokentrail: error: {server.url}/v1 answered 429: no room\n"
    outcome = run("generate", "x", "--url", "http://127.0.0.1:9")
    assert outcome.code == 1
    assert "does not answer" in outcome.err


def test_values_out_of_range_are_told(run: Run) -> None:
    outcome = run("generate", "x", "--top-p", "1.5")
    assert outcome.code == 1
    assert "top_p must be in (0, 1], not 1.5" in outcome.err


def test_request_fields_leave_out_what_says_nothing() -> None:
    assert request_fields(SamplingParams()) == {"temperature": 1.0, "top_p": 1.0}
    sampling = SamplingParams(max_tokens=3, stop=("a",), seed=4, top_k=5, min_p=0.1, ignore_eos=True)
    assert request_fields(sampling) == {
        "temperature": 1.0, "top_p": 1.0, "max_tokens": 3, "stop": ["a"], "seed": 4, "top_k": 5, "min_p": 0.1,
        "ignore_eos": True,
    }  # fmt: skip


@pytest.mark.usefixtures("demo_path")
def test_generate_with_an_engine_of_its_own() -> None:
    arguments = ("generate", "What is the capital of France?", "-n", "6", "--temperature", "0.8")
    first = json.loads(program(*arguments, "--json", "--trail").out)
    assert first["completion_tokens"] <= 6
    assert first["prompt_tokens"] > 10
    journey = first["journey"]
    assert journey["seed"] == first["seed"]
    assert journey["completion_tokens"] == first["completion_tokens"]
    assert "".join(token["text"] for token in journey["sequences"][0]["tokens"]).startswith(first["text"])
    assert all(len(token["top"]) == 3 for token in journey["sequences"][0]["tokens"])
    # The seed it drew repeats it; drawn, the journey names its stages.
    again = program(*arguments, "--sampling-seed", str(first["seed"]), "--trail")
    assert again.code == 0
    assert again.err == ""
    assert again.out.startswith(first["text"] + "\n")
    for word in ("template", "queue", "prefill", "decode"):
        assert word in again.out


# --- chat ------------------------------------------------------------------------------------------


class FakeSource:
    model = "fake"

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self.error: TokentrailError | None = None
        self.interrupt = False
        self.closed = 0

    def stream(self, prompt: Any, sampling: SamplingParams, reply: Reply) -> Iterator[str]:
        self.asked.append([dict(message) for message in prompt])
        if self.error:
            raise self.error
        try:
            for piece in ("answer", f" {len(self.asked)}"):
                reply.add(piece)
                reply.completion_tokens += 1
                yield piece
                if self.interrupt:
                    signal.raise_signal(signal.SIGINT)
        finally:
            self.closed += 1


def talk(
    source: FakeSource, lines: list[str], monkeypatch: pytest.MonkeyPatch, system: str | None = None
) -> Conversation:
    conversation = Conversation(source, SamplingParams(), system)  # type: ignore[arg-type]
    script = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(script)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    conversation.run()
    return conversation


def test_a_conversation_is_remembered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = FakeSource()
    talk(source, ["one", "", "two"], monkeypatch, "Be kind.")
    assert source.asked[1] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "two"},
    ]
    assert "answer 2" in capsys.readouterr().out


def test_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    source = FakeSource()
    talk(
        source,
        ["one", "/reset", "two", "/system Be brief.", "three", "/system", "/help", "/what", "/quit", "four"],
        monkeypatch,
    )
    assert [len(messages) for messages in source.asked] == [1, 1, 2]
    assert source.asked[2][0] == {"role": "system", "content": "Be brief."}
    out = capsys.readouterr().out
    assert "/reset" in out
    assert "/what is not a command" in out


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = FakeSource()
    source.interrupt = True
    conversation = talk(source, ["one"], monkeypatch)
    assert conversation.messages[-1] == {"role": "assistant", "content": "answer"}
    assert source.closed == 1
    assert "stopped" in capsys.readouterr().out


def test_a_failed_question_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = FakeSource()
    source.error = ContextLengthExceeded("too long.")
    conversation = talk(source, ["one"], monkeypatch)
    assert conversation.messages == []
    assert capsys.readouterr().err == "error: too long. /reset begins anew.\n"


def test_a_second_ctrl_c_at_the_prompt_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk_and_interrupt(script: list[str | None]) -> int:
        lines = iter(script)

        def read(prompt: str) -> str:
            line = next(lines)
            if line is None:
                raise KeyboardInterrupt
            return line

        source = FakeSource()
        monkeypatch.setattr("builtins.input", read)
        Conversation(source, SamplingParams(), None).run()  # type: ignore[arg-type]
        return len(source.asked)

    assert talk_and_interrupt([None, "one", None, None, "two"]) == 1
    assert "another Ctrl-C ends" in capsys.readouterr().out


def test_an_answer_in_a_chat_has_an_end(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flags, limit in ((), 512), (("-n", "7"), 7):
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
        assert run("chat", "--url", server.url, *flags).code == 0
        assert server.asked[-1][1]["max_tokens"] == limit


@pytest.mark.usefixtures("demo_path")
def test_a_context_cut_by_the_cache_is_told() -> None:
    outcome = program("generate", "Hi", "-n", "2", "--kv-cache-memory", "20MiB")
    assert outcome.code == 0
    assert outcome.err.startswith("note: the context was cut from 8192 to ")
    assert outcome.err.count("\n") == 1


@pytest.mark.usefixtures("demo_path")
def test_chat_with_an_engine_of_its_own() -> None:
    outcome = program("chat", "-n", "4", "--temperature", "0", stdin="Hello\n/trail\nAnd again\n")
    assert outcome.code == 0
    assert outcome.err == ""
    assert outcome.out.count("4 tokens") >= 2
    assert "prefill" in outcome.out
    # One answer has one speed, whoever tells it.
    shown, drawn = re.findall(r"([0-9.]+) tokens/s", outcome.out)[:2]
    assert abs(float(shown) - float(drawn)) <= 0.51


def test_what_is_not_said_is_left_to_the_server(run: Run, server: FakeServer) -> None:
    sampled = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}
    assert run("generate", "Hello", "--url", server.url).code == 0
    assert not sampled & server.asked[-1][1].keys()
    assert run("generate", "Hello", "--url", server.url, "--temperature", "0.5", "--top-k", "3").code == 0
    assert {k: v for k, v in server.asked[-1][1].items() if k in sampled} == {"temperature": 0.5, "top_k": 3}


def test_chat_with_a_server(server: FakeServer) -> None:
    source = RemoteSource(server.url, None, None)
    reply = Reply()
    pieces = list(source.stream([{"role": "user", "content": "x"}], SamplingParams(), reply))
    source.close()
    assert pieces == server.pieces
    assert (reply.text, reply.completion_tokens, reply.finish_reason) == ("Paris.", 3, "stop")
    assert reply.first_token_seconds is not None


def test_a_server_that_breaks_off() -> None:
    import asyncio

    async def serve(ready: list[int]) -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
            writer.write(b"content-length: 99\r\n\r\ndata: {}\n\n")
            await writer.drain()
            writer.close()

        listening = await asyncio.start_server(handle, "127.0.0.1", 0)
        ready.append(listening.sockets[0].getsockname()[1])
        started.set()
        await asyncio.sleep(10)

    started, ports = threading.Event(), []
    threading.Thread(target=lambda: asyncio.run(serve(ports)), daemon=True).start()
    assert started.wait(10)
    source = RemoteSource(f"http://127.0.0.1:{ports[0]}", None, "m")
    with pytest.raises(TokentrailError, match="broke off"):
        list(source.stream("x", SamplingParams(), Reply()))
    source.close()
