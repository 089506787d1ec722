"""Writing text that a model made to a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokentrail.journey import JourneyView

# Control characters but newline and tab: an answer must not move the cursor or retitle the window.
_KEPT = {ord("\n"), ord("\t")}
_CONTROLS = dict.fromkeys({*range(32), *range(127, 160)} - _KEPT, "�")


def write(text: str) -> None:
    """Write a piece of an answer to stdout at once; made harmless if that is a terminal, unchanged if not."""
    sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m" if sys.stdout.isatty() else text


def draw_journey(journey: JourneyView) -> None:
    """Draw it as wide as the terminal is."""
    from rich.console import Console

    from tokentrail.journey.render import render

    Console(highlight=False).print(render(journey))
