"""Server-sent events, as OpenAI's streams use them."""

from __future__ import annotations

from typing import Any

import msgspec

DONE_DATA = "[DONE]"
DONE = b"data: %b\n\n" % DONE_DATA.encode()

MEDIA_TYPE = "text/event-stream; charset=utf-8"

_encode = msgspec.json.Encoder().encode

# Line ends to some readers of text, though not to the specification of SSE nor to that of JSON.
_LINE_ENDS = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))


def event(data: Any) -> bytes:
    """`data` as JSON in one event."""
    return raw_event(_encode(data))


def raw_event(json: bytes) -> bytes:
    return b"data: " + one_line(json) + b"\n\n"


class TextEvents:
    """Events that differ in one text only: all around it is encoded once."""

    def __init__(self, data: Any, name: str) -> None:
        """`data` holds the text, empty for now, in the first field called `name`."""
        # Inside a string the quotes would have backslashes before them, so this is the field itself.
        field = b'"%b":' % name.encode()
        head, empty, tail = event(data).partition(field + b'""')
        if not empty:
            raise ValueError(f"there is no empty {name}")
        self._head, self._tail = head + field, tail

    def event(self, text: str) -> bytes:
        return b"%b%b%b" % (self._head, one_line(_encode(text)), self._tail)


def one_line(json: bytes) -> bytes:
    """JSON as whatever reads text by lines takes for one."""
    if not json.isascii():
        for raw, escaped in _LINE_ENDS:
            if raw in json:
                json = json.replace(raw, escaped)
    return json
