"""What stands on the terminal while a model is loaded."""

from __future__ import annotations

import io
import sys

import pytest

from tokentrail.cli import terminal
from tokentrail.cli.terminal import loading

GIB = 1 << 30


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def take_over(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called by the test itself: pytest puts its own stderr into place between fixtures and test."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return screen


def test_a_model_that_loads_at_once_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = take_over(monkeypatch)
    with loading("small.gguf") as shown:
        shown.progress(GIB, GIB)
    assert "loading small.gguf" in screen.getvalue()
    assert "GiB" not in screen.getvalue()
    assert not shown.was_long


def test_a_model_that_takes_long_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = take_over(monkeypatch)
    monkeypatch.setattr(terminal, "_SECONDS_WITHOUT_BAR", 0.0)
    with loading("large.gguf") as shown:
        shown.progress(GIB, 4 * GIB)
        shown.progress(3 * GIB, 4 * GIB)
    assert "3.0/4.0 GiB" in screen.getvalue()
    assert shown.was_long
    shown.progress(4 * GIB, 4 * GIB)  # late, when nothing is shown any more
    shown.close()


def test_without_a_terminal_there_is_a_line_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    with loading("a.gguf") as shown:
        shown.progress(1, 2)
    with loading("b.gguf", always=True) as shown:
        shown.progress(1, 2)
    assert capsys.readouterr().err == "loading b.gguf …\n"
    assert not shown.was_long


def test_an_error_ends_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = take_over(monkeypatch)
    with pytest.raises(ValueError, match="no"), loading("a.gguf") as shown:
        raise ValueError("no")
    before = screen.getvalue()
    shown.progress(1, 2)
    assert screen.getvalue() == before
