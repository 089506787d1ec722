"""Judges over HTTP: a hook of one's own, and APIs of OpenAI's form for moderations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from tokentrail.gateway.judges.verdicts import JudgeFailed, Matter, Verdict

_LARGEST = 1 << 20
"""Bytes of a verdict."""

T = TypeVar("T")


class Endpoint:
    """Somebody who is asked by POST, a bounded number of times at once."""

    def __init__(self, url: str, headers: Mapping[str, str], *, concurrency: int, timeout: float) -> None:
        """`timeout`: of the whole, in seconds; who asks keeps to it too, with the time in line."""
        self._url = url
        self._headers = {**headers, "content-type": "application/json"}
        self._concurrency = concurrency
        self._timeout = timeout
        self._client: Any = None
        self._free: asyncio.Semaphore | None = None

    async def post(self, body: Any, form: type[T]) -> T:
        """Raises `JudgeFailed` for what is not a 200 of this form."""
        import httpx

        if self._free is None:
            self._free = asyncio.Semaphore(self._concurrency)
            self._client = httpx.AsyncClient(
                timeout=self._timeout,
                limits=httpx.Limits(max_connections=self._concurrency),
                # What is judged goes where the file says, and nowhere else.
                follow_redirects=False,
                trust_env=False,
            )
        async with self._free:
            try:
                async with self._client.stream(
                    "POST", self._url, content=msgspec.json.encode(body), headers=self._headers
                ) as response:
                    if response.status_code != 200:
                        raise JudgeFailed
                    data = b""
                    async for part in response.aiter_bytes():
                        data += part
                        if len(data) > _LARGEST:
                            raise JudgeFailed
            except httpx.HTTPError:
                raise JudgeFailed from None
        try:
            return msgspec.json.decode(data, type=form)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise JudgeFailed from None

    async def aclose(self) -> None:
        if self._client is not None:
            with contextlib.suppress(RuntimeError):  # its event loop has ended
                await self._client.aclose()


class HookJudge:
    """An HTTP endpoint that is sent a `Matter` and answers with a `Verdict`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def judge(self, matter: Matter) -> Verdict:
        return await self._endpoint.post(matter, Verdict)

    async def aclose(self) -> None:
        await self._endpoint.aclose()


class _Result(msgspec.Struct):
    flagged: bool
    categories: dict[str, bool] = {}
    category_scores: dict[str, float] = {}


class _Moderation(msgspec.Struct):
    results: list[_Result]


class ModerationJudge:
    """An API of the form of OpenAI's `/v1/moderations`."""

    def __init__(
        self, endpoint: Endpoint, model: str | None, categories: Sequence[str] | None, threshold: float | None
    ) -> None:
        """`categories`: those that count; None: all. `threshold`: the score from which one counts; None: as the
        API says.
        """
        self._endpoint = endpoint
        self._model = model
        self._categories = None if categories is None else frozenset(categories)
        self._threshold = threshold

    async def judge(self, matter: Matter) -> Verdict:
        body: dict[str, Any] = {"input": matter.text}
        if self._model is not None:
            body["model"] = self._model
        made = await self._endpoint.post(body, _Moderation)
        if not made.results:
            raise JudgeFailed
        scores: dict[str, float] = {}
        over: dict[str, None] = {}
        found = False
        for result in made.results:
            for name in {**result.categories, **result.category_scores}:
                if self._categories is not None and name not in self._categories:
                    continue
                flagged = result.categories.get(name, False)
                score = result.category_scores.get(name, float(flagged))
                scores[name] = max(scores.get(name, 0.0), score)
                if flagged if self._threshold is None else score >= self._threshold:
                    over[name] = None
            if self._categories is None and self._threshold is None:
                found |= result.flagged
        found = found or bool(over)
        return Verdict(verdict="block" if found else "allow", categories=list(over), scores=scores)

    async def aclose(self) -> None:
        await self._endpoint.aclose()
