"""Rules: what is looked for, where, and what happens then."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tokentrail.gateway.filters.spans import Finder, Span


class Action(Enum):
    """What is done about a text in which a rule finds something."""

    BLOCK = "block"
    """Refuse the prompt; end the answer before it."""
    MASK = "mask"
    """Put something else in its place."""
    FLAG = "flag"
    """Let it pass, and tell the client."""
    LOG = "log"
    """Let it pass; it is counted, and the rule's name goes to the log. (Both are done for every action.)"""


@dataclass(frozen=True)
class Rule:
    name: str
    finder: Finder
    action: Action
    inputs: bool = True
    outputs: bool = True
    replacement: str | None = None
    """Of what is masked; None: a * for each character."""
    category: str = ""
    """What /v1/moderations calls it."""


@dataclass(frozen=True)
class Finding:
    rule: Rule
    span: Span
