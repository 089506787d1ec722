"""Messages as clients send them → messages as chat templates read them."""

from __future__ import annotations

from typing import Any

from tokentrail.protocol import InvalidRequest
from tokentrail.server.openai.requests import INSTEAD_OF_CONTENT, ROLES, TEXTS, ChatMessage, ContentPart

_PLAIN = ("name", "tool_call_id", "refusal", "reasoning_content", "reasoning")
"""Fields of a message that are passed on as they are."""
_UNREADABLE = {
    "image_url": "an image",
    "input_image": "an image",
    "image": "an image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
    "video_url": "a video",
    "video": "a video",
    "file": "a file",
    "input_file": "a file",
}


def plain_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Raises `InvalidRequest` naming the message and the part at fault."""
    plain = [_message(message, at) for at, message in enumerate(messages)]
    call_id = ""
    for at, message in enumerate(plain):
        # OpenAI's older way of calls, in which one is known by its name alone; templates know the newer one.
        if (call := message.pop("function_call", None)) and not message.get("tool_calls"):
            call_id = f"call{at:05d}"
            message["tool_calls"] = [{"id": call_id, "type": "function", "function": call}]
        elif message["role"] == "function":
            message |= {"role": "tool", "tool_call_id": call_id or f"call{at:05d}"}
    return plain


def text_of(content: str | list[ContentPart] | None, where: str) -> str:
    """Parts of text joined by line breaks. `where`: the field, for errors."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part(part, f"{where}[{number}]") for number, part in enumerate(content))


def _message(message: ChatMessage, at: int) -> dict[str, Any]:
    """As the template gets it: text alone. `developer` is OpenAI's newer word for `system`."""
    # Not `model_dump`, which takes ten times as long: a body may have a hundred thousand messages.
    given = {name: getattr(message, name) for name in _PLAIN} | (message.model_extra or {})
    if message.tool_calls:
        calls = [call.model_dump(exclude_none=True) for call in message.tool_calls]
        given["tool_calls"] = [
            {**call, "type": "function", "function": _function(call["function"])} for call in calls
        ]
    if message.function_call is not None:
        given["function_call"] = _function(message.function_call.model_dump(exclude_none=True))
    if message.role not in ROLES:
        where = f"messages[{at}].role"
        raise InvalidRequest(
            f"{where} must be one of {', '.join(ROLES)}, not {message.role[:40]!r}.", param=where
        )
    where = f"messages[{at}].content"
    if message.content is None and not any(given.get(name) for name in INSTEAD_OF_CONTENT):
        raise InvalidRequest(f"You must provide {where}.", param=where)
    fields: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    fields |= {key: value for key, value in given.items() if value is not None}
    if message.content is not None:
        fields["content"] = text_of(message.content, where)
    elif isinstance(refusal := given.get("refusal"), str):
        fields["content"] = refusal
    elif not (fields.get("tool_calls") or fields.get("function_call")):
        fields["content"] = ""
    return fields


def _function(called: dict[str, Any]) -> dict[str, Any]:
    """A call without arguments has none."""
    return {**called, "arguments": called.get("arguments") or "{}"}


def _part(part: ContentPart, where: str) -> str:
    if part.type not in TEXTS:
        what = _UNREADABLE.get(part.type)
        kind = f"{what} (type {part.type!r})" if what else f"of type {part.type[:40]!r}"
        raise InvalidRequest(
            f"{where} is {kind}, but the model reads text only: leave it out, or describe it in words.",
            param=where,
        )
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        name = "refusal" if part.type == "refusal" else "text"
        raise InvalidRequest(f"{where} has no {name}.", param=where)
    return text
