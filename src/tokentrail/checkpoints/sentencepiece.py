"""SentencePiece's `tokenizer.model`: a protocol-buffer message, read with every length checked.

Field numbers are those of sentencepiece_model.proto (ModelProto, TrainerSpec, NormalizerSpec); the wire format is
that of protocol buffers (protobuf.dev, "Encoding").
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN, file_error, quoted
from tokentrail.checkpoints.json_file import MAX_TOKENIZER_BYTES, read_bytes

UNIGRAM, BPE = 1, 2
"""`SentencePieceModel.model_type`; words and characters (3, 4) are not run by any language model known here."""
_KINDS = range(1, 7)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Value = int | bytes
Field = tuple[int, Value]


@dataclass
class SentencePieceModel:
    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    """As in GGUF, which took them over: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte."""
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    """-1 in these three: there is none."""
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True


class _Malformed(Exception):
    """The message is not one. Its text says what is wrong where."""


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Raises `ModelFileError` where the file is not a SentencePiece model, or not one that can be run."""
    data = read_bytes(path, MAX_TOKENIZER_BYTES)
    model = SentencePieceModel()
    try:
        for number, value in _fields(data, 0, len(data)):
            if number == 1:
                _read_piece(model, _bytes(value))
            elif number == 2:
                _read_trainer(model, _bytes(value))
            elif number == 3:
                _read_normalizer(model, _bytes(value))
    except _Malformed as error:
        raise file_error(path, f"is no SentencePiece model ({error})", DOWNLOAD_AGAIN) from None
    if not model.pieces:
        raise file_error(path, "has no pieces", DOWNLOAD_AGAIN)
    if model.model_type not in (UNIGRAM, BPE):
        problem = (
            f"is a SentencePiece model of type {model.model_type}; Unigram (1) and BPE (2) are supported"
        )
        raise file_error(path, problem, "Use a model with one of these.")
    if len(set(model.pieces)) != len(model.pieces):
        seen: set[str] = set()
        twice = next(piece for piece in model.pieces if piece in seen or seen.add(piece))  # type: ignore[func-returns-value]
        raise file_error(path, f"has the piece {quoted(twice)} twice", DOWNLOAD_AGAIN)
    for name in ("unk_id", "bos_id", "eos_id"):
        if not -1 <= getattr(model, name) < len(model.pieces):
            problem = f"{name} is {getattr(model, name)}, but there are {len(model.pieces)} pieces"
            raise file_error(path, problem, DOWNLOAD_AGAIN)
    return model


def _read_piece(model: SentencePieceModel, data: bytes) -> None:
    text, score, kind = "", 0.0, 1
    for number, value in _fields(data, 0, len(data)):
        if number == 1:
            text = _text(value)
        elif number == 2:
            score = _float(value)
        elif number == 3:
            kind = _integer(value)
    if kind not in _KINDS:
        raise _Malformed(f"piece {len(model.pieces)} is of type {kind}")
    if not math.isfinite(score):
        raise _Malformed(f"piece {len(model.pieces)} has the score {score}")
    model.pieces.append(text)
    model.scores.append(score)
    model.types.append(kind)


def _read_trainer(model: SentencePieceModel, data: bytes) -> None:
    for number, value in _fields(data, 0, len(data)):
        if number == 3:
            model.model_type = _integer(value)
        elif number == 35:
            model.byte_fallback = bool(_integer(value))
        elif number == 40:
            model.unk_id = _integer(value)
        elif number == 41:
            model.bos_id = _integer(value)
        elif number == 42:
            model.eos_id = _integer(value)


def _read_normalizer(model: SentencePieceModel, data: bytes) -> None:
    for number, value in _fields(data, 0, len(data)):
        if number == 2:
            model.charsmap = _bytes(value)
        elif number == 3:
            model.add_dummy_prefix = bool(_integer(value))
        elif number == 4:
            model.remove_extra_whitespaces = bool(_integer(value))


# --- wire format --------------------------------------------------------------------------------------------


def _fields(data: bytes, position: int, end: int) -> Iterator[Field]:
    """(number, value) of each field: an integer, or bytes (four of them for a float)."""
    while position < end:
        tag, position = _varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position, end)
            yield number, value
            continue
        if wire == _BYTES:
            size, position = _varint(data, position, end)
        elif wire == _FIXED32:
            size = 4
        elif wire == _FIXED64:
            size = 8
        else:
            raise _Malformed(f"a field of kind {wire} at byte {position}")
        if size > end - position:
            raise _Malformed(f"a field of {size} bytes at byte {position}, where {end - position} are left")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            # Negative numbers come as 64-bit two's complement.
            return (value - (1 << 64) if value >> 63 else value), position
        shift += 7
    raise _Malformed(f"an unfinished number at byte {position}")


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise _Malformed("a number where bytes should be")
    return value


def _text(value: Value) -> str:
    try:
        return _bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        raise _Malformed("a piece that is not UTF-8") from None


def _float(value: Value) -> float:
    data = _bytes(value)
    if len(data) != 4:
        raise _Malformed("a score that is no float")
    number: float = struct.unpack("<f", data)[0]
    return number


def _integer(value: Value) -> int:
    if not isinstance(value, int):
        raise _Malformed("bytes where a number should be")
    return value
