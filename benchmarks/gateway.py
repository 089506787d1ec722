"""What a gateway costs: time added to an answer, and answers a second, beside none and beside LiteLLM's proxy.

    python benchmarks/gateway.py --litellm /path/to/bin/litellm     # before an upstream that costs nothing
    python benchmarks/gateway.py --local                            # before the demo model on this machine
    python benchmarks/gateway.py --local --without filters          # the same, without a part of the deployment file

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

from filters import words
from gateway_load import load
from processes import family, free_port, thread_seconds, tokentrail
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
LOCAL = """
models:
  - {{name: demo, model: demo, flags: {{max-num-seqs: {clients}, max-model-len: 512}}}}
"""
PARTS = {
    "keys": "keys: {{stored: false, listed: [{{name: bench, key: {key}}}]}}\n"
    "limits: {{each_key: {{requests_per_minute: 1000000, tokens_per_minute: 100000000}}}}\n",
    "ledger": 'ledger: {{}}\nprices: {{currency: USD, models: {{"*": {{input: 0.05, output: 0.10}}}}}}\n',
    "access_log": "access_log: access.jsonl\n",
    "filters": """filters:
  - {{name: rude, words_file: words.txt, action: mask}}
  - {{name: secrets, pattern: "PROJECT-[0-9]{{4,8}}", action: block}}
  - {{name: private, personal: [email, phone, identity_card, bank_card, key], action: mask}}
""",
}
"""What is on before the local engine: filters with a list of 100,000 words, and no cache."""
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
def running(
    command: list[str], url: str, health: str = "/health", **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
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
            yield process
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
    """The same model without and with a deployment file, taking turns; the one that waits takes no time."""
    fixed = {"ignore_eos": True, "max_tokens": arguments.tokens}  # all answers are of one length
    parts = "".join(text for name, text in PARTS.items() if name not in arguments.without)
    (folder / "words.txt").write_text("\n".join(words(100_000)))
    file = folder / "deploy.yaml"
    file.write_text((LOCAL + parts).format(key=KEY, clients=arguments.clients))
    sizes = ("--max-num-seqs", arguments.clients, "--max-model-len", 512, "--served-model-name", "demo")
    commands = {"without a deployment file": sizes, "with it": ("--config", file)}
    with contextlib.ExitStack() as stack:
        sides: dict[str, tuple[str, int]] = {}
        for name, options in commands.items():
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            command = tokentrail("serve", "--port", port, "--no-log-requests", *options)
            sides[name] = url, stack.enter_context(running(command, url, "/health/ready")).pid
        rates: dict[str, list[float]] = {name: [] for name in sides}
        spent: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(arguments.turns + 1):
            # Who was second is first in the next turn.
            for name in list(sides)[:: -1 if turn % 2 else 1]:
                url, pid = sides[name]
                before = sum(thread_seconds(family(pid)).values())
                found = asyncio.run(
                    load(
                        url,
                        model="demo",
                        clients=arguments.clients if turn else 4,
                        seconds=600.0,
                        stream=True,
                        key=KEY,
                        more=fixed,
                        answers=1,
                    )
                )
                if turn:
                    rates[name].append(arguments.tokens * found.per_second)
                    cpu = sum(thread_seconds(family(pid)).values()) - before
                    spent[name].append(1e3 * cpu / arguments.tokens / len(found.latencies))
    print("\n| | output tokens/s, each turn | median | CPU of all its processes, ms a token |")
    print("| --- | --- | ---: | ---: |")
    for name in sides:
        each = ", ".join(f"{rate:.0f}" for rate in rates[name])
        print(f"| {name} | {each} | {median(rates[name]):.0f} | {median(spent[name]):.3f} |")
    lost = [100 * (1 - b / a) for a, b in zip(*rates.values(), strict=True)]
    print(f"\nlost: {median(lost):.1f} % (each turn: {', '.join(f'{one:.1f}' for one in lost)})")


def main() -> None:
    parser = argparse.ArgumentParser(description="What a gateway costs.")
    parser.add_argument("--litellm", type=Path, help="the program of LiteLLM's proxy, to be measured too")
    parser.add_argument("--local", action="store_true", help="before the demo model instead of an upstream")
    parser.add_argument("--without", nargs="*", choices=PARTS, default=[], help="of the local engine's file")
    parser.add_argument("--tokens", type=int, help="of each answer; default: 16, of the local engine 64")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    arguments.tokens = arguments.tokens or (64 if arguments.local else 16)
    with tempfile.TemporaryDirectory() as folder:
        (before_engine if arguments.local else before_upstream)(arguments, Path(folder))


if __name__ == "__main__":
    main()
