"""Ways past the filters that somebody wrote by hand from the documentation alone, and clean texts that resemble them.

`evasions_by_hand.json` says what is promised; the list is not bent to what the filters find. What gets through says so
there (`passes`), and is tried all the same: if it is found one day, the list must say that, too.
"""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tokentrail.gateway.filters import Action, Personal, Rule, StreamFilter, WordList, filtered

LIST: dict[str, Any] = json.loads(Path(__file__).with_name("evasions_by_hand.json").read_text("utf-8"))
KINDS = list(dict.fromkeys(one["kind"] for one in LIST["evasions"]))
FINDERS = WordList(LIST["words"]), Personal()
MARK = "[…]"


def rules(action: Action) -> list[Rule]:
    return [
        Rule(name, one, action, replacement=MARK) for name, one in zip(("words", "own"), FINDERS, strict=True)
    ]


class Evasion(NamedTuple):
    before: str
    forbidden: str
    after: str

    @property
    def text(self) -> str:
        return "".join(self)


def evasion(marked: str) -> Evasion:
    before, rest = marked.split("⟦")
    return Evasion(before, *rest.split("⟧"))


def streamed(action: Action, text: str, *cuts: int) -> str:
    stream = StreamFilter(rules(action))
    edges = [0, *cuts, len(text)]
    out = "".join(stream.push(text[start:end]) for start, end in itertools.pairwise(edges))
    return out + stream.flush()


def however_it_is_cut(action: Action, text: str) -> str:
    """The text after the rules; the same for a stream that is cut anywhere, or everywhere."""
    whole, _ = filtered(rules(action), text)
    for cut in range(1, len(text)):
        assert streamed(action, text, cut) == whole, (text, cut)
    assert streamed(action, text, *range(1, len(text))) == whole, text
    return whole


def says_something(text: str) -> bool:
    return any(unicodedata.category(one)[0] in "LN" and one not in "\u115f\u3164\uffa0" for one in text)


def is_masked(one: Evasion) -> bool:
    """What is forbidden is gone, and all else is as it was."""
    out = however_it_is_cut(Action.MASK, one.text)
    kept = len(one.before) + len(one.after)
    if len(out) < kept or not (out.startswith(one.before) and out.endswith(one.after)):
        return False
    middle = out[len(one.before) : len(out) - len(one.after)]
    return MARK in middle and not says_something(middle)


def is_blocked(one: Evasion) -> bool:
    """The text ends before what is forbidden, or with signs that say nothing."""
    out = however_it_is_cut(Action.BLOCK, one.text)
    return out.startswith(one.before) and not says_something(out[len(one.before) :])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_forbidden_does_not_leave(kind: str) -> None:
    told = [one for one in LIST["evasions"] if one["kind"] == kind]
    wrong = []
    for one in told:
        tried = evasion(one["text"])
        if (is_masked(tried) and is_blocked(tried)) == bool(one.get("passes")):
            wrong.append(one)
    assert not wrong


def test_clean_texts_are_left_alone() -> None:
    wrong = []
    for one in LIST["clean"]:
        same = all(
            however_it_is_cut(action, one["text"]) == one["text"] for action in (Action.MASK, Action.BLOCK)
        )
        if same == bool(one.get("changed")):
            wrong.append(one)
    assert not wrong
