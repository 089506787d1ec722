"""Lines that end an answer: by how they are indented, and when time is up."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tokentrail.text import LineLimit

TEXTS = st.lists(
    st.sampled_from(["\n", "\r\n", " ", "\t", "    ", "x", "return 1", "é", "\u2028"]), max_size=12
).map("".join)


def indented(text: str, indent: int) -> str:
    """The same, by looking at whole lines."""
    first, *lines = re.split(r"(?<=\n)", text)
    kept = first
    for line in lines:
        space = line[: len(line) - len(line.lstrip(" \t\r"))]
        if line.strip("\r\n\t ") and len(space.replace("\r", "")) < indent:
            return kept + space
        kept += line
    return kept


@given(TEXTS, st.integers(0, 6), st.data())
def test_a_line_that_is_indented_less_ends_the_text(text: str, indent: int, data: st.DataObject) -> None:
    limit, shown, at = LineLimit(indent), "", 0
    ended = False
    while at < len(text) and not ended:
        length = data.draw(st.integers(1, 5))
        piece, ended = limit.push(text[at : at + length])
        shown, at = shown + piece, at + length
    expected = indented(text, indent)
    assert shown == expected
    assert ended == (expected != text)


def test_with_the_next_line_when_time_is_up() -> None:
    now = [0.0]
    limit = LineLimit(seconds=1.0, clock=lambda: now[0])
    assert limit.push("one\ntwo\n") == ("one\ntwo\n", False)
    now[0] = 1.0
    assert limit.push("three\n") == ("three\n", False)
    now[0] = 1.1
    assert limit.push("fo") == ("fo", False)
    assert limit.push("ur\nfive\n") == ("ur\n", True)
