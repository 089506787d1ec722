"""A batch's input: JSON Lines, each a request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tokentrail.server.batches.bodies import BatchError

MOST_LINES = 50_000
"""Requests of a batch, as OpenAI has it."""
MOST_ERRORS = 100
"""Told of a batch."""
_LONGEST_ID = 512
_BOM = b"\xef\xbb\xbf"


class Line(msgspec.Struct):
    """A request of a batch."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Streamed(msgspec.Struct):
    stream: Any = None


_decoder = msgspec.json.Decoder(Line)
_streamed = msgspec.json.Decoder(_Streamed)


class Wrong(Exception):
    """A line that is no request."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def parse(data: bytes, endpoint: str) -> Line:
    """Raises `Wrong`. The request's body is looked at by whoever answers it."""
    try:
        line = _decoder.decode(data)
        streamed = _streamed.decode(line.body)
    except msgspec.ValidationError as error:
        message = str(error)
        missing = message.startswith("Object missing required field")
        param = message.split("`")[1] if missing else message.rpartition("`$.")[2].rstrip("`") or None
        raise Wrong(
            "missing_required_parameter" if missing else "invalid_request", f"{message}.", param
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Wrong("invalid_json_line", "This line is not parseable as valid JSON.") from None
    if not line.custom_id or len(line.custom_id) > _LONGEST_ID:
        raise Wrong("invalid_custom_id", f"custom_id must have 1 to {_LONGEST_ID} characters.", "custom_id")
    if line.method != "POST":
        raise Wrong("invalid_method", f"method must be POST, not {line.method[:20]!r}.", "method")
    if line.url != endpoint:
        raise Wrong(
            "invalid_url",
            f"The URL provided for this request ({line.url[:100]}) does not match the batch endpoint ({endpoint}).",
            "url",
        )
    if streamed.stream:
        raise Wrong("invalid_request", "A request of a batch cannot be streamed.", "body.stream")
    return line


def read(path: Path, longest: int) -> Iterator[tuple[int, bytes]]:
    """(number, line) of each that is not blank, from 1 on. A line above `longest` bytes is cut, so that it parses no
    more.
    """
    with path.open("rb") as file:
        number = 0
        while data := file.readline(longest + 2):
            number += 1
            if number == 1:
                data = data.removeprefix(_BOM)
            while not data.endswith(b"\n") and (rest := file.readline(1 << 16)):
                data = data[:longest] + (b"\n" if rest.endswith(b"\n") else b"")
            if data := data.strip(b" \t\r\n"):
                yield number, data


def validate(path: Path, endpoint: str, longest: int) -> tuple[int, list[BatchError]]:
    """How many requests there are, and what is wrong with the file: the first hundred errors."""
    errors: list[BatchError] = []
    seen: set[str] = set()
    count = 0
    for number, data in read(path, longest):
        count += 1
        if count > MOST_LINES:
            text = f"The file has more than {MOST_LINES} requests. Make several batches of it."
            errors.append(BatchError(code="too_many_requests", message=text))
            break
        try:
            if len(data) >= longest:
                raise Wrong("line_too_long", f"The line has more than {longest} bytes.")
            line = parse(data, endpoint)
            if line.custom_id in seen:
                raise Wrong(
                    "duplicate_custom_id",
                    f"The custom_id {line.custom_id!r} is there more than once.",
                    "custom_id",
                )
            seen.add(line.custom_id)
        except Wrong as error:
            errors.append(BatchError(code=error.code, message=error.message, param=error.param, line=number))
            if len(errors) >= MOST_ERRORS:
                break
    if not count:
        errors.append(BatchError(code="empty_file", message="The file has no requests."))
    return count, errors
