"""A server as a user starts it: a process of its own, with the demo model in an engine process below it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai

from tokentrail.engine.config import EngineConfig
from tokentrail.server.config import ServerConfig

_START = """
import msgspec, sys
from tokentrail.protocol import TokentrailError
from tokentrail.server import ServerConfig, serve
try:
    serve(msgspec.json.decode(sys.argv[1], type=ServerConfig))
except TokentrailError as error:
    sys.exit(f"error: {error}")
"""
KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2
"""Of the demo model in bfloat16: layers, keys and values, heads, dimensions, bytes."""


def launch(config: ServerConfig) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _START, msgspec.json.encode(config).decode()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class RealServer:
    def __init__(self, *, engine: dict[str, Any] | None = None, **config: Any) -> None:
        self.config = ServerConfig(port=0, engine=EngineConfig(**(engine or {})), **config)
        self.process = launch(self.config)
        assert self.process.stdout is not None
        self.banner = self.process.stdout.readline()
        assert " at http://" in self.banner, self.process.communicate(timeout=20)
        self.url = self.banner.split(" at ")[1].strip().removesuffix("/v1")
        headers = {"authorization": f"Bearer {self.config.api_keys[0]}"} if self.config.api_keys else {}
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=60)
        self.key = self.config.api_keys[0] if self.config.api_keys else "none"
        self.model = self.http.get("/v1/models").json()["data"][0]["id"]

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            api_key=self.key, base_url=f"{self.url}/v1", max_retries=0, timeout=100, **options
        )

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(api_key=self.key, base_url=f"{self.url}/v1", max_retries=0, timeout=100)

    def metrics(self) -> dict[str, float]:
        """Samples with their labels, as they are written, apart from the model's name."""
        found = {}
        for line in self.http.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.replace(f'model_name="{self.model}"', "").replace("{,", "{").replace("{}", "")
                found[name] = float(value)
        return found

    def engine_pid(self) -> int | None:
        """The engine process, from /proc; None: there is none at the moment."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """(exit status, what it logged)"""
        self.http.close()
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log


def wait_until_idle(server: RealServer, seconds: float = 20) -> dict[str, float]:
    """Metrics, once nothing runs or waits."""
    end = time.monotonic() + seconds
    while True:
        found = server.metrics()
        if not (found["tokentrail_num_requests_running"] or found["tokentrail_num_requests_waiting"]):
            return found
        assert time.monotonic() < end, "requests are still running"
        time.sleep(0.02)
