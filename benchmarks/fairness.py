"""What a flood of one tenant costs another: how long the answers of who asks now and then take.

    python benchmarks/fairness.py

Before the demo model: a quiet tenant asks one short question after the other, with a rest between them; alone, while
another tenant keeps 32 clients busy, and once more with the flood under the quiet one's own key: then both are one
tenant, and first come is first served, as without fair sharing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field

from processes import free_port, server, tokentrail

QUIET, FLOOD = "tt-quiet-0123456789", "tt-flood-0123456789"
_NUMBERS = itertools.count()


@dataclass
class Taken:
    """Seconds of each answer."""

    first_token: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


async def ask(port: int, key: str, tokens: int, taken: Taken) -> None:
    """One streamed answer. No two prompts begin alike, so none is found in the prefix cache."""
    number = next(_NUMBERS)
    body = json.dumps(
        {
            "model": "demo",
            "prompt": f"{number} is a number. "
            + "The weather of the day was mild and clear, with a light wind. " * 4,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        began = time.perf_counter()
        writer.write(head.encode() + body)
        text = b""
        first: float | None = None
        while data := await reader.read(1 << 16):
            text += data
            if first is None and b"data: " in text:
                first = time.perf_counter() - began
        if first is None or b"[DONE]" not in text:
            raise RuntimeError(f"no answer: {text[:300]!r}")
        taken.first_token.append(first)
        taken.whole.append(time.perf_counter() - began)
    finally:
        writer.close()


async def quiet(port: int, seconds: float, rest: float, tokens: int) -> Taken:
    taken, until = Taken(), time.perf_counter() + seconds
    while time.perf_counter() < until:
        await ask(port, QUIET, tokens, taken)
        await asyncio.sleep(rest)
    return taken


async def flood(port: int, key: str, clients: int, tokens: int, taken: Taken) -> None:
    async def client() -> None:
        while True:
            await ask(port, key, tokens, taken)

    await asyncio.gather(*(client() for _ in range(clients)))


async def beside(port: int, key: str | None, arguments: argparse.Namespace) -> tuple[Taken, float]:
    """The quiet tenant's answers, and the flood's output tokens a second, from when it has begun."""
    flooding, flooded = None, Taken()
    if key is not None:
        flooding = asyncio.ensure_future(flood(port, key, arguments.clients, arguments.flood_tokens, flooded))
        while len(flooded.whole) < arguments.clients // 2:
            if flooding.done():
                flooding.result()
            await asyncio.sleep(0.05)
    before, began = len(flooded.whole), time.perf_counter()
    taken = await quiet(port, arguments.seconds, arguments.rest, arguments.tokens)
    rate = (len(flooded.whole) - before) * arguments.flood_tokens / (time.perf_counter() - began)
    if flooding is not None:
        flooding.cancel()
        await asyncio.wait({flooding})
        await asyncio.sleep(1.0)
    return taken, rate


def at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description="What a flood of one tenant costs another.")
    parser.add_argument("--clients", type=int, default=32, help="of the flood")
    parser.add_argument("--flood-tokens", type=int, default=64, help="of each of its answers")
    parser.add_argument("--tokens", type=int, default=16, help="of each answer of the quiet tenant")
    parser.add_argument(
        "--rest", type=float, default=0.2, help="seconds between the quiet tenant's questions"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--slots", type=int, default=16, help="sequences that the engine runs at a time")
    arguments = parser.parse_args()
    port = free_port()
    command = tokentrail(
        "serve", "--port", port, "--served-model-name", "demo", "--no-log-requests", "--max-num-seqs", arguments.slots,
        "--max-model-len", 1024, "--api-key", QUIET, "--api-key", FLOOD,
    )  # fmt: skip
    lines = []
    with server(command, f"http://127.0.0.1:{port}"):
        asyncio.run(ask(port, QUIET, 4, Taken()))
        for name, key in (("alone", None), ("beside the flood", FLOOD), ("beside it, as one tenant", QUIET)):
            taken, rate = asyncio.run(beside(port, key, arguments))
            figures = [
                1e3 * at(values, p) for values in (taken.first_token, taken.whole) for p in (0.5, 0.95)
            ]
            shown = " | ".join(f"{one:,.0f}" for one in figures)
            lines.append(f"| {name} | {len(taken.whole)} | {shown} | {f'{rate:,.0f}' if key else ''} |")
    print("| quiet tenant | answers | first token p50, ms | p95 | answer p50, ms | p95 | flood, tokens/s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
