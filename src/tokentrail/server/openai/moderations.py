"""OpenAI's moderation API, answered by the deployment's filters."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import msgspec
from pydantic import BaseModel, ConfigDict

from tokentrail.protocol import InvalidRequest
from tokentrail.server.errors import HTTPError
from tokentrail.server.generation import caller_of
from tokentrail.server.schemas import List
from tokentrail.server.state import Guard

if TYPE_CHECKING:
    from starlette.requests import Request

    from tokentrail.gateway.filters import Rule
    from tokentrail.gateway.judges import JudgeRule
    from tokentrail.server.state import ServerState

_MOST = 1024
"""Texts of one request."""
_FILTERS = "tokentrail-filters"

CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
"""OpenAI's; a rule names one of them, or brings its own."""


class ModerationPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    type: str
    text: str | None = None


class ModerationRequest(BaseModel):
    """`POST /v1/moderations`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    input: str | List[str] | List[ModerationPart]
    model: str | None = None


class ModerationResult(msgspec.Struct):
    """What is found in one text; all by category."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class Moderation(msgspec.Struct):
    id: str
    model: str
    results: list[ModerationResult]


async def moderate(body: ModerationRequest, state: ServerState, request: Request) -> Moderation:
    """What the filters find, in OpenAI's form. A score is 1 or 0 where a rule knows no more. It counts as a request of
    whoever asks, without tokens: what judges use is not theirs.
    """
    gateway = state.gateway
    if gateway is None or not (gateway.rules or gateway.judges):
        raise HTTPError(
            404,
            "This server has no filters: a deployment file (--config) lists them under `filters`.",
            type="invalid_request_error",
            code="no_filters",
        )
    from tokentrail.gateway.asides import Aside

    texts = _texts(body)
    rules, judges = gateway.rules, gateway.judges
    moderation = Moderation(f"modr-{uuid.uuid4().hex}", body.model or _FILTERS, [])

    async def look() -> None:
        loop = asyncio.get_running_loop()
        moderation.results += await loop.run_in_executor(
            None, lambda: [_result(rules, text) for text in texts]
        )
        if judges:
            pairs = zip(texts, moderation.results, strict=True)
            await asyncio.gather(*(_judge(judges, text, made, aside.tenant) for text, made in pairs))

    aside = Aside(
        id=moderation.id,
        prompts=[],
        model=_FILTERS,
        endpoint=request.url.path,
        work=look,
        **caller_of(request, 0, None),
    )
    async with Guard(state, request):
        made = await state.ready_backend().embed(aside)
    request.state.told = made.headers
    return moderation


async def _judge(judges: list[JudgeRule], text: str, result: ModerationResult, tenant: str) -> None:
    """Add what judges say."""
    from tokentrail.gateway.judges import Matter
    from tokentrail.gateway.judges.rules import verdict_of

    for rule in judges:
        verdict = await verdict_of(rule, Matter(text=text, direction="input", rule=rule.name, tenant=tenant))
        found = set() if verdict.verdict == "allow" else set(verdict.categories or [rule.category])
        for name in {rule.category, *verdict.scores, *found}:
            result.categories[name] = result.categories.get(name, False) or name in found
            score = max(result.category_scores.get(name, 0.0), verdict.scores.get(name, float(name in found)))
            result.category_scores[name] = score
            result.category_applied_input_types[name] = ["text"] if result.categories[name] else []
        result.flagged |= bool(found)


def _texts(body: ModerationRequest) -> list[str]:
    if isinstance(body.input, str):
        return [body.input]
    if not body.input or len(body.input) > _MOST:
        raise InvalidRequest(
            f"input must have from 1 to {_MOST} texts, not {len(body.input)}.", param="input"
        )
    if all(isinstance(one, str) for one in body.input):
        return [one for one in body.input if isinstance(one, str)]
    parts: list[str] = []
    for at, part in enumerate(body.input):
        if isinstance(part, ModerationPart):
            if part.type != "text" or part.text is None:
                raise InvalidRequest(
                    f"input[{at}] is of type {part.type[:40]!r}, but only text is read.", param=f"input[{at}]"
                )
            parts.append(part.text)
    # The parts of a list are one input.
    return ["\n".join(parts)]


def _result(rules: list[Rule], text: str) -> ModerationResult:
    from tokentrail.gateway.filters import find

    found = {rule.category for rule in rules if find(rule.finder, text)}
    names = dict.fromkeys([*CATEGORIES, *(rule.category for rule in rules)])
    return ModerationResult(
        bool(found),
        {name: name in found for name in names},
        {name: float(name in found) for name in names},
        {name: ["text"] if name in found else [] for name in names},
    )
