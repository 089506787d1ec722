"""A process with a ledger whose clients are a pipe: what stands in it has been sent. Made to be killed."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from tokentrail.answer import AnswerRequest, Chunk, Timing, Usage
from tokentrail.gateway.config import LedgerSettings
from tokentrail.gateway.database import Database
from tokentrail.gateway.ledger.backend import LedgerBackend, RefusalsBackend
from tokentrail.gateway.ledger.ledger import Ledger
from tokentrail.gateway.ledger.prices import PriceList
from tokentrail.protocol import Overloaded, SamplingParams

PROMPT = 10
CHECKPOINT = 0.001


class Plan(NamedTuple):
    """One request."""

    tokens: int
    streamed: bool
    leaves_after: int | None
    """Its client goes when it has so many tokens."""
    refused: bool = False


class FakeAnswer:
    """Tokens in uneven pieces, with pauses in which others have their turn."""

    def __init__(self, request: AnswerRequest, plan: Plan, rng: random.Random) -> None:
        self.id, self.model, self.created, self.seed, self.fingerprint = request.id, request.model, 0, 0, ""
        self.prompt_token_ids, self.num_choices, self.sampling = [[1] * PROMPT], 1, request.sampling
        self.usage = Usage(prompt_tokens=PROMPT, cached_tokens=PROMPT // 2)
        self.timing = Timing(0.0)
        self.headers: dict[str, str] = {}
        self._plan, self._rng = plan, rng
        self._chunks = self._run()

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    async def _run(self) -> AsyncIterator[list[Chunk]]:
        left = self._plan.tokens
        while left:
            await asyncio.sleep(self._rng.choice([0, 0, 0.0005, 0.002]))
            piece = min(left, self._rng.randint(1, 4))
            left -= piece
            self.usage.completion_tokens += piece
            yield [Chunk(0, "x", token_ids=[1] * piece, finish_reason=None if left else "stop")]

    def divert(self, take: Callable[[Chunk], bool]) -> None: ...

    async def aclose(self) -> None:
        await self._chunks.aclose()  # type: ignore[attr-defined]

    def sent(self, seconds: float) -> None: ...


class FakeBackend:
    ready = True

    def __init__(self, plans: dict[str, Plan]) -> None:
        self.plans = plans

    async def open(self, request: AnswerRequest) -> Any:
        plan = self.plans[request.id]
        if plan.refused:
            raise Overloaded("full", retry_after=1)
        return FakeAnswer(request, plan, random.Random(request.id))


def request_of(name: str, plan: Plan) -> AnswerRequest:
    return AnswerRequest(
        id=name,
        prompts=[],
        sampling=SamplingParams(),
        model="m",
        endpoint="test",
        streamed=plan.streamed,
        request_id=name,
    )


def ledger_of(url: str, folder: Path, **settings: Any) -> Ledger:
    database = Database(url)
    return Ledger(database, LedgerSettings(checkpoint_s=CHECKPOINT, **settings), PriceList(None), folder)


async def ask(backend: Any, name: str, plan: Plan, out: int) -> None:
    """A client, who writes down what it gets: `name tokens`, and `name end`."""
    got = 0
    try:
        answer = await backend.open(request_of(name, plan))
    except Overloaded:
        return
    try:
        held = 0
        async for chunks in answer:
            tokens = sum(len(chunk.token_ids) for chunk in chunks)
            last = chunks[-1].finish_reason is not None
            if not plan.streamed or last:  # as the server does: the last words go out together
                held += tokens
                continue
            os.write(out, f"{name} {tokens}\n".encode())
            got += tokens
            if plan.leaves_after is not None and got >= plan.leaves_after:
                return
        os.write(out, f"{name} {held}\n{name} end\n".encode())
    finally:
        await answer.aclose()


def child(url: str, folder: Path, plans: dict[str, Plan], out: int) -> None:
    """Never returns."""
    code = 1
    try:
        ledger = ledger_of(url, folder)
        ledger.open()

        async def all_of_them() -> None:
            backend = RefusalsBackend(LedgerBackend(FakeBackend(plans), ledger), ledger)  # type: ignore[arg-type]
            await asyncio.gather(*(ask(backend, name, plan, out) for name, plan in plans.items()))

        asyncio.run(all_of_them())
        ledger.close()
        code = 0
    finally:
        os._exit(code)
