"""What is done about verdicts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from tokentrail.gateway.filters import Action
from tokentrail.gateway.judges.verdicts import Judge, JudgeFailed, Mark, Matter, Verdict
from tokentrail.observability import Metrics
from tokentrail.protocol import TokentrailError

log = logging.getLogger(__name__)


class FilterUnavailable(TokentrailError):
    """A rule that must be asked does not answer."""

    status = 503
    code = "filter_unavailable"


@dataclass(frozen=True)
class JudgeRule:
    name: str
    judge: Judge
    action: Action | None
    """None: as the verdict says."""
    inputs: bool = True
    outputs: bool = True
    passes_on_failure: bool = False
    """What no verdict came for passes; otherwise it is refused."""
    window: int | None = None
    """Characters of an answer that are judged at a time; None: the whole."""
    timeout: float = 5.0
    replacement: str | None = None
    category: str = ""


@dataclass
class Outcome:
    """What all rules say of one text."""

    blocked: JudgeRule | None = None
    marks: list[Mark] = field(default_factory=list)
    """In order, none overlapping another, all within the text and with a replacement."""
    flagged: list[str] = field(default_factory=list)


async def consult(rules: Sequence[JudgeRule], matter: Matter, metrics: Metrics) -> Outcome:
    """Ask all of them at once. Raises `FilterUnavailable` where one that must be asked gives no verdict."""
    verdicts = await asyncio.gather(*(_ask(rule, matter, metrics) for rule in rules))
    outcome = Outcome()
    marks: list[Mark] = []
    for rule, verdict in zip(rules, verdicts, strict=True):
        if verdict is None or verdict.verdict == "allow":
            continue
        action = Action(verdict.verdict) if rule.action is None else rule.action
        metrics.filter_matches[rule.name, matter.direction, action.value] += 1
        log.info("the filter %r found something in the %s: %s", rule.name, matter.direction, action.value)
        if action is Action.BLOCK:
            outcome.blocked = outcome.blocked or rule
        elif action is Action.FLAG:
            outcome.flagged.append(rule.name)
        elif action is Action.MASK:
            marks += _marks(rule, verdict, len(matter.text), matter.text)
    outcome.marks = _merged(marks)
    return outcome


async def verdict_of(rule: JudgeRule, matter: Matter) -> Verdict:
    """Raises `FilterUnavailable` where there is none."""
    try:
        return await asyncio.wait_for(rule.judge.judge(matter), rule.timeout)
    except (JudgeFailed, asyncio.TimeoutError, TokentrailError) as error:
        log.warning("the filter %r gives no verdict: %s", rule.name, type(error).__name__)
        raise FilterUnavailable(f"The rule {rule.name!r} could not be asked. Try again.") from None


async def _ask(rule: JudgeRule, matter: Matter, metrics: Metrics) -> Verdict | None:
    """None: none came, and that is fine with the rule."""
    asked = Matter(
        text=matter.text, direction=matter.direction, rule=rule.name, tenant=matter.tenant, model=matter.model
    )
    try:
        return await verdict_of(rule, asked)
    except FilterUnavailable:
        metrics.filter_failures[rule.name] += 1
        if rule.passes_on_failure:
            return None
        raise


def _marks(rule: JudgeRule, verdict: Verdict, length: int, text: str) -> list[Mark]:
    found = []
    for span in verdict.spans or [Mark(start=0, end=length)]:
        start, end = max(0, span.start), min(length, span.end)
        if start >= end:
            continue
        replacement = rule.replacement if span.replacement is None else span.replacement
        found.append(Mark(start=start, end=end, replacement=replacement))
    return found


def _merged(marks: list[Mark]) -> list[Mark]:
    """Those that overlap are one, replaced as the first of them."""
    merged: list[Mark] = []
    for mark in sorted(marks, key=lambda one: (one.start, -one.end)):
        if merged and mark.start < merged[-1].end:
            merged[-1].end = max(merged[-1].end, mark.end)
        else:
            merged.append(mark)
    return merged


def masked(text: str, start: int, marks: Sequence[Mark], *, json: bool = False) -> str:
    """`text`, which begins at character `start` of what was judged, with its marks. `json`: it is part of a JSON text,
    and still is afterwards.
    """
    parts: list[str] = []
    at = 0
    for mark in marks:
        first, last = max(mark.start - start, 0), min(mark.end - start, len(text))
        if first >= last:
            continue
        parts.append(text[at:first])
        hidden = text[first:last]
        if json:
            parts += ("9" if c.isdigit() else "*" if c.isalpha() else c for c in hidden)
        elif mark.replacement is None:
            parts.append("*" * len(hidden))
        elif mark.start >= start:
            parts.append(mark.replacement)
        at = last
    return "".join([*parts, text[at:]])


def touches(marks: Sequence[Mark], start: int, end: int) -> bool:
    return any(mark.start < end and start < mark.end for mark in marks)
