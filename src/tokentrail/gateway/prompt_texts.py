"""The texts of a prompt: all that somebody wrote, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tokentrail.answer import ChatPrompt, InfillPrompt, Prompt, TextPrompt

_NAMES = frozenset({"role", "type", "id", "tool_call_id"})
"""What stands in messages and is no text of anybody's."""


def texts_of(prompt: Prompt) -> Iterator[str]:
    """In the order of `with_texts`. Token ids are not among them."""
    if isinstance(prompt, TextPrompt):
        yield prompt.text
    elif isinstance(prompt, InfillPrompt):
        if isinstance(prompt.prefix, str):
            yield prompt.prefix
        yield prompt.suffix
    elif isinstance(prompt, ChatPrompt):
        # Whoever may bring a template can write the prompt with it.
        yield from _strings([prompt.messages, prompt.tools, prompt.template_kwargs, prompt.template])


def ids_of(prompt: Prompt) -> list[int] | None:
    """The token ids that stand in the place of a text, or of a part of it."""
    if isinstance(prompt, InfillPrompt):
        return None if isinstance(prompt.prefix, str) else prompt.prefix
    return None if isinstance(prompt, (TextPrompt, ChatPrompt)) else prompt.token_ids


def with_texts(prompt: Prompt, change: Callable[[str], str]) -> Prompt:
    """The prompt with each of its texts changed."""
    if isinstance(prompt, TextPrompt):
        return msgspec.structs.replace(prompt, text=change(prompt.text))
    if isinstance(prompt, InfillPrompt):
        prefix = change(prompt.prefix) if isinstance(prompt.prefix, str) else prompt.prefix
        return InfillPrompt(prefix, change(prompt.suffix))
    if isinstance(prompt, ChatPrompt):
        return msgspec.structs.replace(
            prompt,
            messages=_map(prompt.messages, change),
            tools=_map(prompt.tools, change),
            template_kwargs=_map(prompt.template_kwargs, change),
            template=_map(prompt.template, change),
        )
    return prompt


def field_of(prompt: Prompt) -> str:
    """What requests call it, for errors."""
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in _NAMES:
                yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _map(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: inner if key in _NAMES else _map(inner, change) for key, inner in value.items()}
    return [_map(inner, change) for inner in value] if isinstance(value, list) else value
