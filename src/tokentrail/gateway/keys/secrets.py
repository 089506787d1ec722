"""What a key looks like: `tt-`, ten characters of its id, 43 of its secret (256 random bits), six of a checksum; in
all, what `tt-[0-9A-Za-z]{59}` finds. So a typo is told without a lookup, and those who look for leaked secrets find
keys and nothing else.

Kept is one SHA-256 of it, keyed with the deployment's pepper where there is one. Slow hashes (bcrypt, Argon2) make
guessing dear where secrets can be guessed; 256 random bits cannot, and the request path should not take milliseconds.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib
from typing import NamedTuple

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PREFIX = "tt-"
_ID, _SECRET, _CHECK = 10, 43, 6  # 62^43 > 2^256, 62^6 > 2^32
_LENGTH = len(_PREFIX) + _ID + _SECRET + _CHECK
_FORM = re.compile(rb"tt-[0-9A-Za-z]{59}")


class NewKey(NamedTuple):
    id: str
    text: str
    """The key itself. Never kept."""


def new_key(id: str | None = None) -> NewKey:
    """A random key; with the id of one that is rotated, or a new one."""
    own = _random(_ID) if id is None else id.removeprefix("key_")
    body = _PREFIX + own + _random(_SECRET)
    return NewKey("key_" + own, body + _checksum(body.encode()))


def id_of(key: bytes) -> str | None:
    """The id in a key as this server makes them; None for one of another form. Raises ValueError for what was meant to
    be one, and is cut off or mistyped.
    """
    if _FORM.fullmatch(key) and key[-_CHECK:].decode() == _checksum(key[:-_CHECK]):
        return "key_" + key[len(_PREFIX) : len(_PREFIX) + _ID].decode()
    # Other keys (`--api-key`) may begin like that, but hardly with as many characters.
    if key.startswith(_PREFIX.encode()) and abs(len(key) - _LENGTH) <= 8:
        raise ValueError("its check characters do not fit")
    return None


def plain_digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def keyed(digest: bytes, pepper: bytes | None) -> bytes:
    """What is kept of a key with this digest."""
    return digest if pepper is None else hmac.digest(pepper, digest, "sha256")


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _checksum(body: bytes) -> str:
    left, digits = zlib.crc32(body), ""
    for _ in range(_CHECK):
        left, digit = divmod(left, 62)
        digits = _ALPHABET[digit] + digits
    return digits
