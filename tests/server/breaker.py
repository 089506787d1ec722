"""Clients that leave at any moment, in any way, or send anything, among others that behave.

    python tests/server/breaker.py --seconds 180

Run as a program, it starts a server of its own, and says what it did and what was left over.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from raw_http import request
from real_server import KV_BYTES_PER_TOKEN, RealServer, wait_until_idle

PROMPTS = ("The river", "Once upon a time, in a garden,", "2 + 2 =", "A letter from the city:")
RESET = struct.pack("ii", 1, 0)
_CLIENT = """
import socket, sys, time
held = []
for _ in range(8):
    held.append(socket.create_connection((sys.argv[1], int(sys.argv[2]))))
    held[-1].sendall(bytes.fromhex(sys.argv[3]))
time.sleep(60)
"""


class Breaker:
    def __init__(self, server: RealServer, seed: int) -> None:
        self.server = server
        self.host, port = server.url.removeprefix("http://").split(":")
        self.port = int(port)
        self.random = random.Random(seed)
        self.did: collections.Counter[str] = collections.Counter()
        self.expected: dict[str, str] = {}

    def body(self, stream: bool, **more: Any) -> dict[str, Any]:
        prompt = self.random.choice(PROMPTS)
        return {"model": self.server.model, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True,
                "stream": stream, **more}  # fmt: skip

    def ask(self, stream: bool, **more: Any) -> bytes:
        return request("/v1/completions", self.body(stream, **more))

    async def run(self, clients: int, seconds: float) -> None:
        for prompt in PROMPTS:
            answer = self.server.http.post("/v1/completions", json=self.body(False) | {"prompt": prompt})
            self.expected[prompt] = answer.json()["choices"][0]["text"]
        end = time.monotonic() + seconds
        await asyncio.gather(*[self._client(end) for _ in range(clients)])

    async def _client(self, end: float) -> None:
        actions = [self.behaves, self.behaves, self.leaves, self.shuts_half, self.stops_reading, self.sends_nonsense,
                   self.is_refused, self.pipelines]  # fmt: skip
        while time.monotonic() < end:
            action = self.random.choice(actions)
            try:
                await asyncio.wait_for(action(), 300)
            except (ConnectionError, asyncio.IncompleteReadError):
                if action == self.behaves:
                    raise
            self.did[action.__name__] += 1

    async def _open(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 24)
        writer.write(data)
        return reader, writer

    async def behaves(self) -> None:
        stream = self.random.random() < 0.7
        body = self.body(stream)
        reader, writer = await self._open(
            request("/v1/completions", body, headers="Connection: close\r\n", version="1.0")
        )
        head, _, rest = (await reader.read(-1)).partition(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0], head + rest
        if stream:
            *events, done, tail = rest.decode().split("\n\n")
            assert (done, tail) == ("data: [DONE]", ""), rest[-200:]
            text = "".join(json.loads(event[6:])["choices"][0]["text"] for event in events)
        else:
            text = json.loads(rest)["choices"][0]["text"]
        assert text == self.expected[body["prompt"]], (text, body)
        writer.close()

    async def leaves(self) -> None:
        """At some moment: while it sends, while it waits, in the middle of an answer."""
        data = self.ask(self.random.random() < 0.6, max_tokens=400, n=self.random.choice([1, 1, 3]))
        if self.random.random() < 0.2:
            data = data[: self.random.randrange(len(data))]
        reader, writer = await self._open(data)
        await asyncio.sleep(self.random.random() ** 3)
        if self.random.random() < 0.5:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(reader.read(self.random.choice([1, 500, 5000])), 3)
        if self.random.random() < 0.5:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        else:
            writer.close()

    async def shuts_half(self) -> None:
        reader, writer = await self._open(self.ask(self.random.random() < 0.5))
        writer.write_eof()
        assert (await reader.read(-1)).count(b'"finish_reason":"length"') == 1
        writer.close()

    async def stops_reading(self) -> None:
        _, writer = await self._open(self.ask(True, max_tokens=300, logprobs=20))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(self.random.random())
        writer.transport.abort()

    async def sends_nonsense(self) -> None:
        data = self.random.choice([
            os.urandom(300), b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 3000 + b"\r\n", b"\x16\x03\x01" + bytes(200),
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 200_000,
        ])  # fmt: skip
        reader, writer = await self._open(data)
        answer = await asyncio.wait_for(reader.read(12), 200) if len(data) > 50 and data.isascii() else b""
        assert answer[:10] in (b"", b"HTTP/1.1 4"), answer
        writer.close()

    async def is_refused(self) -> None:
        body: Any = self.random.choice([
            b"{", b"[" * 50_000, b'{"model": "\xff"}', b" " * 17_000_000, {"model": "none", "prompt": "x"},
            self.body(False, temperature=9), self.body(True, prompt="word " * 20_000), self.body(True, max_tokens=0),
            self.body(False, response_format={"type": "json_schema"}),
        ])  # fmt: skip
        reader, writer = await self._open(request("/v1/completions", body))
        status = (await reader.readline()).split(b" ")[1]
        assert status.startswith(b"4"), (status, str(body)[:100])
        writer.close()

    async def pipelines(self) -> None:
        count = self.random.randint(2, 5)
        reader, writer = await self._open(b"".join(self.ask(False, max_tokens=3) for _ in range(count)))
        answers = b""
        while answers.count(b"HTTP/1.1 200") < self.random.randint(1, count):
            data = await reader.read(4096)
            if not data:
                break
            answers += data
        writer.close()

    def killed_clients(self) -> None:
        """A process with eight streams, killed (SIGKILL) in their midst."""
        data = self.ask(True, max_tokens=400).hex()
        process = subprocess.Popen([sys.executable, "-c", _CLIENT, self.host, str(self.port), data])
        time.sleep(1.0)
        process.kill()
        process.wait()
        self.did["killed_clients"] += 1


def left_over(server: RealServer) -> dict[str, float]:
    """What is there when nobody asks: numbers that must not grow."""
    found = wait_until_idle(server, 30)
    end = time.monotonic() + 15
    folder = Path(f"/proc/{server.process.pid}/fd")
    while found["tokentrail_num_requests_in_flight"] and time.monotonic() < end:
        time.sleep(0.1)
        found = server.metrics()
    files = len(list(folder.iterdir()))
    while time.monotonic() < end:  # connections that linger
        time.sleep(0.2)
        now = len(list(folder.iterdir()))
        if now == files and now < 40:
            break
        files = now
    memory = {}
    for name, pid in (("server", server.process.pid), ("engine", server.engine_pid())):
        status = Path(f"/proc/{pid}/status").read_text()
        memory[name] = int(status.split("VmRSS:")[1].split()[0]) / 1024
    return {
        "in flight": found["tokentrail_num_requests_in_flight"],
        "blocks": found["tokentrail_kv_cache_blocks_used"],
        "live journeys": sum(
            one["status"] == "live" for one in server.http.get("/v1/journeys?limit=1000").json()["data"]
        ),
        "restarts": found["tokentrail_engine_restarts_total"],
        "open files": files,
        "MiB of server": memory["server"],
        "MiB of engine": memory["engine"],
    }


def start() -> RealServer:
    return RealServer(
        engine={"kv_cache_memory": 640 * KV_BYTES_PER_TOKEN, "max_num_seqs": 32, "max_model_len": 512},
        trail_size=200,
        log_requests=False,  # its log goes to a pipe that is read at the end only
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Try to break a server.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print("seed", arguments.seed)
    server = start()
    breaker = Breaker(server, arguments.seed)
    asyncio.run(breaker.run(arguments.clients, min(20.0, arguments.seconds / 3)))
    print("warm", left_over(server))
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        asyncio.run(breaker.run(arguments.clients, min(20.0, end - time.monotonic())))
        breaker.killed_clients()
    print("end ", left_over(server))
    print(dict(breaker.did))
    status, log = server.end(signal.SIGTERM)
    lines = [line for line in log.splitlines() if " info " not in line]
    print("exit status", status, *lines[:30], sep="\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    main()
