"""An uploaded file: a multipart form (RFC 7578) whose file goes straight to the disk, as it arrives."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request

from tokentrail.protocol import InvalidRequest
from tokentrail.server.errors import HTTPError, too_large

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartParser

# Forms that are wrong are told to who sent them, not to the log.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

_IDLE = 60.0
"""Seconds that may pass without a byte."""
_MOST_FIELD_BYTES = 64 * 1024
"""Of all that is not the file."""
_LONGEST_NAME = 255


class Upload:
    """A form's fields, and its part `file`, which is written to `draft`. Blocking: fed in a thread."""

    def __init__(self, boundary: bytes, draft: Path, limit: int) -> None:
        from python_multipart.multipart import MultipartParser

        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        """None: there was no file."""
        self.size = 0
        self._limit = limit
        self._small = 0
        self._whole = False
        self._file = draft.open("xb")
        self._header = bytearray()
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._into_file = False
        self._field = bytearray()
        self._parser: MultipartParser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers,
                "on_part_data": self._on_data,
                "on_part_end": self._on_end,
                "on_end": self._on_whole,
            },
        )

    def write(self, data: bytes) -> None:
        """Raises `InvalidRequest` for what is no form, and 413 for too much."""
        from python_multipart.exceptions import FormParserError

        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidRequest(f"The body is no valid multipart form: {error}.") from None

    def finish(self) -> None:
        """All has come; the file is on the disk."""
        if not self._whole:
            raise InvalidRequest("The body is no valid multipart form: it ends too early.")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def close(self) -> None:
        self._file.close()

    def _begin(self) -> None:
        self._headers = {}
        self._name, self._into_file, self._field = "", False, bytearray()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _on_headers(self) -> None:
        from python_multipart.multipart import parse_options_header

        kind, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if kind != b"form-data" or b"name" not in options:
            raise InvalidRequest("The body is no valid multipart form: a part has no name.")
        self._name = options[b"name"].decode("utf-8", "replace")
        if self._name == "file":
            if self.filename is not None:
                raise InvalidRequest("There must be one file only.", param="file")
            if b"filename" not in options:
                raise InvalidRequest("file must be a file, with a filename.", param="file")
            self.filename = _plain_name(options[b"filename"].decode("utf-8", "replace"))
            self._into_file = True

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._into_file:
            self.size += end - start
            if self.size > self._limit:
                raise too_large(self._limit)
            self._file.write(data[start:end])
        else:
            self._count(end - start)
            self._field += data[start:end]

    def _on_end(self) -> None:
        if not self._into_file:
            self.fields[self._name] = self._field.decode("utf-8", "replace")

    def _on_whole(self) -> None:
        self._whole = True

    def _count(self, nbytes: int) -> None:
        self._small += nbytes
        if self._small > _MOST_FIELD_BYTES:
            raise too_large(_MOST_FIELD_BYTES)


def _plain_name(name: str) -> str:
    """What is told to clients; it never becomes a path."""
    name = name.replace("\\", "/").rpartition("/")[2].replace("\0", "").strip()
    return name[:_LONGEST_NAME] or "file"


async def receive(request: Request, draft: Path, limit: int) -> Upload:
    """Read the form of at most `limit` bytes of file. The draft is complete on the disk then; it is left to the caller
    to remove it where this raises.
    """
    from python_multipart.multipart import parse_options_header

    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise HTTPError(
            415, "The body must be a form (Content-Type: multipart/form-data).", type="invalid_request_error"
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit + 2 * _MOST_FIELD_BYTES:
        raise too_large(limit)
    loop = asyncio.get_running_loop()
    upload = await loop.run_in_executor(None, Upload, options[b"boundary"], draft, limit)
    try:
        chunks = aiter(request.stream())
        total = 0
        while True:
            try:
                chunk = await asyncio.wait_for(anext(chunks, None), _IDLE)
            except asyncio.TimeoutError:
                raise HTTPError(
                    408, "The body took too long to arrive.", type="invalid_request_error"
                ) from None
            if chunk is None:
                break
            total += len(chunk)
            if total > limit + 2 * _MOST_FIELD_BYTES:
                raise too_large(limit)
            if chunk:
                await loop.run_in_executor(None, upload.write, chunk)
        await loop.run_in_executor(None, upload.finish)
    finally:
        upload.close()
    return upload
