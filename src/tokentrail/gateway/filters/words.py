"""Lists of forbidden words, found however they are disguised.

Two looks at a text. The first is quick and clears ordinary text: Aho and Corasick's automaton (1975; the
`ahocorasick_rs` library) over forms of it without its disguises. The second decides about each candidate, so that
nothing ordinary is taken for a forbidden word:

- A word of an alphabet stands alone: letters next to it make it another word (unless the list says `inside_words`).
- What separates its letters must look like a disguise: nothing visible, joining signs (`da*mn`), or the same separator
  between all letters (`d a m n`, `违，禁，词`). Chinese characters may be apart by spaces and signs,
  not by a full stop.
- Signs, digits and look-alikes may stand for letters, if one letter at least is real; and digits for no more than are
  real, or in longer words for twice as many: `d4mn` and `b00b`, but not the phone called A55.
- A letter may be repeated for emphasis, three times or more, or all of them twice; `as` is not `ass`.
"""

from __future__ import annotations

import bisect
import itertools
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tokentrail.gateway.filters.markup import SeeingThroughMarkup
from tokentrail.gateway.filters.skeleton import DIGITS, SIGNS, CodeTable, Folder, fold, is_wide, skeleton_of
from tokentrail.gateway.filters.spans import Span, Watcher, Window
from tokentrail.gateway.libraries import library

_LONGEST_GAP = 8
"""Visible characters between two letters of a word."""
_SHORT = 48
"""Characters below which arrays cost more than they save."""
_SHORT_RUN = 200
"""The same for looking for repeated letters."""
JOINERS = "*_-~^`·•|‧・+=#%&/\\'’"
"""Signs that, written within a word, are passed over by its reader."""
_JOINERS = frozenset(JOINERS)
_STOPS = frozenset("。，！？；：、,.!?;:…\n\r")
_RUN = re.compile(r"([^ ])\1\1|([^ ])\2([^ ])\3")
"""A letter three times in a row, or two of them twice."""
_OPENING = str.maketrans(")]}）】］」』》〉〕", "([{（【［「『《〈〔")
"""Brackets for brackets that close."""
_RUNS = re.compile(r"([^ ])\1+")
_WIDE = r"\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"
_LETTER = rf"[^\W\d_{_WIDE}]"
"""Of an alphabet."""
_WIDE_SIGNS = [*SIGNS, *"＠＄！｜＋（＃"]
_SIGN_WITHIN = re.compile(
    rf"[{_WIDE}]\W{{0,4}}?[{re.escape(''.join(sorted(set(_WIDE_SIGNS) - set('!！'))))}]\W{{0,4}}\w"
    rf"|[{_WIDE}][!！]\w[!！]"
)
"""A sign that may separate characters of one word; what ends a sentence, only if it does so twice."""
_OUTER_SIGN = re.compile(f"[{re.escape(''.join(SIGNS))}](?!{_LETTER}|\\d)")
_CLOSING = re.compile(f"[!|+¡](?!{_LETTER}|\\d)")
_MEANS = f"[{re.escape(''.join(SIGNS) + JOINERS)}\\d]"
"""What may be part of a word or not."""
_BEGINNINGS = re.compile(r"(?<![A-Za-z])[A-Za-z0-9]")
_LONG_GAPS = re.compile(f"[^A-Za-z0-9]{{{_LONGEST_GAP + 1},}}")
_NO_LETTERS = "".join(c for c in map(chr, range(128)) if c in SIGNS or fold(c).ignorable).encode()
_NO_WORDS = _NO_LETTERS + string.digits.encode()
_ASCII_LETTERS = frozenset(string.ascii_letters)
_FIRST_WIDE = "\u2e80"
_IS_LETTER, _IS_MEANING = re.compile(_LETTER), re.compile(_MEANS)


def _kind(code: int) -> int:
    """L: a letter of an alphabet; M: what may be part of a word or not; o: anything else."""
    character = chr(code)
    if _IS_MEANING.match(character):
        return ord("M")
    if _IS_LETTER.match(character):
        return ord("L")
    # Letters in circles, full-width signs: a word must be found by what it is, not by what is beside it.
    letters = fold(character).letters
    if not letters or is_wide(letters[0]):
        return ord("o")
    return ord("M" if any(map(_IS_MEANING.match, letters)) else "L")


_KINDS = CodeTable(np.uint8, _kind)
_ASCII_KINDS = bytes(_kind(code) for code in range(256))
_DIGITS = re.compile(r"\d")
_OUTER_DIGITS = re.compile(f"(?<!{_LETTER})\\d+|\\d+(?!{_LETTER})")
_SPACED = re.compile(r" (?:\w ){3,}")
"""Letters that stand one by one."""


@dataclass(frozen=True)
class _Word:
    text: str
    letters: str
    """One for each class of its skeleton."""
    own: str
    """See `Folded.own`."""
    gaps: frozenset[int]
    """Before which letters the word itself has a separator."""


@lru_cache(maxsize=4096)
def _word(text: str) -> _Word:
    letters, own, gaps = "", "", set()
    separated = False
    for character in text:
        folded = fold(character)
        if folded.letters:
            if separated and letters:
                gaps.add(len(letters))
            letters += folded.letters
            own += folded.own
            separated = False
        elif not folded.ignorable:
            separated = True
    return _Word(text, letters, own, frozenset(gaps))


@dataclass(frozen=True)
class _Letter:
    """A class of a text's skeleton and where it comes from."""

    at: int
    """Index of its character."""
    letter: str
    own: str
    """See `Folded.own`."""


class _Runs(NamedTuple):
    """A skeleton as runs of one letter."""

    letters: str
    """One of each."""
    spans: list[tuple[int, int]]


def _runs_of(skeleton: str) -> _Runs:
    spans = [match.span() for match in re.finditer(r"(.)\1*", skeleton, re.DOTALL)]
    return _Runs("".join(skeleton[start] for start, _ in spans), spans)


class WordList:
    """See the module. `inside_words`: also find words of an alphabet within longer ones."""

    def __init__(self, words: Iterable[str], *, inside_words: bool = False) -> None:
        """Raises `ValueError` for a word of which nothing is left without its separators."""
        self.inside_words = inside_words
        self._skeletons: dict[str, list[str]] = {}
        self._around = 0
        """Words beside one that may be part of a phrase with it; its own separators may be more than one."""
        alone: dict[str, list[str]] = {}
        anywhere: dict[str, list[str]] = {}
        for text in dict.fromkeys(words):
            skeleton = skeleton_of(text)
            if not skeleton:
                raise ValueError(f"{text!r} has no letters or digits")
            self._skeletons.setdefault(skeleton, []).append(text)
            if inside_words or any(map(is_wide, skeleton)):
                anywhere.setdefault(skeleton, []).append(text)
                continue
            parts = _spaced(text).split()
            if len(parts) > 1:
                self._around = max(self._around, 2 * len(parts))
            for form in {f" {skeleton} ", f" {' '.join(parts)} "}:
                alone.setdefault(form, []).append(text)
        self._alone = _Automaton(alone)
        self._anywhere = _Automaton(anywhere)
        self._prefixes = _Prefixes(self._skeletons)

    def __len__(self) -> int:
        return sum(map(len, self._skeletons.values()))

    def watch(self) -> Watcher:
        return SeeingThroughMarkup(lambda: _WordWatcher(self))

    def spans(self, text: str, final: bool, start: int = 0) -> list[Span]:
        """Those that begin at `start` or behind it; maybe others."""
        # Where no sign may be a letter, a text behind a space means what it means alone.
        candidates = self._candidates(
            text[text.rfind(" ", 0, start) + 1 :] if start and _is_plain(text) else text
        )
        if not candidates:
            return []
        words = [_word(word) for word in sorted(candidates)]
        letters = _letters(text)
        views = [letters]
        if any(one.letter in SIGNS for one in letters):
            # Signs may be what separates: `d|a|m|n`.
            views.append([one for one in letters if one.letter not in SIGNS])
        spans = []
        for view in views:
            runs = _runs_of("".join(fold(one.letter).skeleton for one in view))
            spans += [span for word in words for span in self._places(word, view, runs, text, final)]
        return spans

    def _candidates(self, text: str) -> set[str]:
        """The first look: words that may be in the text. All that are in it are among them."""
        found: set[str] = set()
        if self._anywhere.words and not (text.isascii() and not self.inside_words):
            found.update(self._anywhere.find(skeleton_of(text)))
            if any(sign in text for sign in _WIDE_SIGNS) and _SIGN_WITHIN.search(text):
                found.update(self._anywhere.find(_SIGNLESS(text)))
        if self._alone.words:
            spaced = f" {' '.join(_spaced(text, self._around).split())} "
            found.update(self._alone.find(spaced))
            for run in _SPACED.finditer(spaced):
                found.update(self._within(run[0].replace(" ", "")))
        return found

    def _within(self, letters: str) -> Iterator[str]:
        """Words within a run of single letters, some of them repeated."""
        for start in range(len(letters)):
            for end in range(start + 3, min(len(letters), start + self._prefixes.longest) + 1):
                yield from self._skeletons.get(letters[start:end], ())
        if _has_run(letters):
            letters = _RUNS.sub(r"\1", letters)
            for start in range(len(letters)):
                for end in range(start + 2, min(len(letters), start + self._prefixes.longest) + 1):
                    yield from self._alone.collapsed.get(f" {letters[start:end]} ", ())

    def _places(
        self, word: _Word, letters: list[_Letter], runs: _Runs, text: str, final: bool
    ) -> Iterator[Span]:
        """The second look: where a word is. Runs of a letter are as long as the word's own, or three at least; or each
        is twice as long.
        """
        own = _runs_of(skeleton_of(word.letters))
        at = runs.letters.find(own.letters)
        while at >= 0:
            yield from self._in_runs(
                word, own.spans, runs.spans[at : at + len(own.spans)], letters, text, final
            )
            at = runs.letters.find(own.letters, at + 1)

    def _in_runs(
        self,
        word: _Word,
        own: list[tuple[int, int]],
        runs: list[tuple[int, int]],
        letters: list[_Letter],
        text: str,
        final: bool,
    ) -> Iterator[Span]:
        """The match of a word's runs with as many of the text's. The first and the last may be parts of theirs:
        `好好学` has 好学, and `ass$` ass.
        """
        last = len(own) - 1
        doubled = last > 0 and all(
            end - start == 2 * (after - first) for (start, end), (first, after) in zip(runs, own, strict=True)
        )
        for cut_first, cut_last in ((False, False), (True, False), (False, True), (True, True)):
            chosen: list[_Letter] = []
            wanted: list[int] = []
            for number, ((start, end), (first, after)) in enumerate(zip(runs, own, strict=True)):
                length, count = end - start, after - first
                written = list(range(first, after))
                if (cut_first and number == 0) or (cut_last and number == last):
                    if length <= count:
                        break
                    at = end - count if cut_first and number == 0 else start
                    chosen += letters[at : at + count]
                elif doubled and not (cut_first or cut_last):
                    written = [index for index in written for _ in range(2)]
                    chosen += letters[start:end]
                elif length == count or length >= max(3, count):
                    written += written[-1:] * (length - count)
                    chosen += letters[start:end]
                else:
                    break
                wanted += written
            else:
                if self._is(word, wanted, chosen, text, final):
                    yield Span(chosen[0].at, chosen[-1].at + 1, word.text)

    def _is(self, word: _Word, wanted: list[int], chosen: list[_Letter], text: str, final: bool) -> bool:
        """`wanted`: which of the word's letters each is to be."""
        real = digits = alike = 0
        for one, index in zip(chosen, wanted, strict=True):
            letter, own = word.letters[index], word.own[index]
            if one.letter == letter:
                if one.own != " " and own not in (one.own, " "):
                    return False
                if one.own in (" ", own):
                    real += 1
                else:
                    alike += 1
            elif letter in DIGITS.get(one.letter, "") or (letter in "il" and one.letter in "il"):
                digits += 1
            elif letter not in SIGNS.get(one.letter, ""):
                return False
        gaps = _gaps(word, wanted, chosen, text)
        # Within a word, letters of two alphabets are no accident.
        faked = digits + alike * any(gaps)
        if not real or (faked > real and (real < 3 or faked > 2 * real)):
            return False
        start, end = chosen[0].at, chosen[-1].at + 1
        if not self.inside_words and not self._stands_alone(word, text, start, end, final):
            return False
        return _gaps_are_fine(gaps, chosen, text, start, end)

    @staticmethod
    def _stands_alone(word: _Word, text: str, start: int, end: int, final: bool) -> bool:
        """Words of an alphabet are not part of longer ones."""
        if word.letters[0].isalpha() and not is_wide(word.letters[0]) and _is_letter(text, start - 1, -1):
            return False
        if word.letters[-1].isalpha() and not is_wide(word.letters[-1]):
            following = _is_letter(text, end, 1)
            return final if following is None else not following
        return True


_SIGNLESS = Folder(signs=False)
_FOLDER = Folder(separators=" ", joiners=JOINERS, signs=False, wide=" ")
_ODD_FOLDERS = {
    signs: [Folder(separators=" ", joiners=joiners, signs=signs, wide=" ") for joiners in (JOINERS, "")]
    for signs in (False, True)
}


def _spaced(text: str, around: int = 0) -> str:
    """A text's words of an alphabet, without disguises, with spaces between them.

    A sign or a digit beside a letter may be a letter, or itself, or nothing: all forms of such words are told, with so
    many words `around` them as a phrase may have.
    """
    forms = [_FOLDER(text)]
    odd = " ".join(dict.fromkeys(_odd_words(text, around)))
    if not odd:
        return forms[0]
    digits = _DIGITS.search(odd) is not None
    signs = any(sign in odd for sign in SIGNS)
    for form in (odd, _OUTER_DIGITS.sub(" ", odd), _DIGITS.sub(" ", odd)) if digits else (odd,):
        forms += [folder(form) for folder in _ODD_FOLDERS[False]]
        if signs:
            for inner in dict.fromkeys((form, _OUTER_SIGN.sub(" ", form), _CLOSING.sub(" ", form))):
                forms += [folder(inner) for folder in _ODD_FOLDERS[True]]
    return " ".join(dict.fromkeys(forms))


def _kinds(text: str) -> bytes:
    """Of each character; see `_kind`."""
    if text.isascii():
        return text.encode().translate(_ASCII_KINDS)
    kinds = _KINDS(text)
    if b"\0" in kinds:
        _KINDS.learn(text)
        kinds = _KINDS(text)
    return kinds


def _odd_words(text: str, around: int) -> Iterator[str]:
    """What stands between spaces and has such a sign beside a letter, with so many words before and after."""
    kinds = _kinds(text)
    end = -1
    behind, before = kinds.find(b"LM"), kinds.find(b"ML")
    while behind >= 0 or before >= 0:
        at = before if behind < 0 else behind if before < 0 else min(behind, before)
        start = end = at
        for _ in range(around + 1):
            start = max(0, text.rfind(" ", 0, start))
            following = text.find(" ", end + 1)
            end = len(text) if following < 0 else following
        yield text[start:end]
        # The next one ends behind this.
        behind, before = kinds.find(b"LM", end), kinds.find(b"ML", end)


class _Automaton:
    """Forms → words; also of texts in which a letter is repeated."""

    def __init__(self, words: dict[str, list[str]]) -> None:
        self.words = list(words.values())
        collapsed: dict[str, list[str]] = {}
        for form, same in words.items():
            collapsed.setdefault(_RUNS.sub(r"\1", form), []).extend(same)
        self.collapsed = collapsed
        self._collapsed_words = list(collapsed.values())
        ahocorasick_rs = library("ahocorasick_rs")
        kind = ahocorasick_rs.MatchKind.Standard
        self._plain = ahocorasick_rs.AhoCorasick(list(words), matchkind=kind, store_patterns=False)
        self._collapsed = ahocorasick_rs.AhoCorasick(list(collapsed), matchkind=kind, store_patterns=False)

    def find(self, form: str) -> Iterator[str]:
        for number, _, _ in self._plain.find_matches_as_indexes(form, overlapping=True):
            yield from self.words[number]
        if _has_run(form):
            form = _RUNS.sub(r"\1", form)
            for number, _, _ in self._collapsed.find_matches_as_indexes(form, overlapping=True):
                yield from self._collapsed_words[number]


def _is_plain(text: str, without: bytes = _NO_WORDS) -> bool:
    """It is ASCII, and nothing in it may be another letter than it is, or be passed over."""
    return text.isascii() and len(text.encode().translate(None, without)) == len(text)


def _has_run(form: str) -> bool:
    """See `_RUN`."""
    if len(form) < _SHORT_RUN:
        return _RUN.search(form) is not None
    if form.isascii():
        letters = np.frombuffer(form.encode(), np.uint8)
    else:
        letters = np.frombuffer(form.encode("utf-32-le", "surrogatepass"), np.uint32)
    same = letters[1:] == letters[:-1]
    found = same.tobytes()
    if b"\1\1" not in found and b"\1\0\1" not in found:
        return False
    same &= letters[1:] != ord(" ")
    return bool((same[1:] & same[:-1]).any() or (same[2:] & same[:-2]).any())


class _Prefixes:
    """Whether a text may go on to be a word."""

    def __init__(self, skeletons: Iterable[str]) -> None:
        collapsed = {_RUNS.sub(r"\1", skeleton) for skeleton in skeletons}
        self._sorted = sorted(collapsed)
        self.longest = max(map(len, skeletons), default=0)

    def __contains__(self, start: str) -> bool:
        """`start`: a skeleton without repetitions."""
        at = bisect.bisect_left(self._sorted, start)
        return at < len(self._sorted) and self._sorted[at].startswith(start)


class _WordWatcher:
    def __init__(self, words: WordList) -> None:
        self._list = words
        self._open = 0
        """Characters of the whole text among which no word begins any more that is not found yet."""

    def look(self, window: Window) -> tuple[list[Span], int]:
        text, base, final = window
        start = max(0, self._open - base)
        spans = [Span(a + base, b + base, what) for a, b, what in self._list.spans(text, final, start)]
        self._open = base + (len(text) if final else self._open_from(text, start))
        return spans, self._open

    def _open_from(self, text: str, start: int) -> int:
        """The first place, not before `start`, from which the text may go on to be a word, or is one whose end is not
        certain. What cannot go on to be one cannot with more text either, so each character is looked at while it can.
        """
        if not self._list.inside_words and _is_plain(text[max(0, start - 1) :], _NO_LETTERS):
            return self._open_in_plain(text, start)
        first, signs = self._first_open(text, start, signs=True)
        return min(first, self._first_open(text, start, signs=False)[0]) if signs else first

    def _open_in_plain(self, text: str, start: int) -> int:
        """The same for text that is mostly what it looks like: only where a word begins there is something to ask."""
        for gap in _LONG_GAPS.finditer(text, start):
            start = gap.end()
        for beginning in _BEGINNINGS.finditer(text, start):
            at = beginning.start()
            if _RUNS.sub(r"\1", skeleton_of(text[at:])) in self._list._prefixes:
                return at
        return len(text)

    def _first_open(self, text: str, start: int, *, signs: bool) -> tuple[int, bool]:
        """With signs for letters, or as separators; and whether there are any."""
        prefixes, inside = self._list._prefixes, self._list.inside_words
        skeleton = ""
        seen = False
        first = following = len(text)
        for at in range(len(text) - 1, start - 1, -1):
            folded = fold(text[at])
            letters = folded.letters
            if letters in SIGNS:
                seen = True
                letters = letters if signs else ""
            if not letters:
                continue
            # What is behind a long gap is over.
            if following - at > _LONGEST_GAP and _visible(text, at + 1, following) > _LONGEST_GAP:
                break
            following = at
            within = not inside and at > 0 and text[at - 1] in _ASCII_LETTERS
            for letter, kind in zip(letters[::-1], folded.skeleton[::-1], strict=True):
                if kind != skeleton[:1]:
                    skeleton = kind + skeleton
                    if len(skeleton) > prefixes.longest:
                        return first, seen
                if within and letter < _FIRST_WIDE:
                    continue
                if (inside or is_wide(letter) or not _is_letter(text, at - 1, -1)) and skeleton in prefixes:
                    first = at
        return first, seen


def _letters(text: str) -> list[_Letter]:
    found = []
    for at, character in enumerate(text):
        folded = fold(character)
        for letter, own in zip(folded.letters, folded.own, strict=True):
            found.append(_Letter(at, letter, own))
    return found


def _visible(text: str, start: int, end: int) -> int:
    return sum(not fold(character).ignorable for character in text[start:end])


def _is_letter(text: str, at: int, step: int) -> bool | None:
    """Whether the next visible character in this direction is a letter of an alphabet; None: there is none."""
    while 0 <= at < len(text):
        folded = fold(text[at])
        if not folded.ignorable:
            # As it is read: one in a circle is a letter, too.
            letter = folded.letters[::-step][-1:]
            return letter.isalpha() and not is_wide(letter)
        at += step
    return None


def _gaps(word: _Word, wanted: list[int], chosen: list[_Letter], text: str) -> list[str]:
    """What is visible between the letters of a word, but for where it has a separator itself."""
    gaps: list[str] = []
    for (one, last), (following, index) in itertools.pairwise(zip(chosen, wanted, strict=True)):
        between = "".join(c for c in text[one.at + 1 : following.at] if not fold(c).ignorable)
        if len(between) > _LONGEST_GAP or index not in word.gaps or index == last or one.at == following.at:
            gaps.append(between)
    return gaps


def _gaps_are_fine(gaps: list[str], chosen: list[_Letter], text: str, start: int, end: int) -> bool:
    if any(len(gap) > _LONGEST_GAP for gap in gaps):
        return False
    used = [gap for gap in gaps if gap]
    if not used:
        return True
    regular = (
        len(used) == len(gaps) and len({gap.translate(_OPENING) for gap in used}) == 1 and len(gaps) >= 2
    )
    if regular:
        return True
    if not all(is_wide(one.letter) for one in chosen):
        return all(len(gap) <= 3 and _JOINERS.issuperset(gap) for gap in used)
    if any(_STOPS.intersection(gap) or len(gap) > 3 for gap in used):
        return False
    if len(chosen) >= 3 or all(_JOINERS.issuperset(gap) for gap in used):
        return True
    # Two characters with a space between them are two words' ends, unless they stand alone.
    return not _joins(text, start - 1) and not _joins(text, end)


def _joins(text: str, at: int) -> bool:
    return 0 <= at < len(text) and text[at].isalnum()
