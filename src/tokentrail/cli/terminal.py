"""What the commands write and read: terminals of any encoding, pipes, and texts that a model made."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    from tokentrail.journey import JourneyView

_SECONDS_WITHOUT_BAR = 1.0
_PIPE_WIDTH = 10_000
"""Columns of what is no terminal: lines are cut by whoever reads them, not by us."""

# What our own drawings become where the encoding lacks their signs, one for one, so that columns stay.
_PLAIN = str.maketrans("▏▎▍▌▋▊▉█▁▂▃▄▅▆▇━→–—·…◆⏎⇥␍", "||||####___====->--.~*^>^")
_ERRORS = "tokentrail.plain"

# Control characters but newline and tab: an answer must not move the cursor or retitle the window.
_KEPT = {ord("\n"), ord("\t")}
_CONTROLS = dict.fromkeys({*range(32), *range(127, 160)} - _KEPT, "�")


def write_anywhere() -> None:
    """Have stdout and stderr take any text. Signs that their encoding lacks are replaced: no answer is lost
    because a locale is called C."""
    codecs.register_error(_ERRORS, _plain)
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors=_ERRORS)


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(sign if sign.isascii() else "?" for sign in signs), error.end


def print_json(value: Any) -> None:
    """Print JSON; escaped where the encoding of stdout is not Unicode's."""
    import json

    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    print(json.dumps(value, ensure_ascii=not unicode, indent=2))


def typed(text: str, where: str) -> str:
    """An argument's text: in a locale that is not UTF-8, bytes that Python could not read are read as that.

    Raises a wrong use of `where` if they are not.
    """
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # the surrogates that stand for such bytes
        try:
            return os.fsencode(text).decode("utf-8")
        except UnicodeError:
            raise typer.BadParameter("this is not UTF-8 text", param_hint=where) from None
    return text


def read_as_utf8() -> None:
    """Have stdin be UTF-8, whatever the locale. What is not becomes replacement characters."""
    if (reconfigure := getattr(sys.stdin, "reconfigure", None)) is not None:
        reconfigure(encoding="utf-8", errors="replace")


def console() -> Console:
    """stdout for rich: as wide as the terminal is; into a pipe, no line is broken."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


class LoadingDisplay:
    """What stands on stderr while a model is loaded: on a terminal its name and a clock, and from the first second
    on how much of it is done; otherwise a line if `always`.
    """

    def __init__(self, what: str, *, always: bool = False) -> None:
        self._started = time.monotonic()
        self._bar: RichProgress | None = None
        self.was_long = False
        """A bar was shown, so that somebody looked at it for a while."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            # Logs and the banner go to the streams as they are.
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._bar = Progress(
                *columns, console=Console(stderr=True), transient=True, redirect_stdout=False,
                redirect_stderr=False,
            )  # fmt: skip
            self._task = self._bar.add_task(f"loading {what} …", total=None)
            self._bar.start()
        elif always:
            print(f"loading {what} …", file=sys.stderr, flush=True)

    def progress(self, done: int, total: int) -> None:
        """So many bytes are loaded. Any thread may call it."""
        bar = self._bar
        if bar is None or time.monotonic() - self._started < _SECONDS_WITHOUT_BAR:
            return
        if not self.was_long:
            from rich.progress import BarColumn, DownloadColumn

            self.was_long = True
            bar.columns = (*bar.columns[:-1], BarColumn(), DownloadColumn(binary_units=True), bar.columns[-1])
        bar.update(self._task, completed=done, total=total)

    def close(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()


@contextlib.contextmanager
def loading(what: str, *, always: bool = False) -> Iterator[LoadingDisplay]:
    """Tell that `what` is being loaded, until the block ends or the yielded display is closed."""
    with contextlib.closing(LoadingDisplay(what, always=always)) as shown:
        yield shown


def write(text: str) -> None:
    """Write a piece of an answer to stdout at once; made harmless if that is a terminal, unchanged if not."""
    sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m" if sys.stdout.isatty() else text


def draw_journey(journey: JourneyView) -> None:
    """Draw it as wide as the terminal is."""
    from tokentrail.journey.render import render

    console().print(render(journey))
