"""What the ledger costs: CPU time a request, and how long last words wait for their row.

    python benchmarks/ledger.py
    python benchmarks/ledger.py --database postgresql://postgres@/tokentrail?host=/tmp

Answers come from nowhere, a token every millisecond, and are streamed to nobody: what is measured is the ledger. `loop`
is CPU time of the thread in which all requests run, `writer` that of the ledger's own; `wait` is from an answer's end
until its last word may leave; `late` is how much later than asked a timer on the event loop fires.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvloop

from tokentrail.answer import AnswerRequest, Chunk, Timing, Usage
from tokentrail.gateway.config import LedgerSettings
from tokentrail.gateway.database import open_database
from tokentrail.gateway.ledger.backend import LedgerBackend, RefusalsBackend
from tokentrail.gateway.ledger.ledger import Ledger
from tokentrail.gateway.ledger.prices import PriceList
from tokentrail.protocol import SamplingParams


class Answer:
    def __init__(self, request: AnswerRequest, tokens: int, pause: float) -> None:
        self.id, self.model, self.created, self.seed, self.fingerprint = request.id, request.model, 0, 0, ""
        self.prompt_token_ids, self.num_choices, self.sampling = [[1] * 10], 1, request.sampling
        self.usage, self.timing, self.headers = Usage(prompt_tokens=10), Timing(0.0), dict[str, str]()
        self.ended = 0.0
        self._tokens, self._pause = tokens, pause
        self._chunks = self._run()

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    async def _run(self) -> AsyncIterator[list[Chunk]]:
        for left in range(self._tokens - 1, -1, -1):
            await asyncio.sleep(self._pause)
            self.usage.completion_tokens += 1
            yield [Chunk(0, "x", token_ids=[1], finish_reason=None if left else "stop")]
        self.ended = time.perf_counter()

    def divert(self, take: Callable[[Chunk], bool]) -> None: ...

    async def aclose(self) -> None:
        await self._chunks.aclose()  # type: ignore[attr-defined]

    def sent(self, seconds: float) -> None: ...


class Backend:
    def __init__(self, tokens: int, pause: float) -> None:
        self._tokens, self._pause = tokens, pause
        self.last: dict[str, Answer] = {}

    async def open(self, request: AnswerRequest) -> Any:
        answer = self.last[request.id] = Answer(request, self._tokens, self._pause)
        return answer


async def run(ledger: Ledger | None, clients: int, count: int, tokens: int, pause: float) -> dict[str, float]:
    inner = Backend(tokens, pause)
    backend: Any = inner if ledger is None else RefusalsBackend(LedgerBackend(inner, ledger), ledger)  # type: ignore[arg-type]
    waits: list[float] = []
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            request = AnswerRequest(
                id=f"chatcmpl-{number:032x}",
                prompts=[],
                sampling=SamplingParams(),
                model="some-model",
                endpoint="/v1/chat/completions",
                streamed=True,
                received=time.time(),
            )
            answer = await backend.open(request)
            async for _ in answer:
                pass
            waits.append(time.perf_counter() - inner.last.pop(request.id).ended)
            await answer.aclose()

    lateness: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + 0.005
            await asyncio.sleep(0.005)
            lateness.append(time.perf_counter() - due)

    ticking = asyncio.ensure_future(tick())
    before = 0 if ledger is None else ledger.writer.commits
    start, loop, process = time.perf_counter(), time.thread_time(), time.process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - start
    loop, process = time.thread_time() - loop, time.process_time() - process
    ticking.cancel()
    waits.sort()
    lateness.sort()
    return {
        "rate": count / seconds,
        "loop": loop / count * 1e6,
        "writer": (process - loop) / count * 1e6,
        "commits": (0 if ledger is None else ledger.writer.commits - before) / count,
        "p50": waits[len(waits) // 2] * 1e3,
        "p99": waits[len(waits) * 99 // 100] * 1e3,
        "late": lateness[len(lateness) * 99 // 100] * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", help="default: SQLite in a new folder")
    parser.add_argument("--folder", help="where that is; default: the system's for temporary files")
    options = parser.parse_args()
    print(
        "| clients | tokens | ledger | requests/s | loop, µs | writer, µs | commits | wait p50, ms | p99 | late p99 |"
    )
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        database = open_database(options.database, Path(folder))
        ledger = Ledger(database, LedgerSettings(), PriceList(None), Path(folder))
        ledger.open()
        uvloop.install()
        for clients, count, tokens, pause in ((1, 200, 10, 0.001), (64, 4000, 50, 0.001), (64, 6000, 1, 0.0)):
            for one in (None, ledger):
                found = asyncio.run(run(one, clients, count, tokens, pause))
                print(
                    f"| {clients} | {tokens} | {'no' if one is None else 'yes'} | {found['rate']:.0f} | "
                    f"{found['loop']:.0f} | {found['writer']:.0f} | {found['commits']:.2f} | {found['p50']:.2f} | "
                    f"{found['p99']:.2f} | {found['late']:.2f} |"
                )
        ledger.close()
        database.close()


if __name__ == "__main__":
    main()
