"""A server whose deployment file lists models: names, routes, remote targets, reloading, health, over real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_server import TEXT, ScriptedServer

from tokentrail.answer import LocalBackend
from tokentrail.answer.parts import TextParts
from tokentrail.gateway import ConfigError

ADMIN = {"authorization": "Bearer tt-admin-0123456789abcdef0123"}


class Upstream:
    """Speaks as much of OpenAI's API as it is asked for: says "far", cuts a stream in the middle, or fails."""

    def __init__(self) -> None:
        self.mode = "well"
        self.asked = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._started.wait(20)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        async with server:
            await self._over.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (
                        int(line[15:])
                        for line in head.lower().split(b"\r\n")
                        if line[:15] == b"content-length:"
                    ),
                    0,
                )
                await reader.readexactly(length)
                if b"/v1/models" in head:
                    self._answer(writer, 200, {"object": "list", "data": [{"id": "far", "object": "model"}]})
                    continue
                self.asked += 1
                if self.mode == "failing":
                    self._answer(writer, 500, {"error": {"message": "broken"}})
                    continue
                self._stream(writer, ["f", "ar"] if self.mode == "well" else ["f"])
                if self.mode == "cutting":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @staticmethod
    def _answer(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % (status, len(body))
            + body
        )

    @staticmethod
    def _stream(writer: asyncio.StreamWriter, words: list[str]) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )

        def event(data: bytes) -> None:
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))

        for number, word in enumerate(words):
            end = "stop" if number == 1 else None
            choice = {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": end}
            chunk = {
                "id": "x",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "far",
                "choices": [choice],
            }
            event(f"data: {json.dumps(chunk)}\n\n".encode())
        if len(words) > 1:
            event(b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    one = Upstream()
    yield one
    one.close()


class Deployed:
    """A scripted server behind a deployment file, as `run` puts it together."""

    def __init__(self, parts: TextParts, folder: Path, upstream: Upstream) -> None:
        self.path = folder / "deploy.yaml"
        self.upstream = upstream
        self.write()
        self.server = ScriptedServer(parts, {"deployment": str(self.path)}, {}, False)
        self.server.call(self._open())

    def write(self, routes: str = "[{model: near, weight: 1}]", more: str = "") -> None:
        self.path.write_text(
            f"""
models:
  - {{name: near, model: demo}}
  - {{name: far, url: "{self.upstream.url}", kind: openai, context_length: 512}}
routes:
  - name: both
    targets: [far]
    fallback: [near]
  - {{name: chosen, targets: {routes}}}
health: {{failures: 3, eject_s: 0.001, eject_most_s: 0.001, slow_start_s: 0, successes: 1, probe_every_s: 3600}}
keys: {{stored: false, listed: [{{key: "tt-admin-0123456789abcdef0123", name: boss, admin: true}},
                {{key: "tt-plain-0123456789abcdef0123", name: other}}]}}
{more}
"""
        )

    async def _open(self) -> None:
        state, server = self.server.state, self.server
        near = LocalBackend(
            server.engine, server._parts, names=("near",), journeys=state.journeys, metrics=state.metrics
        )
        assert state.gateway is not None
        self.gateway = state.gateway
        state.open(state.gateway.route({"near": near}, state.journeys, state.metrics))

    def ask(self, model: str, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "Hi"}]
        return self.server.post(
            "/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": 100, **body}, **ADMIN
        )

    def target(self, name: str) -> Any:
        listed = self.server.get("/health", headers=ADMIN).json()["targets"]
        return next(target for target in listed if target["name"] == name)


@pytest.fixture(scope="module")
def deployed(
    text_parts: TextParts, tmp_path_factory: pytest.TempPathFactory, upstream: Upstream
) -> Iterator[Deployed]:
    one = Deployed(text_parts, tmp_path_factory.mktemp("routes"), upstream)
    yield one
    one.server.close()


def said(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def test_names_and_who_answers(deployed: Deployed) -> None:
    listed = deployed.server.get("/v1/models", headers=ADMIN).json()["data"]
    assert [model["id"] for model in listed] == ["both", "chosen", "near", "far"]
    near, far, both = deployed.ask("near"), deployed.ask("far"), deployed.ask("both")
    assert said(near) == TEXT.removesuffix(" END of it.") or said(near) == TEXT
    assert said(far) == said(both) == "far"
    assert both.json()["model"] == "both"
    assert both.headers["x-tokentrail-served-by"] == "far"
    assert "x-tokentrail-degraded" not in both.headers
    assert deployed.ask("nobody").status_code == 404
    journey = deployed.server.get(f"/v1/journeys/{both.json()['id']}", headers=ADMIN).json()
    assert (journey["route"], journey["target"], journey["attempts"]) == ("both", "far", 1)


def test_a_failing_target_is_stood_in_for(deployed: Deployed, upstream: Upstream) -> None:
    upstream.mode = "failing"
    try:
        answer = deployed.ask("both")
        assert said(answer) == said(deployed.ask("near"))
        assert answer.headers["x-tokentrail-served-by"] == "near"
        assert answer.headers["x-tokentrail-degraded"] == "true"
        journey = deployed.server.get(f"/v1/journeys/{answer.json()['id']}", headers=ADMIN).json()
        assert (journey["target"], journey["degraded"], journey["attempts"]) == ("near", True, 2)
        assert journey["completion_tokens"] == answer.json()["usage"]["completion_tokens"]
        assert deployed.ask("far").status_code in (502, 503)
    finally:
        upstream.mode = "well"


def test_streams_that_break_off_say_so_and_whole_answers_are_asked_for_again(
    deployed: Deployed, upstream: Upstream
) -> None:
    upstream.mode = "cutting"
    try:
        whole = deployed.ask("both")
        assert whole.headers["x-tokentrail-served-by"] == "near"
        lines = deployed.ask("both", stream=True).text.splitlines()
        last = json.loads(next(line for line in reversed(lines) if line)[6:])
        assert last["error"]["code"] == "upstream_cut"
        assert any('"content":"f"' in line for line in lines)
    finally:
        upstream.mode = "well"


def test_health_and_metrics(deployed: Deployed) -> None:
    assert deployed.server.get("/health").json() == {"status": "ok"}
    plain = {"authorization": "Bearer tt-plain-0123456789abcdef0123"}
    assert deployed.server.get("/health", headers=plain).json() == {"status": "ok"}
    wrong = {"authorization": "Bearer wrong"}
    assert deployed.server.get("/health", headers=wrong).json() == {"status": "ok"}
    assert deployed.target("near")["state"] == "closed"
    assert deployed.target("far")["kind"] == "remote"
    assert deployed.target("far")["requests"] >= 1
    metrics = deployed.server.get("/metrics").text
    assert 'tokentrail_target_state{state="closed",target="near"} 1.0' in metrics
    assert 'tokentrail_target_requests_total{target="far"}' in metrics


def test_a_file_is_applied_while_the_server_runs(deployed: Deployed) -> None:
    assert deployed.ask("chosen").headers["x-tokentrail-served-by"] == "near"
    deployed.write(routes="[far]")
    deployed.gateway.reload()
    assert said(deployed.ask("chosen")) == "far"
    deployed.write(routes="[nobody]")
    with pytest.raises(ConfigError, match="there is no such model"):
        deployed.gateway.reload()
    assert said(deployed.ask("chosen")) == "far"


def test_texts_of_the_model_that_is_named(deployed: Deployed) -> None:
    tokens = deployed.server.post("/tokenize", {"model": "near", "prompt": "Hi"}, **ADMIN).json()["tokens"]
    assert tokens
    refused = deployed.server.post("/tokenize", {"model": "far", "prompt": "Hi"}, **ADMIN)
    assert refused.status_code == 400
    assert deployed.server.post("/tokenize", {"model": "nobody", "prompt": "Hi"}, **ADMIN).status_code == 404
