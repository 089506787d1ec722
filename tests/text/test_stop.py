"""Stop strings in a stream: the result must not depend on how the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrail.text import StopBuffer


def whole_text(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition, written plainly: the first end, and of several ending there the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def may_still_match(text: str, stops: list[str]) -> int:
    """How many characters at the end of `text` begin a stop string (and are not a whole one)."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


SMALL = "ab\n"


@settings(max_examples=500, deadline=None)
@given(
    stops=st.lists(st.text(SMALL, min_size=1, max_size=5), max_size=4),
    chunks=st.lists(st.text(SMALL, max_size=6), max_size=12),
    include=st.booleans(),
)
def test_equals_searching_the_whole_text(stops: list[str], chunks: list[str], include: bool) -> None:
    text = "".join(chunks)
    expected, stop = whole_text(text, stops, include)
    buffer = StopBuffer(stops, include_stop=include)
    shown, seen = "", ""
    for chunk in chunks:
        emitted, matched = buffer.push(chunk)
        shown += emitted
        seen += chunk
        assert expected.startswith(shown)
        if matched is not None:
            assert matched == stop
            break
        # Held back for as long as it may still match, and no longer.
        assert len(seen) - len(shown) == may_still_match(seen, stops)
    else:
        assert stop is None
        shown += buffer.flush()
    assert shown == expected
    if stop is not None:
        assert buffer.push("more") == ("", stop)
        assert buffer.flush() == ""


def test_across_pieces() -> None:
    buffer = StopBuffer(["</answer>", "\n\n"])
    assert buffer.push("Paris</ans") == ("Paris", None)
    assert buffer.push("we") == ("", None)
    assert buffer.push("red\n") == ("</answered", None)
    assert buffer.push("\nmore") == ("", "\n\n")


def test_the_match_that_is_complete_first_wins() -> None:
    assert StopBuffer(["abcd", "bc"]).push("xabcd") == ("xa", "bc")


def test_of_matches_that_end_together_the_longest_wins() -> None:
    assert StopBuffer(["c", "bc", "abc"]).push("xabc") == ("x", "abc")


def test_the_stop_string_can_be_kept() -> None:
    buffer = StopBuffer(["END"], include_stop=True)
    assert buffer.push("the E") == ("the ", None)
    assert buffer.push("ND of") == ("END", "END")


def test_without_stop_strings_text_passes() -> None:
    buffer = StopBuffer([])
    assert buffer.push("text") == ("text", None)
    assert buffer.flush() == ""


def test_flush_shows_what_was_held() -> None:
    buffer = StopBuffer(["stop"])
    assert buffer.push("nonst") == ("non", None)
    assert buffer.flush() == "st"


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopBuffer(["a", ""])
