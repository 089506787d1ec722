"""Items ↔ conversations as templates read them, and as they are kept."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokentrail.answer import ChatPrompt
from tokentrail.protocol import ContextLengthExceeded, InvalidRequest
from tokentrail.server.conversation import Conversation
from tokentrail.server.responses.requests import TEXTS, ContentPart, Item

_ROLES = ("user", "assistant", "system", "developer")
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""Of ids, by type."""


def type_of(item: Item) -> str:
    """What an item is where it does not say so."""
    if item.type is not None:
        return item.type
    return "item_reference" if item.role is None and item.id is not None else "message"


def references(given: str | Sequence[Item]) -> list[str]:
    """Ids of items that are only referred to."""
    if isinstance(given, str):
        return []
    return [item.id or "" for item in given if type_of(item) == "item_reference"]


def resolved(given: str | Sequence[Item], kept: Mapping[str, dict[str, Any]]) -> list[Item]:
    """The items of a request, with references replaced by what is kept."""
    if isinstance(given, str):
        return [Item(type="message", role="user", content=given)]
    items = []
    for at, item in enumerate(given):
        if type_of(item) != "item_reference":
            items.append(item)
            continue
        found = kept.get(item.id or "")
        if found is None:
            raise InvalidRequest(
                f"input[{at}]: there is no item with the id {(item.id or '')[:80]!r} here. Send the item itself; or "
                "start the server with --responses-store, which keeps those of so many responses.",
                param=f"input[{at}].id",
            )
        items.append(Item.model_validate(found))
    return items


def messages_of(
    history: Sequence[Item], items: Sequence[Item], instructions: str | None
) -> list[dict[str, Any]]:
    """Messages as templates read them. `history`: what was said in responses before this one."""
    talk = Conversation()
    if instructions:
        talk.say("system", instructions)
    for item in history:
        _add(talk, item, "previous_response_id")
    if not items and not history:
        raise InvalidRequest("input must not be empty.", param="input")
    for at, item in enumerate(items):
        _add(talk, item, f"input[{at}]")
    return talk.messages()


def _add(talk: Conversation, item: Item, where: str) -> None:
    kind = type_of(item)
    if kind == "message":
        role = item.role or ""
        if role not in _ROLES:
            raise InvalidRequest(
                f"{where}.role must be one of {', '.join(_ROLES)}, not {role[:40]!r}.", param=f"{where}.role"
            )
        text = _text(item.content, f"{where}.content")
        if role == "assistant":
            talk.answer(text)
        else:
            talk.say("system" if role == "developer" else role, text)
    elif kind == "function_call":
        name, arguments = _given(item.name, f"{where}.name"), _given(item.arguments, f"{where}.arguments")
        talk.call(_given(item.call_id, f"{where}.call_id"), name, arguments)
    elif kind == "function_call_output":
        call = _given(item.call_id, f"{where}.call_id")
        if not talk.called(call):
            raise InvalidRequest(
                f"{where}.call_id: there is no function_call with the call_id {call[:80]!r} before it.",
                param=f"{where}.call_id",
            )
        talk.result(call, _text(item.output, f"{where}.output"))
    elif kind == "reasoning":
        if item.content:  # not a summary, which the model has not said
            talk.think(_text(item.content, f"{where}.content"))
    else:
        raise InvalidRequest(
            f"{where} is of type {kind[:40]!r}, but this server knows messages, function_call, function_call_output, "
            "reasoning and item_reference.",
            param=f"{where}.type",
        )


def _text(content: str | Sequence[ContentPart] | None, where: str) -> str:
    if content is None:
        raise InvalidRequest(f"You must provide {where}.", param=where)
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(content):
        place = f"{where}[{number}]"
        if part.type == "refusal":
            texts.append(_given(part.refusal, f"{place}.refusal"))
        elif part.type in TEXTS:
            texts.append(_given(part.text, f"{place}.text"))
        else:
            raise InvalidRequest(
                f"{place} is of type {part.type[:40]!r}, but the model reads text only.", param=place
            )
    return "\n".join(texts)


def _given(value: str | None, field: str) -> str:
    if value is None:
        raise InvalidRequest(f"You must provide {field}.", param=field)
    return value


def kept_form(item: Item) -> dict[str, Any]:
    """An item as it is listed later: with an id, and its text in parts."""
    kind = type_of(item)
    fields = item.model_dump(exclude_none=True)
    fields |= {"type": kind, "id": item.id or f"{_PREFIXES.get(kind, 'item')}_{uuid.uuid4().hex}"}
    if kind == "message":
        part = "output_text" if item.role == "assistant" else "input_text"
        if isinstance(item.content, str):
            fields["content"] = [{"type": part, "text": item.content}]
        if item.role == "assistant":
            for one in fields["content"]:
                one.setdefault("annotations", [])
    if kind == "reasoning":
        fields.setdefault("summary", [])
    else:
        fields.setdefault("status", "completed")
    return fields


def cut_to_fit(prompt: ChatPrompt, count: Callable[[ChatPrompt], int], most: int) -> ChatPrompt:
    """The prompt without as many of its oldest turns as make it have at most `most` tokens (`truncation: auto`). What
    the system says at the beginning stays, and so does the last turn: a prompt that is still too long is refused later.
    """
    messages = prompt.messages
    head = 0
    while head < len(messages) and messages[head]["role"] == "system":
        head += 1
    turns = [at for at in range(head + 1, len(messages)) if messages[at]["role"] == "user"]

    def cut(start: int) -> ChatPrompt:
        return ChatPrompt(
            messages=[*messages[:head], *messages[start:]],
            tools=prompt.tools,
            template_kwargs=prompt.template_kwargs,
        )

    def fits(one: ChatPrompt) -> bool:
        try:
            return count(one) <= most
        except ContextLengthExceeded:
            return False

    if not turns or fits(prompt):
        return prompt
    low, high = 0, len(turns) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(cut(turns[middle])):
            high = middle
        else:
            low = middle + 1
    return cut(turns[low])
