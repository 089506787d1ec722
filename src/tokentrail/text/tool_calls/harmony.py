"""gpt-oss: an answer is messages in channels (OpenAI's "harmony"): thoughts, calls, and what is for the user.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`, with
`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}` for a call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokentrail.text.markers import MarkerSearch
from tokentrail.text.tool_calls.base import (
    Arguments,
    CallStart,
    Event,
    Text,
    Thought,
    Tool,
    ToolFormat,
    ToolGrammar,
    ToolParser,
    merged,
)
from tokentrail.text.tool_calls.json_value import JsonObject

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN, _END, _CALL, _RETURN = "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"
_MARKERS = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _CALL, _RETURN)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")


class HarmonyFormat(ToolFormat):
    name = "openai"
    markers = _MARKERS
    always = True
    answer_begin = f"{_CHANNEL}final{_MESSAGE}"

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return HarmonyParser()

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar:
        return ToolGrammar(
            before=f"{_CHANNEL}commentary to=functions.",
            middle=f" {_CONSTRAIN}json{_MESSAGE}",
            after="",
            between=f"{_CALL}{_START}assistant",
            quoted=False,
        )


class HarmonyParser(ToolParser):
    """Heads, in which a message says what it is, and bodies. The prompt has begun the first head."""

    def __init__(self) -> None:
        self._search = MarkerSearch()
        self._head: str | None = ""
        """None: inside of a body."""
        self._kind = "final"
        self._object: JsonObject | None = None
        self._begun = False

    @property
    def thinking(self) -> bool:
        return self._head is None and self._kind == "analysis" and self._object is None

    def push(self, text: str) -> list[Event]:
        self._search.push(text)
        return merged(self._read(final=False))

    def flush(self) -> list[Event]:
        events = self._read(final=True)
        if self._head is not None and not self._begun:
            # No mark at all: the model answered as others do.
            events.append(Text(self._head))
        return merged(events)

    def _read(self, *, final: bool) -> list[Event]:
        events: list[Event] = []
        while True:
            before, found = self._search.until(_MARKERS, final=final)
            if self._head is not None:
                self._head += before
            else:
                events += self._body(before)
            if found is None:
                return events
            self._begun = True
            if found == _MESSAGE and self._head is not None:
                events += self._begin(self._head)
            elif found in (_START, _END, _CALL, _RETURN):
                events += self._end()
                self._head = ""
            elif self._head is not None:
                self._head += found

    def _begin(self, head: str) -> list[Event]:
        """What a message is, by its head."""
        self._head = None
        channel = head.partition(_CHANNEL)[2].split(None, 1)
        self._kind = channel[0].partition("<")[0] if channel else "final"
        recipient = _RECIPIENT.search(head)
        if recipient is None:
            return []
        self._object = JsonObject()
        return [CallStart(recipient[1])]

    def _body(self, text: str) -> list[Event]:
        if self._object is not None:
            return [Arguments("".join(map(self._object.push, text)))]
        return [Thought(text) if self._kind == "analysis" else Text(text)]

    def _end(self) -> list[Event]:
        empty = self._object is not None and not self._object.begun
        self._object = None
        return [Arguments("{}")] if empty else []
