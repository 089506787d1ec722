"""Calls of the `tokenizers` library with its ways of failing turned into ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tokentrail.protocol import InvalidRequest, ModelFileError

if TYPE_CHECKING:
    import tokenizers

_LONG = 10_000
"""Characters that take milliseconds to encode."""

T = TypeVar("T")


def encode(tokenizer: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """Ids of `text`. Other threads run meanwhile where it is long."""

    def ids() -> list[int]:
        if len(text) < _LONG:
            return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        # The library lets other threads run only while it encodes batches.
        return tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    try:
        return _without_panic(ids)
    except _Failed as error:
        raise InvalidRequest(f"The model's tokenizer cannot split this text: {error}.") from None


def attempt(make: Callable[[], T]) -> T | None:
    """What `make` makes; None where the library will not."""
    try:
        return _without_panic(make)
    except _Failed:
        return None


def build(make: Callable[[], T], origin: str) -> T:
    """What `make` makes of a model file. Raises `ModelFileError`, in one line, where the library will not."""
    try:
        return _without_panic(make)
    except _Failed as error:
        raise ModelFileError(
            f"{origin}: the tokenizer cannot be built ({error}). Download the model's tokenizer files again."
        ) from None


class _Failed(Exception):
    """In one line."""


def _without_panic(call: Callable[[], T]) -> T:
    try:
        return call()
    except BaseException as error:
        # A panic of the library, as one of its regular expressions can cause, is no `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise _Failed(f"{reason:.300}") from None
