"""Marks that are tokens of their own: in a grammar they are tokens, never text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tokentrail.text.reasoning import REASONING_FORMATS
from tokentrail.text.tool_calls import FORMATS

if TYPE_CHECKING:
    from tokentrail.text.tokenizer import Tokenizer


def marks_of(tokenizer: Tokenizer) -> dict[str, int]:
    """Mark → token, of those around thoughts and tool calls that this vocabulary has."""
    marks = [mark for one in REASONING_FORMATS.values() for mark in one.markers]
    marks += [mark for one in FORMATS.values() for mark in one.markers]
    found = {mark: tokenizer.token_to_id(mark) for mark in dict.fromkeys(marks)}
    return {mark: id for mark, id in found.items() if id is not None}


def marks_in(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, int]:
    """Mark → token, of the control tokens that are written in these texts."""
    found = {}
    for text in texts:
        for id in tokenizer.encode(text, add_special_tokens=False):
            if tokenizer.is_special(id):
                found[tokenizer.token_bytes(id).decode("utf-8", "replace")] = id
    return found


def literal(text: str, marks: Mapping[str, int]) -> str:
    """`text` in Lark: strings, and the tokens of the marks in it. Empty for an empty text."""
    if not text:
        return ""
    known = [mark for mark in marks if mark in text]
    parts = re.split("(" + "|".join(map(re.escape, known)) + ")", text) if known else [text]
    return " ".join(
        f"<[{marks[part]}]>" if part in marks else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    )
