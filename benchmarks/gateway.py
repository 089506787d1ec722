"""What a gateway costs: time added to an answer, and answers a second, beside none and beside LiteLLM's proxy.

    python benchmarks/gateway.py --litellm /path/to/bin/litellm     # before an upstream that costs nothing
    python benchmarks/gateway.py --local                            # before the demo model on this machine

All stand before the same upstream, on the same cores, one process each, in turns within one run; the first turn of
each is not counted. Latency is that of whole short answers, asked one after the other; throughput that of 64 clients.
`everything` is a deployment file with keys, a ledger (SQLite), filters, a response cache and an access log; the
questions are none that a cache may answer. LiteLLM's proxy (`pip install 'litellm[proxy]'` in an environment of its
own) runs as its documentation has it for one model, with one worker and without keys.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from gateway_load import load
from processes import free_port, tokentrail
from scripted_upstream import MODEL

HERE = Path(__file__).resolve().parent
KEY = "tt-benchmark-key-0123456789abcdef"

REMOTE = """
models:
  - {{name: {model}, url: "{upstream}", kind: openai}}
"""
EVERYTHING = """
keys:
  stored: false
  listed:
    - {{name: bench, key: {key}}}
ledger: {{}}
prices: {{currency: USD, models: {{"*": {{input: 0.05, output: 0.10}}}}}}
access_log: access.jsonl
cache: {{memory_mib: 64}}
filters:
  - {{name: rude, words: [forbidden, verboten, 违禁词], action: mask}}
  - {{name: private, personal: [email, phone, bank_card], action: mask}}
"""
LITELLM = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "{upstream}/v1", api_key: none}}
"""


@dataclass
class Side:
    """One of those that are compared."""

    name: str
    url: str
    model: str = MODEL
    more: dict[str, Any] = field(default_factory=dict)
    """Further parameters of its requests."""
    latencies: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    """Medians of each turn, in milliseconds, by whether answers are streamed."""
    rates: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def running(command: list[str], url: str, health: str = "/health", **environment: str) -> Iterator[None]:
    """A server, from when it is healthy to the block's end."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
        try:
            for _ in range(600):
                if healthy(url + health):
                    break
                if process.poll() is not None:
                    log.seek(0)
                    sys.exit(f"{command[0]} ended:\n{log.read().decode(errors='replace')[-2000:]}")
                time.sleep(0.1)
            else:
                sys.exit(f"{command[0]} did not get ready.")
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def gateway(folder: Path, name: str, text: str) -> Iterator[str]:
    """`tokentrail serve --config`."""
    place = folder / re.sub(r"\W+", "-", name)
    place.mkdir()
    file = place / "deploy.yaml"
    file.write_text(text)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running(
        tokentrail("serve", "--config", file, "--port", port, "--no-log-requests"), url, "/health/ready"
    ):
        yield url


async def turn(sides: list[Side], stream: bool, seconds: float, clients: int, *, count: bool) -> None:
    for side in sides:
        common = {"url": side.url, "model": side.model, "stream": stream, "key": KEY, "more": side.more}
        one = await load(clients=1, seconds=seconds, **common)  # type: ignore[arg-type]
        many = await load(clients=clients, seconds=seconds, **common)  # type: ignore[arg-type]
        if count:
            side.latencies[stream].append(1e3 * one.p50)
            side.rates[stream].append(many.per_second)


def measure(
    sides: list[Side], *, turns: int, seconds: float, clients: int, kinds: tuple[bool, ...] = (False, True)
) -> None:
    """`kinds`: whether answers are streamed."""
    for number in range(turns + 1):
        for stream in kinds:
            warm = 0.5 if number == 0 else seconds
            asyncio.run(turn(sides, stream, warm, clients, count=number > 0))


def report(sides: list[Side], clients: int) -> None:
    direct = sides[0]
    print(f"\n| | streamed | p50 of one client, ms | added | answers/s, {clients} clients |")
    print("| --- | --- | ---: | ---: | ---: |")
    for side in sides:
        for stream in (kind for kind in (False, True) if side.rates[kind]):
            latency, base = median(side.latencies[stream]), median(direct.latencies[stream])
            added = "" if side is direct else f"{latency - base:+.2f}"
            rate = median(side.rates[stream])
            print(f"| {side.name} | {'yes' if stream else 'no'} | {latency:.2f} | {added} | {rate:,.0f} |")


def before_upstream(arguments: argparse.Namespace, folder: Path) -> None:
    port = free_port()
    upstream = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        str(HERE / "scripted_upstream.py"),
        "--port",
        str(port),
        "--tokens",
        str(arguments.tokens),
    ]
    fields = {"model": MODEL, "upstream": upstream, "key": KEY}
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(command, upstream))
        sides = [Side("directly", upstream)]
        plain = stack.enter_context(gateway(folder, "plain", REMOTE.format(**fields)))
        sides.append(Side("Tokentrail", plain))
        full = stack.enter_context(gateway(folder, "everything", (REMOTE + EVERYTHING).format(**fields)))
        sides.append(Side("Tokentrail, everything", full))
        if arguments.litellm is not None:
            file = folder / "litellm.yaml"
            file.write_text(LITELLM.format(**fields))
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            command = [
                str(arguments.litellm),
                "--config",
                str(file),
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ]
            # It refuses to start without a master key otherwise, and with one it would have to look keys up.
            permit = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "LITELLM_LOG": "ERROR"}
            stack.enter_context(
                running([*command, "--num_workers", "1"], url, "/health/liveliness", **permit)
            )
            sides.append(Side("LiteLLM", url))
        measure(sides, turns=arguments.turns, seconds=arguments.seconds, clients=arguments.clients)
        report(sides, arguments.clients)


def before_engine(arguments: argparse.Namespace, folder: Path) -> None:
    """The same model without and with a deployment file, in turns: two engines would share the cores."""
    port = free_port()
    fixed = {"ignore_eos": True}  # all answers are of one length
    plain = Side("without a deployment file", f"http://127.0.0.1:{port}", "demo", fixed)
    full = Side("everything", "", "demo", fixed)
    local = "models:\n  - {{name: demo, model: demo, flags: {{max-num-seqs: 64, max-model-len: 512}}}}\n"
    serve = tokentrail("serve", "--port", port, "--no-log-requests", "--max-num-seqs", 64)
    for number in range(arguments.turns):
        with running([*serve, "--max-model-len", "512", "--served-model-name", "demo"], plain.url):
            measure([plain], turns=1, seconds=arguments.seconds, clients=arguments.clients, kinds=(True,))
        with gateway(folder, f"full {number}", (local + EVERYTHING).format(key=KEY)) as url:
            full.url = url
            measure([full], turns=1, seconds=arguments.seconds, clients=arguments.clients, kinds=(True,))
    report([plain, full], arguments.clients)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a gateway costs.")
    parser.add_argument("--litellm", type=Path, help="the program of LiteLLM's proxy, to be measured too")
    parser.add_argument("--local", action="store_true", help="before the demo model instead of an upstream")
    parser.add_argument("--tokens", type=int, default=16, help="of the upstream's answers")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (before_engine if arguments.local else before_upstream)(arguments, Path(folder))


if __name__ == "__main__":
    main()
