"""Conversations as chat templates read them, put together from what dialects send."""

from __future__ import annotations

from typing import Any

from tokentrail.protocol import InvalidRequest

LONGEST_THOUGHTS = 1_000_000
"""Tokens. Nothing is longer."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def thinking_variables(
    effort: str | None, enabled: bool | None, field: str = "reasoning_effort"
) -> dict[str, Any]:
    """What templates know of thinking, as their variables. `field`: what the effort is called in the request."""
    variables: dict[str, Any] = {}
    if effort is not None:
        if effort not in EFFORTS:
            raise InvalidRequest(
                f"{field} must be one of {', '.join(EFFORTS)}, not {effort[:40]!r}.", param=field
            )
        if effort == "none":
            variables |= {"enable_thinking": False, "thinking": False}
        else:
            variables["reasoning_effort"] = effort
    if enabled is not None:
        variables |= {"enable_thinking": enabled, "thinking": enabled}
    return variables


class Conversation:
    """Messages in the making. Thoughts, texts and calls that follow each other are one message of the assistant."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        """Texts that are to be joined are lists until the end: there may be many."""
        self._names: dict[str, str] = {}
        """Of functions, by the call's id."""

    def messages(self) -> list[dict[str, Any]]:
        """All of them, as OpenAI has them. The conversation is over then."""
        for message in self._messages:
            for field in ("reasoning_content", "content"):
                if isinstance(texts := message.get(field), list):
                    message[field] = "\n".join(texts)
        return self._messages

    def say(self, role: str, text: str) -> None:
        """A message of somebody else. What the system says in a row is one: many templates know only one."""
        if role == "system":
            if self._messages and self._messages[-1]["role"] == role:
                self._messages[-1]["content"].append(text)
            else:
                self._messages.append({"role": role, "content": [text]})
        else:
            self._messages.append({"role": role, "content": text})

    def think(self, text: str) -> None:
        last = self._assistant()
        if "content" in last or "tool_calls" in last:
            last = self._begin()  # who has spoken and thinks again begins anew
        last.setdefault("reasoning_content", []).append(text)

    def answer(self, text: str) -> None:
        self._assistant().setdefault("content", []).append(text)

    def call(self, id: str, name: str, arguments: str) -> None:
        """`arguments`: JSON."""
        self._names[id] = name
        function = {"name": name, "arguments": arguments}
        call = {"id": id, "type": "function", "function": function}
        self._assistant().setdefault("tool_calls", []).append(call)

    def called(self, id: str) -> bool:
        return id in self._names

    def result(self, id: str, text: str) -> None:
        """What a call returned."""
        self._messages.append(
            {"role": "tool", "tool_call_id": id, "name": self._names.get(id), "content": text}
        )

    def _assistant(self) -> dict[str, Any]:
        if self._messages and self._messages[-1]["role"] == "assistant":
            return self._messages[-1]
        return self._begin()

    def _begin(self) -> dict[str, Any]:
        self._messages.append({"role": "assistant"})
        return self._messages[-1]
