"""What routing reads of a request: its last message, its size, its language as far as the script tells."""

from __future__ import annotations

import re
from typing import Any

from tokentrail.answer import AnswerRequest, ChatPrompt, InfillPrompt, Prompt, TextPrompt

_LOOKED_AT = 4000
"""Characters by which a language is guessed."""
_SCRIPTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (language, re.compile(f"[{characters}]"))
    for language, characters in (
        ("ja", "\u3040-\u30ff\uff66-\uff9d"),
        ("ko", "\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3"),
        ("zh", "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"),
        ("ru", "\u0400-\u04ff"),
        ("ar", "\u0600-\u06ff\u0750-\u077f"),
        ("he", "\u0590-\u05ff"),
        ("hi", "\u0900-\u097f"),
        ("th", "\u0e00-\u0e7f"),
        ("el", "\u0370-\u03ff"),
        ("en", "A-Za-z\u00c0-\u024f"),
    )
)
_WORDY = {"ja": 1.0, "ko": 1.0, "zh": 1.0}
"""Characters that stand for about a syllable or a word; of the others, three stand for as much."""


def last_message(request: AnswerRequest) -> str:
    """The text of the last message of a user; of a prompt that is no conversation, all of it."""
    prompt = request.prompts[0]
    if isinstance(prompt, ChatPrompt):
        for message in reversed(prompt.messages):
            if message.get("role") == "user":
                return _text(message.get("content"))
        return _text(prompt.messages[-1].get("content")) if prompt.messages else ""
    return _plain(prompt)


def characters(request: AnswerRequest) -> int:
    """Of all prompts; a token id counts as three."""
    total = 0
    for prompt in request.prompts:
        if isinstance(prompt, ChatPrompt):
            total += sum(len(_text(message.get("content"))) for message in prompt.messages)
        elif isinstance(prompt, (TextPrompt, InfillPrompt)):
            total += len(_plain(prompt))
            if isinstance(prompt, InfillPrompt):
                total += len(prompt.suffix)
        else:
            total += 3 * len(prompt.token_ids)
    return total


def language(text: str) -> str | None:
    """By the script that most of it is written in; None: it has no letters. Kana make a text Japanese."""
    part = text[:_LOOKED_AT]
    weights = {name: len(found.findall(part)) * _WORDY.get(name, 1 / 3) for name, found in _SCRIPTS}
    if weights["ja"] and weights["ja"] * 5 > weights["zh"]:
        weights["ja"] += weights.pop("zh")
    best = max(weights, key=lambda name: weights[name])
    return best if weights[best] else None


def has_tools(request: AnswerRequest) -> bool:
    return request.chat is not None and bool(request.chat.tools)


def _plain(prompt: Prompt) -> str:
    if isinstance(prompt, TextPrompt):
        return prompt.text
    if isinstance(prompt, InfillPrompt) and isinstance(prompt.prefix, str):
        return prompt.prefix
    return ""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    return ""
