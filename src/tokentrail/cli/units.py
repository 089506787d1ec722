"""Numbers as people write them: `2GiB`, `32k`, `64-256`. Errors say what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import typer

T = TypeVar("T")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([km]?)", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def read_flag(flag: str, value: str, parse: Callable[[str], T]) -> T:
    """`parse(value)`, a ValueError turned into a wrong use of `flag`."""
    try:
        return parse(value)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def parse_size(text: str) -> int:
    """Bytes in `text`: a number with an optional unit. KiB … TiB are powers of 1024, KB … TB of 1000; a bare
    letter (512M) is a power of 1024, as memory is usually meant."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write bytes or a unit, such as 2GiB or 512MiB")
    number, letter, binary = match.groups()
    decimal = bool(letter) and not binary and text.strip()[-1] in "bB"
    size = int(float(number) * (1000 if decimal else 1024) ** _POWER[letter.lower()])
    if size <= 0:
        raise ValueError(f"{text!r} is not a size above zero")
    return size


def parse_count(text: str) -> int:
    """A whole number. As in vLLM, `8k` is 8 × 1000 and `8K` is 8 × 1024 (so are m and M)."""
    stripped = text.strip()
    match = _COUNT.fullmatch(stripped)
    if match is None:
        raise ValueError(f"{text!r} is not a number; write one such as 8192, 8k (8000) or 8K (8192)")
    count = float(match[1]) * (1000 if match[2].islower() else 1024) ** _POWER[match[2].lower()]
    if count != int(count) or count < 1:
        raise ValueError(f"{text!r} is not a whole number from 1 up")
    return int(count)


@dataclass(frozen=True)
class Lengths:
    """Token counts drawn evenly from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def parse_lengths(text: str) -> Lengths:
    """`128`, or a range `64-256`."""
    match = re.fullmatch(r"(\d+)(?:[-:](\d+))?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a length; write a number (128) or a range (64-256)")
    low = int(match[1])
    high = int(match[2]) if match[2] else low
    if not 1 <= low <= high:
        raise ValueError(f"{text!r} is not a range of lengths from 1 up")
    return Lengths(low, high)


def format_size(size: float) -> str:
    """Bytes as the largest binary unit with three figures: 98.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return (
                f"{size:.0f} {unit}"
                if unit == "B"
                else f"{size:.3g} {unit}"
                if size < 100
                else f"{size:.0f} {unit}"
            )
        size /= 1024
    return f"{size:.3g} TiB" if size < 100 else f"{size:.0f} TiB"
