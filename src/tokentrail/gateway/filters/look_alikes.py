"""Letters that are drawn like Latin ones.

Rare alphabets, and Armenian, are from Unicode's table of confusable characters (UTS #39): each letter in the case that
case folding gives.
"""

from __future__ import annotations

import re
import unicodedata

_FORMS = {
    **dict(zip("ŋɑɒəɩðɣʊ", "naaeidyu", strict=True)),
    **{
        one: letter
        for letter, row in {
            "a": "Ꭺᗅꓮ", "b": "ᏏᏴᑲᖯᗷꓐ", "c": "Ꮯⲥꓚ𐐽", "d": "ᎠᏧᑯᗞᗪꓒꓓ", "e": "Ꭼꓰⴹ", "f": "ᖴꓝ", "g": "ᏀᏳꓖ",
            "h": "ᎻᏂᕼⲏꓧ",
            "i": "Ꭵ", "j": "Ꭻᒍꓙ", "k": "Ꮶⲕꓗ", "l": "Ꮮᒪⲓⳑꓡꓲⵏ𐑃", "m": "Ꮇᗰⲙꓟ", "n": "ⲛꓠ", "o": "ⲟꓳⵔ𐐬",
            "p": "Ꮲᑭⲣꓑ", "q": "ⵕ", "r": "ᎡᎱᏒᖇⲅꓣ", "s": "ᏕᏚꓢ𐑈", "t": "Ꭲⲧꓔ", "u": "ᑌꓴ",
            "v": "Ꮩᐯꓦⴸ", "w": "ᎳᏔꓪ", "x": "ᕁᕽⲭꓫⵝ", "y": "ᎩᎽⲩꓬ", "z": "Ꮓ𐋵ꓜ",
        }.items()
        for one in row
    },
}  # fmt: skip
"""Forms of Latin letters, and letters of alphabets in which hardly anybody writes."""
_LIVING = {
    **dict(zip("авекмнорстухіјѕԁԛԝһӏпияшщгьѵү", "abekmhopctyxijsdqwhlnnrwwrbvy", strict=True)),
    **dict(zip("αβεικνορτυχωδηγσ", "abeiknoptuxwdnyo", strict=True)),
    **dict(zip("քցհոռօգզտսա", "fghnnoqqsuw", strict=True)),
}
"""Cyrillic, Greek and Armenian letters drawn like Latin ones, or nearly."""
_NAMED = re.compile(r"LATIN .*?\b([A-Z])\b")


def latin_form(letter: str) -> str | None:
    """The Latin letter of which this one is a form: with a stroke or a hook, turned, a small capital. Its accents are
    taken off already.
    """
    named = _NAMED.match(unicodedata.name(letter, ""))
    return named[1].lower() if named is not None else _FORMS.get(letter)


def drawn_like(letter: str) -> str | None:
    """The Latin letter that this one of another alphabet may be taken for, though ordinary text is written with it."""
    return _LIVING.get(letter)
