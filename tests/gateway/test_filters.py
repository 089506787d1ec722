"""Filters: what they find, what they leave alone, and that no cut of a stream lets anything through."""

from __future__ import annotations

import itertools
import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrail.gateway.filters import (
    Action,
    Pattern,
    Personal,
    Rule,
    StreamFilter,
    WordList,
    filtered,
    find,
    skeleton,
)
from tokentrail.gateway.filters import words as word_lists
from tokentrail.gateway.filters.personal import is_bank_card, is_identity_card

WORDS = [
    "damn", "ass", "shit", "boob", "pass out", "kill yourself", "棍棒", "违禁词", "违禁", "赌博网站", "A货", "kk粉",
]  # fmt: skip
LIST = WordList(WORDS)


def found(text: str, words: WordList = LIST) -> set[str]:
    return {text[span.start : span.end] for span in find(words, text)}


@pytest.mark.parametrize(
    "text",
    [
        "damn", "DAMN", "Damn!", "damn1", "ｄａｍｎ", "d\u200ba\u200bm\u200bn", "dámñ", "d̶a̶m̶n̶", "𝐝𝐚𝐦𝐧",
        "ⓓⓐⓜⓝ", "🅳🅰🅼🅽",
        "🇩🇦🇲🇳", "ᴅᴀᴍɴ", "d a m n", "d.a.m.n", "d - a - m - n", "da*mn", "da_mn", "daaaamn", "dаmn", "d@mn",
        "d4mn", "DAMNNNN",
        "\u202edamn", "d\u00adamn",
    ],
)  # fmt: skip
def test_disguises_of_a_word_are_seen_through(text: str) -> None:
    assert find(LIST, f"so {text} it")
    assert find(LIST, text)
    assert find(LIST, f"你{text}好")


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("$hit", "$hit"), ("sh1t", "sh1t"), ("a$$", "a$$"), ("b00b", "b00b"), ("(ass)", "ass"),
        ("@ss!", "@ss"), ("assss", "assss"),
        ("kill  yourself", "kill  yourself"), ("kill-yourself", "kill-yourself"), ("kiIl yourself", "kiIl yourself"),
        ("違禁詞", "違禁詞"), ("违 禁 词", "违 禁 词"), ("违*禁*词", "违*禁*词"), ("违，禁，词", "违，禁，词"),
        ("违\u200b禁词", "违\u200b禁词"),
        ("违禁 词", "违禁 词"), ("賭博網站", "賭博網站"), ("Ａ货", "Ａ货"), ("棍-棒", "棍-棒"), ("KK粉", "KK粉"),
    ],
)  # fmt: skip
def test_the_whole_of_a_disguised_word_is_found(text: str, whole: str) -> None:
    assert whole in found(f"x {text} y")


@pytest.mark.parametrize(
    "text",
    [
        "assume", "class", "as so", "a Galaxy A55", "pass", "passport", "Damnation", "bass", "assess", "as, s",
        "0455", "455", "$55", "八00b", "冰棍，棒极了", "冰棍 棒极了",
        "超违，禁止", "kill me yourself", "bo ob", "sh it", "сор",
        "赌博。网站", "is hit", "pas s", "甲货", "粉kk",
    ],
)  # fmt: skip
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert found(text) == set()
    assert found(f"so {text} it") == set()


def test_words_within_words_where_the_list_says_so() -> None:
    words = WordList(["damn"], inside_words=True)
    assert found("goddamned", words) == {"damn"}
    assert found("goddamned") == set()
    assert found("goddаmned", words) == {"dаmn"}


def test_words_of_another_alphabet_are_found_as_they_are_written() -> None:
    words = WordList(["сука", "нет", "cop"])
    assert found("Вот СУКА!", words) == {"СУКА"}
    assert found("н е т", words) == {"н е т"}
    assert found("hет", words) == {"hет"}
    assert found("сор", words) == set()


def test_letters_that_are_drawn_like_one_are_not_each_other() -> None:
    # Kazakh and Russian letters that both look like an h.
    assert found("һан", WordList(["нан"])) == set()


def test_a_word_without_letters_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no letters or digits"):
        WordList(["..."])


def test_clean_books_are_left_alone() -> None:
    random.seed(3)
    syllables = ["zor", "quv", "xil", "wub", "jek", "vyx"]
    words = WordList(
        {"".join(random.choices(syllables, k=3)) for _ in range(500)}
        | {"".join(chr(random.randint(0x9000, 0x9FA0)) for _ in range(3)) for _ in range(2000)}
    )
    text = (
        " ".join(
            (string.ascii_lowercase, string.punctuation, "The quick brown fox. 我去公园散步，然后回家做饭。")
        )
        * 50
    )
    assert find(words, text) == []


# --- patterns, personal data ---------------------------------------------------------------------------


def test_patterns_know_how_long_they_can_be() -> None:
    assert Pattern(r"ab{2,5}c").longest == 7
    assert Pattern(r"a.*b").longest is None
    assert Pattern(r"a.*b", longest=30).longest == 30
    for wrong in ("(", r"(?<=a)b", "a*"):
        with pytest.raises(ValueError):
            Pattern(wrong)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("write to john.doe+x@mail.example.co.uk.", "email"),
        ("电话：13800138000", "phone"),
        ("+86 138-0013-8000", "phone"),
        ("１３８００１３８０００", "phone"),
        ("call +1 (415) 555-2671 now", "phone"),
        ("11010519491231002X", "identity_card"),
        ("110105 19491231 002x", "identity_card"),
        ("card 4111 1111 1111 1111", "bank_card"),
        ("4012-8888 8888-1881", "bank_card"),
        ("key sk-proj-abcdefghijklmnopqrstuvwxyz012345", "key"),
        ("AKIAIOSFODNN7EXAMPLE", "key"),
        ("电话是13800138000吗", "phone"),
        ("一三八 〇〇一三 八〇〇〇", "phone"),
        ("010-62345678", "phone"),
        ("415-555-2671", "phone"),
        ("john (at) example dot com", "email"),
    ],
)  # fmt: skip
def test_personal_data_is_found(text: str, kind: str) -> None:
    assert {span.what for span in find(Personal(), text)} == {kind}


@pytest.mark.parametrize(
    "text",
    ["4111 1111 1111 1112", "110105194912310021", "12800138000", "v1.2.3.4", "2026-12-01 10:00:00", "a@b",
    "3.14159265358979",
     "1380013800", "138001380001", "+1+2+3+4+5+6+7+8+9", "x @ y.T", "look at example.com",
     "1 3 8 0 0 1 3 8 0 0 0 1", "4111, 1111, 1111, 1111, 5", "2026120212345676", "+3.14159265",
     "x13800138000", "@everyone", "sk-short", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"],
)  # fmt: skip
def test_numbers_and_words_that_are_nobodys_are_left_alone(text: str) -> None:
    assert find(Personal(), text) == []


def test_check_digits() -> None:
    right = [d for d in "0123456789X" if is_identity_card("11010519491231002" + d)]
    assert right == ["X"]
    assert [d for d in "0123456789" if is_bank_card("411111111111111" + d)] == ["1"]


# --- streams -------------------------------------------------------------------------------------------


def rules(*actions: Action) -> list[Rule]:
    finders = [
        WordList(WORDS),
        Pattern(r"co+l{1,3}"),
        Personal(),
        Pattern(r"xx(ab)+"),
        Pattern(r"[0-9]{3}-?x"),
    ]
    marks = [None, "[…]", "[private]", "#", "§"]
    return [
        Rule(f"rule {number}", finder, action, replacement=mark)
        for number, (finder, action, mark) in enumerate(zip(finders, actions, marks, strict=True))
    ]


pieces = st.sampled_from(
    [*WORDS, "da", "mn", "|", "(", ")", "#", "!", "dd", "违违", "аѕѕ", "\0",
     "<b>", "</b>", "<", "i>", ">", "<br>", "<x y=damn>", "&", "&#100;", "#x61;", "&shy;", ";",
      "d", "a", " ", "m", "n", "\u200b", "*", ".", "-", "，", "违", "禁", "词", "棍", "棒",
    "s", "S", "$", "1", "co",
     "ol", "oo", "xx", "ab", "abab", "13800138000", "138", "0013", "8000", "+86 ", "a@b.co", "@", "com",
     "sk-" + "a1" * 12, "x" * 30,
     " at ", "dot", " dot ", "[at]", "john", "com", "一三八", "一", "0", "7", ",", "🔥", "X", "+",
     "(415) ", "555-", "2671",
     "4111 1111 ", "1111 1111", "hello world", "今天天气很好", "\n", "👨‍👩‍👧", "é", "e\u0301"]
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(
    parts=st.lists(pieces, max_size=14),
    cuts=st.lists(st.integers(0, 400), max_size=40),
    actions=st.tuples(*[st.sampled_from(Action)] * 5),
)
def test_no_cut_of_a_stream_changes_what_comes_out(
    parts: list[str], cuts: list[int], actions: tuple[Action, ...]
) -> None:
    text = "".join(parts)
    whole, at_once = filtered(rules(*actions), text)
    stream = StreamFilter(rules(*actions))
    out = ""
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        out += stream.push(text[start:end])
        assert whole.startswith(out)
    out += stream.flush()
    assert out == whole
    assert stream.blocked == at_once.blocked or (
        stream.blocked is not None
        and at_once.blocked is not None
        and stream.blocked.name == at_once.blocked.name
    )
    one_by_one = StreamFilter(rules(*actions))
    assert "".join(map(one_by_one.push, text)) + one_by_one.flush() == whole


@settings(max_examples=120, deadline=None)
@given(parts=st.lists(pieces, max_size=14))
def test_what_comes_out_is_clean(parts: list[str]) -> None:
    rule = Rule("words", LIST, Action.MASK, replacement="█")
    out, _ = filtered([rule], "".join(parts))
    assert find(LIST, out.replace("█", "。\n█。\n")) == []


def test_html_is_read_as_a_page_shows_it() -> None:
    words = WordList(["damn", "违禁词"])
    assert found("so d<b>a</b>m&#110; it", words) == {"d<b>a</b>m&#110;"}
    assert found("违<span class='x'>禁</span>&shy;词", words) == {"违<span class='x'>禁</span>&shy;词"}
    assert found("<b title='damn'>x</b>", words) == {"damn"}
    assert found("<li>dam</li><li>n</li> a<b and dam", words) == set()
    stream = StreamFilter([Rule("words", words, Action.MASK)])
    assert stream.push("if a <b") == "if a <b"
    assert stream.push("> d<span") == "> "
    assert stream.push(" class=x>a") == ""
    assert stream.push("y") == "d<span class=x>ay"


def test_only_what_may_become_something_is_held() -> None:
    stream = StreamFilter([Rule("words", LIST, Action.MASK)])
    assert stream.push("hello world ") == "hello world "
    assert stream.push("da") == ""
    assert stream.push("n") == "dan"
    assert stream.push("ce floor d") == "ce floor "
    assert stream.push("amn") == ""
    assert stream.push(" it") == "**** it"
    assert stream.push("他违") == "他"
    assert stream.push("反") == "违反"


def test_a_block_ends_the_text_before_it() -> None:
    stream = StreamFilter([Rule("words", LIST, Action.BLOCK)])
    assert stream.push("oh da") == "oh "
    assert stream.push("mn it all") == ""
    assert stream.blocked is not None
    assert stream.push("more") + stream.flush() == ""


def test_a_pattern_holds_only_what_begins_it() -> None:
    stream = StreamFilter([Rule("code", Pattern(r"code-[0-9]{2,4}x?"), Action.MASK, replacement="_")])
    assert stream.push("hello wor") == "hello wor"
    assert stream.push("ld co") == "ld "
    assert stream.push("de") == ""
    assert stream.push("x code-") == "codex "
    assert stream.push("12") == ""
    assert stream.push(" and on") == "_ and on"


def test_a_pattern_without_a_longest_match_waits_for_the_end() -> None:
    stream = StreamFilter([Rule("all", Pattern("a.*z"), Action.MASK, replacement="_")])
    assert stream.push("xx a bc") == "xx "
    assert stream.push("d z y") + stream.flush() == "_ y"


def test_whole_texts_are_folded_as_their_characters_are() -> None:
    draw = random.Random(5)
    codes = [*range(0x600), *range(0x4E00, 0x4F00), *range(0xFB00, 0xFB20), *range(0xD800, 0xD810)]
    codes += draw.sample(range(0x600, 0x110000), 1000)
    folders = [
        skeleton.skeleton_of,
        word_lists._FOLDER,
        *word_lists._ODD_FOLDERS[True],
        *word_lists._ODD_FOLDERS[False],
    ]
    for _ in range(200):
        text = "".join(map(chr, draw.choices(codes, k=draw.randint(1, 200))))
        for folder in folders:
            assert folder(text) == text.translate(folder._table)
        assert word_lists._kinds(text) == bytes(word_lists._kind(ord(character)) for character in text)
        assert word_lists._has_run(text) == (word_lists._RUN.search(text) is not None)


def test_signs_in_circles_are_letters_whatever_stands_beside_them() -> None:
    assert found("1111Ⓐß") == {"Ⓐß"}
    for text in ("xⒶss", "ⓐssⒹ", "ⓐssⒹ ass"):
        assert found(text) == ({"ass"} if " " in text else set())


def test_a_patterns_classes_by_name_are_known() -> None:
    pattern = Pattern(r"n[[:digit:]]{4}[[:^space:]]")
    assert pattern.longest == 6
    stream = StreamFilter([Rule("numbers", pattern, Action.MASK, replacement="_")])
    assert stream.push("go n") == "go "
    assert stream.push("12") + stream.push("34") == ""
    assert stream.push("5 it") + stream.flush() == "_ it"
