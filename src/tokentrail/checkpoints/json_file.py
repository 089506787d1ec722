"""Small files beside the weights, read without trust: text and JSON of limited size and depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN, file_error, quoted
from tokentrail.checkpoints.mapped_file import map_file

MAX_JSON_BYTES = 64 << 20
"""Of a file. The largest real ones, tokenizers of 260,000 tokens, take 33 MB."""
MAX_TOKENIZER_BYTES = 256 << 20
"""Of a vocabulary."""
_MAX_DIGITS = 100
"""Of an integer: `model_max_length` often has 31 (1e30). (Long ones take Python quadratic time, or are refused.)"""

T = TypeVar("T")


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """A whole file of at most `limit` bytes. Raises `ModelFileError` if it is larger, or no readable file."""
    mapping = map_file(path, "a model's own files")
    with mapping:
        if len(mapping) > limit:
            raise file_error(
                path, f"has {len(mapping)} bytes; at most {limit} are possible", "Download the model again."
            )
        return mapping[:]


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in a file. Raises `ModelFileError`."""
    return parse_json(path, read_bytes(path, limit))


def parse_json(path: Path, data: bytes, where: str = "", *, strict: bool = False) -> dict[str, Any]:
    """`data` as a JSON object. Raises `ModelFileError` naming the file, and `where` in it.

    `strict`: no key twice, and no NaN or Infinity, which JSON does not have (but Python's writer writes).
    """

    def fail(problem: str) -> ValueError:
        return ValueError(problem)

    def integer(text: str) -> int:
        if len(text) > _MAX_DIGITS:
            raise fail(f"an integer of {len(text)} digits")
        return int(text)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise fail(f"the key {quoted(twice)} is there twice")
        return result

    def constant(text: str) -> float:
        if strict:
            raise fail(f"{text} is no number of JSON")
        return float(text.replace("Infinity", "inf"))

    try:
        value = json.loads(
            data.decode("utf-8"),
            parse_int=integer,
            parse_constant=constant,
            object_pairs_hook=once if strict else None,
        )
    except UnicodeDecodeError:
        problem = "text that is not valid UTF-8"
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        problem = "values nested too deeply"
    except ValueError as error:
        problem = str(error)
    else:
        if isinstance(value, dict):
            return value
        problem = "no object"
    raise file_error(path, f"is not valid JSON{where}: {problem}", DOWNLOAD_AGAIN)


def read_text(path: Path, limit: int = MAX_JSON_BYTES) -> str:
    """UTF-8 text. Raises `ModelFileError`."""
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise file_error(path, f"is not UTF-8 text (byte {error.start})", DOWNLOAD_AGAIN) from None


def read_shape(path: Path, shape: type[T], limit: int = MAX_TOKENIZER_BYTES) -> T:
    """JSON of a known shape, a type that msgspec knows, and quickly: what the shape does not name is only skipped.

    Raises `ModelFileError`.
    """
    try:
        return msgspec.json.decode(read_bytes(path, limit), type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = " ".join(str(error).split()).rstrip(".") or "values nested too deeply"
        raise file_error(path, f"is not the JSON it should be: {problem:.200}", DOWNLOAD_AGAIN) from None
