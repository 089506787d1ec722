"""How a text is split: tokens with their ids and bytes, those that share a character together."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

    from tokentrail.text import Tokenizer

CHIP_STYLES = (
    "black on bright_cyan",
    "black on bright_yellow",
    "black on bright_green",
    "black on bright_magenta",
)
_WHITE_SPACE = {"\n": "⏎", "\t": "⇥", "\r": "␍", " ": "·"}


def split(tokenizer: Tokenizer, text: str) -> list[dict[str, Any]]:
    """`text` as tokens: id, text, and the bytes in hexadecimal; special tokens in it are parsed."""
    result = []
    for id in tokenizer.encode(text):
        data = tokenizer.token_bytes(id)
        result.append(
            {
                "id": id,
                "text": data.decode("utf-8", "replace"),
                "bytes": data.hex(),
                "special": tokenizer.is_special(id),
            }
        )
    return result


def chips(tokens: list[dict[str, Any]]) -> Text:
    """Tokens one after another, coloured in turn, each with its id; those that share a character together, as
    `我 = <E6><88> 19805 + <91> 235`."""
    from rich.text import Text

    line = Text()
    index = 0
    for group in characters(tokens):
        if len(group) > 1:
            line.append(f"{visible(b''.join(bytes.fromhex(token['bytes']) for token in group))} = ")
        for at, token in enumerate(group):
            line.append(" + " if at else "", style="dim")
            style = "white on red" if token["special"] else CHIP_STYLES[index % len(CHIP_STYLES)]
            line.append(visible(bytes.fromhex(token["bytes"])), style=style)
            line.append(f" {token['id']}", style="dim")
            index += 1
        line.append("  ")
    line.append(f"\n{len(tokens)} token{'s' * (len(tokens) != 1)}")
    return line


def characters(tokens: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Groups of tokens: those that one character is spread over, every other alone."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    group: list[dict[str, Any]] = []
    for token in tokens:
        group.append(token)
        text = decoder.decode(bytes.fromhex(token["bytes"]))
        if decoder.getstate()[0]:
            continue  # within a character
        if len(group) > 1 and "\ufffd" in text:
            yield from ([one] for one in group)  # it was none
        else:
            yield group
        group = []
    yield from ([one] for one in group)


def visible(data: bytes) -> str:
    """Text with its white space shown; bytes that are no whole character in hexadecimal."""
    shown = []
    for char in data.decode("utf-8", "surrogateescape"):
        if "\udc80" <= char <= "\udcff":
            shown.append(f"<{ord(char) - 0xDC00:02X}>")
        elif char in _WHITE_SPACE:
            shown.append(_WHITE_SPACE[char])
        else:
            shown.append(char if char.isprintable() else f"<U+{ord(char):04X}>")
    return "".join(shown)
