"""What was asked and answered, for those who are told content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tokentrail.answer import ChatPrompt, InfillPrompt, Prompt, TextPrompt


def prompt_text(prompts: Sequence[Prompt]) -> str:
    """JSON of what the model was asked, as the filters left it."""
    return msgspec.json.encode([_plain(prompt) for prompt in prompts]).decode()


def input_messages(prompts: Sequence[Prompt]) -> str:
    """The same in the form of OpenTelemetry's `gen_ai.input.messages`."""
    messages: list[dict[str, Any]] = []
    for prompt in prompts:
        if isinstance(prompt, ChatPrompt):
            messages += [_message(message) for message in prompt.messages]
        else:
            plain = _plain(prompt)
            text = plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
            messages.append({"role": "user", "parts": [{"type": "text", "content": text}]})
    return msgspec.json.encode(messages).decode()


def output_messages(texts: Sequence[Sequence[str]], finish: Sequence[str | None]) -> str:
    """`gen_ai.output.messages`."""
    messages = [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": "".join(parts)}],
            "finish_reason": reason or "cut",
        }
        for parts, reason in zip(texts, finish, strict=True)
    ]
    return msgspec.json.encode(messages).decode()


def _plain(prompt: Prompt) -> Any:
    if isinstance(prompt, ChatPrompt):
        return prompt.messages
    if isinstance(prompt, TextPrompt):
        return prompt.text
    if isinstance(prompt, InfillPrompt):
        return {"prefix": prompt.prefix, "suffix": prompt.suffix}
    return prompt.token_ids


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        content = msgspec.json.encode(content).decode()
    parts: list[dict[str, Any]] = [{"type": "text", "content": content}]
    parts += [{"type": "tool_call", "call": call} for call in message.get("tool_calls") or ()]
    return {"role": message.get("role", "user"), "parts": parts}
