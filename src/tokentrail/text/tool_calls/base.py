"""What all formats of tool calls have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON Schema of the arguments' object."""
    strict: bool = False
    """Arguments must keep to the schema even where the model is free to call or not."""


@dataclass(frozen=True)
class Text:
    """Text of the answer that is part of no call."""

    text: str


@dataclass(frozen=True)
class Thought:
    """Text that is a part of the model's thoughts, in formats that mark these in the same way as calls."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call begins."""

    name: str


@dataclass(frozen=True)
class Arguments:
    """A piece of the arguments of the call that began last: of the text of a JSON object."""

    text: str


Event: TypeAlias = Text | Thought | CallStart | Arguments


class ToolParser(ABC):
    """Finds the calls in one answer."""

    @property
    def thinking(self) -> bool:
        """The text so far ends within thoughts that this format marks itself."""
        return False

    @abstractmethod
    def push(self, text: str) -> list[Event]:
        """Add text; return what it brings."""

    @abstractmethod
    def flush(self) -> list[Event]:
        """The answer is over: what was held back."""


class ToolFormat(ABC):
    """How a family of models writes calls."""

    name: ClassVar[str]
    """As `--tool-call-parser` takes it, and as vLLM names it where it knows the format."""
    markers: ClassVar[tuple[str, ...]] = ()
    """Texts that stand around calls. Where they are tokens of their own, these must be shown to the parser, though
    they are no text of an answer."""

    always: ClassVar[bool] = False
    """Every answer has this format, tools or not."""
    short_ids: ClassVar[bool] = False
    """Templates of such models want ids of nine letters and digits."""
    answer_begin: ClassVar[str] = ""
    """What stands before an answer that is no call."""

    @abstractmethod
    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A parser for an answer of a model that was told of these tools."""

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar | None:
        """How calls are written, for answers that must be calls. None: this format cannot be constrained, and a list in
        JSON takes its place.
        """
        return None


@dataclass(frozen=True)
class MemberGrammar:
    """Arguments that are written one by one: `before`, the name, `middle`, the value, `after`, with `between` between
    them. Texts stand as they are, other values are JSON.
    """

    before: str
    middle: str
    after: str
    between: str = ""
    quoted: bool = False
    """Texts are JSON, too."""
    quote: str = ""
    """Stands around texts, also around those within other values, in which names are bare: `{name:value,…}`."""
    not_in_texts: tuple[str, ...] = ()
    """What a parser would take for a mark."""


@dataclass(frozen=True)
class ToolGrammar:
    """The pieces that a call consists of: `begin`, then calls with `between` between them, then `end`.

    A call is `before`, the name, `middle`, arguments in JSON (or one by one), `after`.
    """

    before: str
    middle: str
    after: str
    begin: str = ""
    between: str = ""
    end: str = ""
    quoted: bool = True
    """The name is a JSON string."""
    numbered: bool = False
    """A colon and a number stand behind the name."""
    wrappers: tuple[tuple[str, str], ...] = ()
    """Marks that may stand around all of it, where they are tokens of the vocabulary."""
    members: MemberGrammar | None = None
    """How arguments are written one by one; None: as one JSON object."""
    trigger: str = ""
    """What only a call begins with: where the model is free to call or not, arguments are constrained from here on."""


def merged(events: list[Event]) -> list[Event]:
    """Neighbours of a kind joined; empty ones left out."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + event.text)
        elif isinstance(event, Thought) and isinstance(last, Thought):
            joined[-1] = Thought(last.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments):
            joined[-1] = Arguments(last.text + event.text)
        elif isinstance(event, CallStart) or event.text:
            joined.append(event)
    return joined
