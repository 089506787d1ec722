"""A text in the plain characters that numbers and addresses are written with, and where each of them was."""

from __future__ import annotations

import bisect
import unicodedata

from tokentrail.gateway.filters.skeleton import compatible, is_ignorable

_OF_CARDS = dict.fromkeys("ХхΧχ", "X")
"""Letters drawn like the one that identity cards may end with."""
NUMERALS = {
    numeral: str(digit)
    for digit, row in enumerate(
        ["〇零", "一幺壹", "二两贰貳", "三叁參", "四肆", "五伍", "六陆陸", "七柒", "八捌", "九玖"]
    )
    for numeral in row
}
"""Chinese numerals, as they are read out digit by digit."""


def _form(character: str) -> str:
    if is_ignorable(character):
        return ""
    digit = unicodedata.digit(character, None)
    if digit is not None:
        return str(digit)
    form = compatible(character)
    return _OF_CARDS.get(form) or (form if len(form) == 1 else character)


class _Forms(dict[int, str]):
    """For `str.translate`: fills itself as characters come."""

    def __missing__(self, code: int) -> str:
        self[code] = form = _form(chr(code))
        return form


_FORMS = _Forms()
_UNSEEN = bytes(code for code in range(128) if is_ignorable(chr(code)))
_DIGITS = str.maketrans(NUMERALS)


class Plain:
    """`text`: in ASCII where a character has a form there, without what nobody sees."""

    def __init__(self, original: str) -> None:
        if original.isascii():
            self.text = original.encode().translate(None, _UNSEEN).decode()
        else:
            self.text = original.translate(_FORMS)
        self._places: list[int] | None = None
        if len(self.text) != len(original):
            self._places = [at for at, character in enumerate(original) if _FORMS[ord(character)]]
            self._places.append(len(original))

    def place(self, at: int) -> int:
        """Where the character `at` of the plain text is in the original; its end for the end."""
        return at if self._places is None else self._places[at]

    def index(self, place: int) -> int:
        """Of the first character that is not before this place."""
        return place if self._places is None else bisect.bisect_left(self._places, place)

    def with_numerals_as_digits(self) -> str:
        """As long as `text`."""
        return self.text.translate(_DIGITS)
