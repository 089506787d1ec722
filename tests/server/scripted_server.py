"""Servers on real sockets: the real application and web server in a thread, before a scripted engine."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "answer"))

from scripted_engine import ScriptedEngine

from tokentrail.answer import LocalBackend
from tokentrail.answer.parts import TextParts
from tokentrail.gateway import Gateway
from tokentrail.journey import JourneyStore
from tokentrail.observability import Metrics
from tokentrail.server.config import ServerConfig
from tokentrail.server.run import _listen, _web_server
from tokentrail.server.state import ServerState

T = TypeVar("T")

TEXT = "The quick brown fox 🦊 jumps über the lazy dog.\n\n北京欢迎你！ END of it."
MODEL = "demo"
TEXTS = st.lists(
    st.sampled_from(["a", " ", "\n", "é", "中", "文", "🦊", "👩‍🚀", "e\u0301", "\u2028", '"', "\\", "<"]),
    max_size=12,
).map("".join)
"""What is hard to cut or to write: parts of characters, marks, line ends and JSON's own signs."""


class ScriptedServer:
    """A server whose engine says TEXT to everything, or what its script says."""

    def __init__(self, parts: TextParts, config: dict[str, Any], engine: dict[str, Any], ready: bool) -> None:
        tokens = [*parts.tokenizer.encode(TEXT), 2]
        self.tokens = tokens
        self.config = ServerConfig(**{"served_model_names": (MODEL,), **config})
        self.engine = ScriptedEngine(**{"script": lambda request: tokens, **engine})
        self._parts = parts
        self._ready = ready
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        self.http = httpx.Client(timeout=30)
        assert self._started.wait(20)

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        listener = _listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        journeys = JourneyStore(self.config.trail_size, keep_text=self.config.trail_text)
        deployment = self.config.deployment
        gateway = None if deployment is None else Gateway(deployment)
        if gateway is not None:
            gateway.prepare()
        self.state = ServerState(self.config, journeys, Metrics(MODEL), gateway)
        self.web = _web_server(self.state)
        if self._ready:
            self.open()
        serving = asyncio.ensure_future(self.web.serve(sockets=[listener]))
        self._started.set()
        await serving

    def open(self) -> None:
        backend = LocalBackend(
            self.engine,
            self._parts,
            names=self.config.served_model_names,
            journeys=self.state.journeys,
            metrics=self.state.metrics,
        )
        self.state.open(backend)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def close(self) -> None:
        self.http.close()
        for work in self.state.background:
            self.call(work.stop())
        if self.state.gateway is not None:
            self.call(self.state.gateway.aclose())
        self.web.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def client(self, key: str = "none", **options: Any) -> openai.OpenAI:
        return openai.OpenAI(api_key=key, base_url=f"{self.url}/v1", max_retries=0, **options)

    def async_client(self, key: str = "none", **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(api_key=key, base_url=f"{self.url}/v1", max_retries=0, **options)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.http.post(self.url + path, json=body, headers=headers)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(self.url + path, **options)

    def chat(self, **body: Any) -> httpx.Response:
        """A chat request, raw."""
        messages = [{"role": "user", "content": "Hi"}]
        return self.post("/v1/chat/completions", {"model": MODEL, "messages": messages, **body})

    def complete(self, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": MODEL, "prompt": "Hi", "max_tokens": 100, **body})

    def metric(self, name: str) -> float:
        for line in self.get("/metrics").text.splitlines():
            if line.startswith((name + "{", name + " ")):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)


MakeServer = Callable[..., ScriptedServer]
