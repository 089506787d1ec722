"""A service while its parts die, hang and crawl: does every request get its answer, and the right one?

    python benchmarks/chaos.py --minutes 30 --llama-cpp build/llama.cpp/bin

Two replicas of the demo model on cores of their own and a real llama.cpp server as a remote target, behind one server
with a ledger. Clients ask without a pause, the local model by its name or a route over both, streamed or whole, while
at random an engine process is killed or stopped (until the server notices), one or the other target is slowed by bursts
of SIGSTOP and SIGCONT, and llama.cpp is killed, stopped and brought back. Required are:

- every request has exactly one answer, and exactly one row in the ledger, which says the same;
- what the local model answers is, byte for byte, what it answers undisturbed; it has no errors at all;
- no stream ends without a finish reason, unless it was cut at the remote target: then with an error that says so. Those
  are counted apart, and what is sent as a whole is asked again elsewhere.

Ends with the exit status 1 if anything of this is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from processes import family, free_port, server, tokentrail

from tokentrail.checkpoints import demo_model_path

QUESTIONS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain why the sky is blue.",
    "Tell me three facts about cats.",
    "How do I boil an egg?",
    "Write a Python function that adds two numbers.",
    "用一句话介绍北京。",
    "Count from one to twenty in words.",
)
LENGTHS = (12, 32, 64)
KINDS = {
    "kill replica": 2,
    "stop replica": 2,
    "slow replica": 2,
    "kill remote": 1,
    "stop remote": 1,
    "slow remote": 1,
}
"""Events, and how often they come beside each other."""
AFTERMATH = 5.0
"""Seconds after an event within which requests count as disturbed by it."""
CUT = {"upstream_cut", "upstream_timeout", "upstream_unreachable", "upstream_broken", "upstream_failed"}


@dataclass
class Question:
    """One of the requests that are sent again and again."""

    number: int
    body: dict[str, Any]
    answer: str = ""
    """What the local model says to it undisturbed …"""
    finish: str = ""
    """… and why it stops."""


@dataclass
class Outcome:
    """One request as its client saw it."""

    id: str
    question: int
    model: str
    streamed: bool
    begun: float
    first: float | None = None
    ended: float = 0.0
    kind: str = ""
    """ok; cut: at the remote target, and said so; or what is wrong."""
    target: str = ""
    tokens: int = 0
    detail: str = ""


@dataclass
class Event:
    at: float
    kind: str
    until: float


@dataclass
class Run:
    outcomes: list[Outcome] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def questions(rng: random.Random) -> list[Question]:
    """Greedy and seeded ones, short and long; some begin alike."""
    found = []
    for number, (text, length) in enumerate((text, length) for text in QUESTIONS for length in LENGTHS):
        messages = [{"role": "user", "content": text}]
        if number % 3 == 0:
            messages.insert(0, {"role": "system", "content": "You are a patient teacher. " * 8})
        body: dict[str, Any] = {"messages": messages, "max_tokens": length, "seed": rng.randrange(1000)}
        body["temperature"] = 0.0 if number % 2 else 0.8
        found.append(Question(number, body))
    return found


# --- clients ------------------------------------------------------------------------------------------------


async def ask(http: httpx.AsyncClient, question: Question, model: str, streamed: bool, id: str) -> Outcome:
    outcome = Outcome(id, question.number, model, streamed, time.time())
    body = {**question.body, "model": model, "stream": streamed}
    try:
        text, finish = await (_streamed if streamed else _whole)(http, body, outcome)
    except httpx.HTTPError as error:
        outcome.kind, outcome.detail = "lost", f"{type(error).__name__}: {error}"
    else:
        if not outcome.kind:
            outcome.kind, outcome.detail = _judge(question, outcome, text, finish)
    outcome.ended = time.time()
    return outcome


def _judge(question: Question, outcome: Outcome, text: str, finish: str | None) -> tuple[str, str]:
    if finish is None:
        return "silently cut", f"after {text[-40:]!r}"
    if outcome.target != "local":
        return ("ok", "") if text else ("empty", "")
    if (text, finish) != (question.answer, question.finish):
        return "other bytes", f"{text!r}, not {question.answer!r}"
    return "ok", ""


async def _whole(http: httpx.AsyncClient, body: dict[str, Any], outcome: Outcome) -> tuple[str, str | None]:
    response = await http.post("/v1/chat/completions", json=body, headers={"x-request-id": outcome.id})
    value = response.json()
    if response.status_code != 200:
        _failed(outcome, response.status_code, value)
        return "", None
    outcome.target = "local" if value.get("system_fingerprint", "").startswith("tt-") else "remote"
    outcome.tokens = value["usage"]["completion_tokens"]
    (choice,) = value["choices"]
    return choice["message"]["content"], choice["finish_reason"]


async def _streamed(
    http: httpx.AsyncClient, body: dict[str, Any], outcome: Outcome
) -> tuple[str, str | None]:
    text, finish, done, ids = "", None, False, set()
    body = {**body, "stream_options": {"include_usage": True}}
    headers = {"x-request-id": outcome.id}
    async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        if response.status_code != 200:
            _failed(outcome, response.status_code, json.loads(await response.aread()))
            return "", None
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                done = True
                continue
            event = json.loads(line[6:])
            if "error" in event:
                _failed(outcome, 200, event)
                return text, None
            ids.add(event["id"])
            if event.get("usage"):
                outcome.tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                if piece and outcome.first is None:
                    outcome.first = time.time()
                text += piece
                finish = choice["finish_reason"] or finish
                if piece or choice["finish_reason"]:
                    local = (event.get("system_fingerprint") or "").startswith("tt-")
                    target = "local" if local else "remote"
                    if outcome.target not in ("", target):
                        outcome.kind, outcome.detail = "mixed", f"{outcome.target} and {target}"
                    outcome.target = target
    if len(ids) != 1:
        outcome.kind, outcome.detail = "mixed", f"ids {ids}"
    return text, finish if done else None


def _failed(outcome: Outcome, status: int, value: Any) -> None:
    error = value["error"]
    code = error.get("code")
    whole = not outcome.streamed
    outcome.kind = "cut" if code in CUT and not whole and outcome.model != "local" else "error"
    outcome.detail = f"{status} {code}: {error['message']}"
    outcome.target = "remote" if code in CUT else outcome.target


async def client(
    http: httpx.AsyncClient, known: Sequence[Question], run: Run, until: float, rng: random.Random, name: str
) -> None:
    number = 0
    while time.time() < until:
        number += 1
        question = rng.choice(known)
        model = "local" if rng.random() < 0.4 else "chat"
        outcome = await ask(http, question, model, rng.random() < 0.7, f"chaos-{name}-{number}")
        run.outcomes.append(outcome)
        if outcome.kind in ("error", "lost"):
            await asyncio.sleep(0.2)


# --- chaos --------------------------------------------------------------------------------------------------


class LlamaCpp:
    """The remote target: a real server that is killed and brought back at one port."""

    def __init__(self, programs: Path, port: int, log: Path) -> None:
        slots, context = 8, 512
        self._command = [
            str(programs / "llama-server"), "-m", str(demo_model_path()), "-t", "1",
            "--host", "127.0.0.1", "--port", str(port), "-np", str(slots), "-c", str(slots * context), "--no-webui",
        ]  # fmt: skip
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is None or self._process.poll() is not None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def engines(pid: int) -> list[int]:
    """Engine processes below the server (Linux)."""
    found = []
    for one in family(pid)[1:]:
        try:
            if Path(f"/proc/{one}/comm").read_text().strip() == "tokentrail-eng":
                found.append(one)
        except OSError:
            continue
    return found


def send(pid: int | None, number: signal.Signals) -> bool:
    try:
        if pid is not None:
            os.kill(pid, number)
            return True
    except ProcessLookupError:
        pass
    return False


async def crawl(pid: int, seconds: float, rng: random.Random) -> None:
    """Let it run for a part of the time only."""
    end = time.time() + seconds
    while time.time() < end:
        if not send(pid, signal.SIGSTOP):
            return
        await asyncio.sleep(rng.uniform(0.05, 0.3))
        send(pid, signal.SIGCONT)
        await asyncio.sleep(rng.uniform(0.05, 0.2))


async def disturb(
    server_pid: int, llama: LlamaCpp, run: Run, until: float, pause: float, rng: random.Random
) -> None:
    """One event after the other; what was taken away is brought back."""
    working: set[asyncio.Task[None]] = set()

    async def away(seconds: float, back: Callable[[], Any]) -> None:
        await asyncio.sleep(seconds)
        back()

    while time.time() < until:
        await asyncio.sleep(rng.expovariate(1 / pause))
        alive = engines(server_pid)
        engine = rng.choice(alive) if alive else None
        (kind,) = rng.choices([*KINDS], KINDS.values())
        seconds = rng.uniform(2, 6)
        remote = llama.pid
        done = False
        if kind == "kill replica":
            done = send(engine, signal.SIGKILL)
            seconds = 0.0
        elif kind == "stop replica":
            done = send(engine, signal.SIGSTOP)  # the server has to notice
            seconds = 0.0
        elif kind == "slow replica" and engine is not None:
            done = True
            working.add(asyncio.create_task(crawl(engine, seconds, rng)))
        elif kind == "kill remote" and remote is not None:
            done = True
            llama.kill()
            working.add(asyncio.create_task(away(seconds, llama.start)))
        elif kind == "stop remote":
            done = send(remote, signal.SIGSTOP)
            pid = remote
            working.add(asyncio.create_task(away(seconds * 2, lambda pid=pid: send(pid, signal.SIGCONT))))
            seconds *= 2
        elif kind == "slow remote" and remote is not None:
            done = True
            working.add(asyncio.create_task(crawl(remote, seconds, rng)))
        if done:
            run.events.append(Event(time.time(), kind, time.time() + seconds))
    for task in working:
        await task
    send(llama.pid, signal.SIGCONT)
    llama.start()


# --- the run ------------------------------------------------------------------------------------------------


async def undisturbed(http: httpx.AsyncClient, known: Sequence[Question]) -> None:
    for question in known:
        body = {**question.body, "model": "local"}
        value = (await http.post("/v1/chat/completions", json=body)).json()
        (choice,) = value["choices"]
        question.answer, question.finish = choice["message"]["content"], choice["finish_reason"]


async def load(url: str, server_pid: int, llama: LlamaCpp, arguments: argparse.Namespace) -> tuple[Run, str]:
    rng = random.Random(arguments.seed)
    run = Run()
    limits = httpx.Limits(max_connections=arguments.clients + 4)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        known = questions(rng)
        await undisturbed(http, known)
        until = time.time() + arguments.minutes * 60
        clients = [
            asyncio.create_task(client(http, known, run, until, random.Random(rng.random()), str(number)))
            for number in range(arguments.clients)
        ]
        chaos = asyncio.create_task(
            disturb(server_pid, llama, run, until, arguments.pause, random.Random(rng.random()))
        )
        await asyncio.gather(chaos, *clients)
        return run, (await http.get("/metrics")).text


def deployment(folder: Path, remote_port: int) -> Path:
    path = folder / "deploy.yaml"
    path.write_text(
        f"""
models:
  - name: local
    model: demo
    replicas: 2
    flags: {{max-model-len: 512, kv-cache-memory: 128MiB, step-timeout: 4, max-num-seqs: 32}}
  - name: remote
    url: http://127.0.0.1:{remote_port}
    kind: llama.cpp
    context_length: 512
    max_concurrent: 8
    timeouts: {{connect_s: 2, first_token_s: 30, between_tokens_s: 10}}
routes:
  - name: chat
    targets: [local, remote]
health: {{probe_every_s: 1, probe_timeout_s: 3, eject_s: 1, eject_most_s: 4, slow_start_s: 2}}
database: sqlite:///{folder}/ledger.db
ledger: {{}}
"""
    )
    return path


def ledger_problems(path: Path, run: Run) -> list[str]:
    """Where the ledger and the clients differ."""
    rows: dict[str, list[tuple[str, int, int]]] = {}
    with sqlite3.connect(path) as database:
        for id, state, tokens, attempts in database.execute(
            "select request_id, state, output_tokens, attempts from usage_requests where request_id is not null"
        ):
            rows.setdefault(id, []).append((state, tokens, attempts))
    found = []
    for outcome in run.outcomes:
        own = rows.pop(outcome.id, [])
        if len(own) != 1:
            found.append(f"{outcome.id} ({outcome.kind}) has {len(own)} rows")
            continue
        ((state, tokens, _),) = own
        if outcome.kind == "ok" and (state != "done" or tokens != outcome.tokens):
            found.append(
                f"{outcome.id}: {outcome.tokens} tokens at the client, {tokens} ({state}) in the ledger"
            )
    found += [f"{id}: in the ledger, and no client has it" for id in rows if id.startswith("chaos-")]
    return found


def percentile(values: Sequence[float], part: float) -> str:
    return f"{sorted(values)[min(len(values) - 1, int(part * len(values)))]:.2f}" if values else "–"


def report(run: Run) -> None:
    def row(name: str, count: str, those: list[Outcome]) -> None:
        whole = [one.ended - one.begun for one in those if one.kind == "ok"]
        first = [one.first - one.begun for one in those if one.first is not None]
        cut = sum(one.kind == "cut" for one in those)
        cells = (name, count, len(those), cut, *(percentile(first, p) for p in (0.5, 0.99)),
                 *(percentile(whole, p) for p in (0.5, 0.99)))  # fmt: skip
        print("| " + " | ".join(map(str, cells)) + " |")

    print(
        "| event | times | requests meanwhile | cut at the remote | first token p50, s | p99 | answer p50, s | p99 |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    disturbed: set[str] = set()
    for kind in sorted({event.kind for event in run.events}):
        events = [event for event in run.events if event.kind == kind]
        those = [
            one
            for one in run.outcomes
            if any(one.begun < e.until + AFTERMATH and one.ended > e.at for e in events)
        ]
        disturbed |= {one.id for one in those}
        row(kind, str(len(events)), those)
    row("none", "", [one for one in run.outcomes if one.id not in disturbed])
    row("all", str(len(run.events)), run.outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Requests while parts of the service die, hang and crawl.")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--pause", type=float, default=6.0, help="seconds between events, on average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder with llama-server")
    parser.add_argument("--log", type=Path, help="write the server's log there")
    parser.add_argument("--output", type=Path, help="write every event and request there, as JSON")
    arguments = parser.parse_args()
    port, remote_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        llama = LlamaCpp(arguments.llama_cpp, remote_port, folder / "llama.log")
        llama.start()
        command = tokentrail("serve", "--config", deployment(folder, remote_port), "--port", port,
                             "--no-log-requests")  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        try:
            with server(command, url, log_file=arguments.log or folder / "server.log") as process:
                run, metrics = asyncio.run(load(url, process.pid, llama, arguments))
        finally:
            send(llama.pid, signal.SIGCONT)
            llama.kill()
        problems = ledger_problems(folder / "ledger.db", run)
    if arguments.output:
        written = {"events": [asdict(e) for e in run.events], "requests": [asdict(o) for o in run.outcomes]}
        arguments.output.write_text(json.dumps(written, indent=1))
    report(run)
    wanted = ("engine_restarts_total", "replica_moves_total", "target_requests_total", "target_failures_total",
              "target_retries_total", "target_ejections_total")  # fmt: skip
    print()
    for line in metrics.splitlines():
        if line.startswith(tuple(f"tokentrail_{name}" for name in wanted)):
            print(line)
    kinds = Counter((one.target or "?", one.kind) for one in run.outcomes)
    print()
    for (target, kind), count in sorted(kinds.items()):
        print(f"{target}: {count} {kind}")
    bad = [one for one in run.outcomes if one.kind not in ("ok", "cut")]
    for one in bad[:20]:
        print(f"WRONG {one.id} {one.model} {one.target}: {one.kind}: {one.detail}")
    for problem in problems[:20]:
        print(f"LEDGER {problem}")
    print(f"{len(run.outcomes)} requests: {len(bad)} wrong, {len(problems)} differ in the ledger")
    sys.exit(1 if bad or problems or not run.outcomes else 0)


if __name__ == "__main__":
    main()
