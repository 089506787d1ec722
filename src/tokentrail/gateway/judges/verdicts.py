"""What is judged, and what may be said of it."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec


class Matter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text to be judged. This, as JSON, is what a hook is sent."""

    text: str
    direction: Literal["input", "output"]
    rule: str
    """The rule's name."""
    tenant: str = ""
    model: str = ""
    """The one that is asked."""


class Mark(msgspec.Struct, kw_only=True):
    """A part of the text to be masked: characters (Unicode code points) `start` to `end`."""

    start: int
    end: int
    replacement: str | None = None
    """None: as the rule has it, otherwise a * for each character."""


class Verdict(msgspec.Struct, kw_only=True):
    """The answer of a hook has this form, in JSON."""

    verdict: Literal["allow", "block", "mask", "flag"]
    spans: list[Mark] = []
    """For `mask`; without any, all of the text is masked."""
    categories: list[str] = []
    """Those that were found; none: the rule's."""
    scores: dict[str, float] = {}
    """By category, from 0 to 1; where the judge tells."""


class JudgeFailed(Exception):
    """A judge gave no verdict: it was slow, away, or said what is none."""


class Judge(Protocol):
    async def judge(self, matter: Matter) -> Verdict:
        """Raises `JudgeFailed`."""
        ...

    async def aclose(self) -> None: ...
