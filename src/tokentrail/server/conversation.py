"""Conversations as chat templates read them, put together from what dialects send."""

from __future__ import annotations

from typing import Any

from tokentrail.protocol import InvalidRequest

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def thinking_variables(
    effort: str | None, enabled: bool | None, field: str = "reasoning_effort"
) -> dict[str, Any]:
    """What templates know of thinking, as their variables. `field`: what the effort is called in the request."""
    variables: dict[str, Any] = {}
    if effort is not None:
        if effort not in _EFFORTS:
            raise InvalidRequest(
                f"{field} must be one of {', '.join(_EFFORTS)}, not {effort[:40]!r}.", param=field
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
        self.messages: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}
        """Of functions, by the call's id."""

    def say(self, role: str, text: str) -> None:
        """A message of somebody else."""
        self.messages.append({"role": role, "content": text})

    def think(self, text: str) -> None:
        last = self._assistant()
        if "content" in last or "tool_calls" in last:
            last = self._begin()  # who has spoken and thinks again begins anew
        before = last.get("reasoning_content")
        last["reasoning_content"] = text if before is None else f"{before}\n{text}"

    def answer(self, text: str) -> None:
        last = self._assistant()
        last["content"] = f"{last['content']}\n{text}" if "content" in last else text

    def call(self, id: str, name: str, arguments: str) -> None:
        """`arguments`: JSON."""
        self._names[id] = name
        function = {"name": name, "arguments": arguments}
        self._assistant().setdefault("tool_calls", []).append(
            {"id": id, "type": "function", "function": function}
        )

    def called(self, id: str) -> bool:
        return id in self._names

    def result(self, id: str, text: str) -> None:
        """What a call returned."""
        message = {"role": "tool", "tool_call_id": id, "content": text}
        if id in self._names:
            message["name"] = self._names[id]
        self.messages.append(message)

    def _assistant(self) -> dict[str, Any]:
        if self.messages and self.messages[-1]["role"] == "assistant":
            return self.messages[-1]
        return self._begin()

    def _begin(self) -> dict[str, Any]:
        self.messages.append({"role": "assistant"})
        return self.messages[-1]
