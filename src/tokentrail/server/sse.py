"""Server-sent events, as OpenAI's streams use them."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Tells nginx and its like not to collect the stream before passing it on.
    "x-accel-buffering": "no",
}

_encode = msgspec.json.Encoder().encode

# Line ends to some readers of text, though not to the specification of SSE nor to that of JSON.
_LINE_ENDS = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))


def event(data: Any) -> bytes:
    """`data` as JSON in one event."""
    return raw_event(_encode(data))


def raw_event(json: bytes) -> bytes:
    for raw, escaped in _LINE_ENDS:
        if raw in json:
            json = json.replace(raw, escaped)
    return b"data: " + json + b"\n\n"
