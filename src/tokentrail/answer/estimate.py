"""About how many tokens prompts have that only whoever answers will count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tokentrail.answer.types import ChatPrompt, InfillPrompt, Prompt, TextPrompt

_BYTES_PER_TOKEN = 4
"""Right for English, a little much for Chinese (three bytes a letter)."""
_PER_MESSAGE = 4
"""What stands between them."""
_NO_TEXT = frozenset({"role", "type", "id", "tool_call_id", "image_url", "input_audio", "file"})
"""Of messages: what templates replace by a few tokens, and data that is no text."""


def estimated(prompts: Sequence[Prompt]) -> int:
    """All that a model would read: messages of text or of parts, their calls, and tools."""
    tokens = size = 0
    for prompt in prompts:
        if isinstance(prompt, ChatPrompt):
            tokens += _PER_MESSAGE * len(prompt.messages)
            size += sum(len(text.encode()) for part in prompt.messages for text in _texts(part))
            size += sum(len(text.encode()) for text in _texts(prompt.tools))
        elif isinstance(prompt, TextPrompt):
            size += len(prompt.text.encode())
        elif isinstance(prompt, InfillPrompt):
            size += len(prompt.suffix.encode())
            if isinstance(prompt.prefix, str):
                size += len(prompt.prefix.encode())
            else:
                tokens += len(prompt.prefix)
        else:
            tokens += len(prompt.token_ids)
    return max(1, tokens + -(-size // _BYTES_PER_TOKEN))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in _NO_TEXT:
                yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
