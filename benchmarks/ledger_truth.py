"""Whether the ledger says what clients got, with clients that leave and servers that are killed.

    python benchmarks/ledger_truth.py                        # 10,000 requests, three times kill -9, SQLite
    python benchmarks/ledger_truth.py --database postgresql://… --servers 2

Real servers (behind each an engine process that computes nothing), real HTTP. Each client counts the tokens that reach
it, by their log-probabilities, and what the answer says of usage. A request is sent once, under an id of its own.

What must hold, and is checked request by request and in sums:
- ended (its last event, or the whole body, came): one row, `done`, with exactly the tokens that the answer told;
- left (the client hung up after so many tokens): one row, `aborted` or `done`, with at least what had come, and at most
  what the server had handed to the connection when it noticed, which is never above what was asked (if the server
  died before it noticed: as the next);
- killed (its server died): what had begun to come has one row. `interrupted`: at most what came. `done`: its last row
  was written and its last word did not get out; then all that was asked is billed, and of a stream all of it came;
- refused (503, where a machine was too busy to write in time): nothing billed; failed (an error ended the stream): as
  left, and `failed`;
- nothing else is in the ledger, and the command's sums are the sums of all this.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from processes import free_port, tokentrail
from server_overhead import IdleRunner
from sqlalchemy import text

from tokentrail.gateway.database import Database

KEYS = ("prompt_tokens", "cached_tokens", "output_tokens")


class QuickRunner(IdleRunner):
    pause = 0.004


class Client:
    """One request and what came of it."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.id = f"truth-{number}"
        self.streamed = rng.random() < 0.7
        self.tokens = rng.choice((1, 2, 5, 10, 20, 40))
        self.leaves = rng.randrange(self.tokens + 1) if rng.random() < 0.2 else None
        self.prompt = rng.choice(("Hello", "A somewhat longer prompt. " * rng.randint(1, 20)))
        self.came = 0
        self.usage: dict[str, int] | None = None
        self.end = "unsent"

    def body(self) -> bytes:
        body: dict[str, Any] = {
            "model": "m",
            "prompt": self.prompt,
            "max_tokens": self.tokens,
            "logprobs": 0,
            "stream": self.streamed,
        }
        if self.streamed:
            body["stream_options"] = {"include_usage": True}
        return json.dumps(body).encode()

    async def run(self, port: int) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return  # nobody was asked
        body = self.body()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: {self.id}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            self.end = "killed"  # unless it ends otherwise
            if not self.streamed and self.leaves is not None:
                try:
                    await asyncio.wait_for(self._whole(reader), 0.003 * self.leaves)
                except asyncio.TimeoutError:
                    self.end = "left"
            elif self.streamed:
                await self._stream(reader)
            else:
                await self._whole(reader)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _whole(self, reader: asyncio.StreamReader) -> None:
        data = await reader.read()
        head, _, body = data.partition(b"\r\n\r\n")
        if not body:
            return
        if b" 200 " not in head.split(b"\r\n")[0]:
            self.end = "refused"
            return
        answer = json.loads(body)
        self._tells(answer["usage"])
        self.came = len(answer["choices"][0]["logprobs"]["tokens"])
        self.end = "ended"

    async def _stream(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            if line.startswith(b"HTTP/1.1 5"):
                self.end = "refused"
                return
            if self.leaves is not None and self.came >= self.leaves and line.startswith(b"data: "):
                self.end = "left"
                return
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    self.end = "failed"
                    return
                for choice in event["choices"]:
                    self.came += len(choice["logprobs"]["tokens"]) if choice["logprobs"] else 0
                if event.get("usage"):
                    self._tells(event["usage"])
            elif line.startswith(b"data: [DONE]"):
                self.end = "ended"

    def _tells(self, usage: dict[str, Any]) -> None:
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.usage = dict(
            zip(KEYS, (usage["prompt_tokens"], cached, usage["completion_tokens"]), strict=True)
        )


class Servers:
    """Processes at ports that stay the same."""

    def __init__(self, count: int, folder: Path) -> None:
        here = str(Path(__file__).resolve().parent)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH")))),
            "TOKENTRAIL_RUNNER": "ledger_truth:QuickRunner",
        }
        self._folder = folder
        self.ports = [free_port() for _ in range(count)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.log = (folder / "log").open("ab")

    async def start(self, port: int) -> None:
        command = tokentrail(
            "serve", "--port", str(port), "--served-model-name", "m", "--no-log-requests", "--max-num-seqs", "128",
            "--config", str(self._folder / "deploy.yaml"),
        )  # fmt: skip
        process = subprocess.Popen(
            command, env=self._environment, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL
        )
        for _ in range(6000):
            assert process.poll() is None, (self._folder / "log").read_text()[-2000:]
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                ready = b" 200 " in await reader.readline()
                writer.close()
                if ready:
                    break
            except OSError:
                pass
            await asyncio.sleep(0.02)
        self.processes[port] = process

    def kill(self, port: int) -> None:
        process = self.processes.pop(port)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        """Whatever went wrong, none of them stays."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.log.close()

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            assert process.wait(60) == 0
        self.processes.clear()


async def load(servers: Servers, clients: list[Client], at_once: int, kills: int, rng: random.Random) -> None:
    waiting: Iterator[Client] = iter(clients)
    done = 0

    async def one() -> None:
        nonlocal done
        for client in waiting:
            while client.end == "unsent":
                running = list(servers.processes)
                if running:
                    await client.run(rng.choice(running))
                if client.end == "unsent":
                    await asyncio.sleep(0.01)
            done += 1

    async def killing() -> None:
        for number in range(kills):
            mark = len(clients) * (number + 1) // (kills + 1)
            while done < mark:
                await asyncio.sleep(0.005)
            port = rng.choice(list(servers.processes))
            servers.kill(port)
            print(f"killed after {done} requests", flush=True)
            await servers.start(port)

    await asyncio.gather(killing(), *(one() for _ in range(at_once)))


def judge(clients: list[Client], rows: list[dict[str, Any]]) -> None:
    found: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for row in rows:
        if row["request_id"] in found:
            problems.append(f"{row['request_id']} has two rows")
        found[row["request_id"]] = row
    by_id = {client.id: client for client in clients}
    problems += [f"{id} was never sent" for id in found.keys() - by_id.keys()]
    kinds: dict[str, Counter[str]] = {}
    for client in clients:
        row = found.get(client.id)
        state = "no row" if row is None else row["state"]
        kind = (
            client.end
            if client.end == "ended"
            else f"{client.end}, {'stream' if client.streamed else 'whole'}"
        )
        count = kinds.setdefault(f"{kind}: {state}", Counter())
        count["requests"] += 1
        count["came"] += client.came
        count["billed"] += 0 if row is None else row["output_tokens"]
        if why := wrong(client, row):
            problems.append(f"{client.id} ({kind}, {client.came} of {client.tokens} came): {why}: {row}")
    print(f"\n{'clients: ledger':32} {'requests':>9} {'tokens that came':>17} {'billed':>9}")
    for kind, count in sorted(kinds.items()):
        print(f"{kind:32} {count['requests']:9,} {count['came']:17,} {count['billed']:9,}")
    ended = [client for client in clients if client.usage is not None and client.end == "ended"]
    for name in KEYS:
        told = sum(client.usage[name] for client in ended if client.usage is not None)
        billed = sum(found[client.id][name] for client in ended if client.id in found)
        print(f"of those that ended, {name}: {told:,} told, {billed:,} in the ledger")
        if told != billed:
            problems.append(f"{name}: {told} told, {billed} billed")
    print(f"\n{len(problems)} differences" + "".join(f"\n  {problem}" for problem in problems[:20]))
    if problems:
        sys.exit(1)


def wrong(client: Client, row: dict[str, Any] | None) -> str:
    billed = 0 if row is None else row["output_tokens"]
    state = "" if row is None else row["state"]
    if client.end == "ended":
        if row is None or state != "done":
            return "it ended, and the ledger does not say so"
        if client.usage != {name: row[name] for name in KEYS} or client.came != billed:
            return f"it told {client.usage}"
    elif client.end == "refused":
        return "billed" if billed else ""
    elif client.end in ("left", "failed"):
        if row is None:
            return "it has no row" if client.came else ""
        if state == "interrupted":  # the server died before it noticed
            return "billed above what was sent" if billed > client.came else ""
        if (
            state not in (("aborted", "done") if client.end == "left" else ("failed",))
            or not client.came <= billed <= client.tokens
        ):
            return "not between what came and what was asked"
        if state == "done" and billed != client.tokens:
            return "done, but not all of it"
    elif row is None:
        return "something came, and it has no row" if client.came else ""
    elif state == "interrupted":
        if billed > client.came:
            return "billed above what was sent"
    elif state != "done" or billed != client.tokens:
        return "neither interrupted nor done"
    elif client.streamed and client.came != client.tokens:
        return "its end was written before the rest was sent"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--database", default="sqlite:///truth.db")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "deploy.yaml").write_text(
            f"database: {options.database}\nledger: {{checkpoint_s: 0.05, lease_s: 5}}\n"
            "prices: {models: {m: {input: 0.15, cached_input: 0.075, output: 0.6}}}\n"
        )
        servers = Servers(options.servers, folder)
        stack.callback(servers.end)
        clients = [Client(number, rng) for number in range(options.requests)]

        async def run() -> float:
            await asyncio.gather(*(servers.start(port) for port in servers.ports))
            start = time.monotonic()
            await load(servers, clients, options.clients, options.kills, rng)
            return time.monotonic() - start

        seconds = asyncio.run(run())
        servers.stop()
        print(f"{options.requests:,} requests in {seconds:.0f} s")
        database = Database(options.database, folder)
        with database.read() as connection:
            rows = [dict(row) for row in connection.execute(text("SELECT * FROM usage_requests")).mappings()]
        database.close()
        command = tokentrail(
            "usage", "--config", str(folder / "deploy.yaml"), "--by", "model", "--format", "json"
        )
        lines = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for name in KEYS:
            assert sum(line[name] for line in lines) == sum(row[name] for row in rows), name
        assert sum(line["requests"] for line in lines) == len(rows)
        judge(clients, rows)


if __name__ == "__main__":
    main()
