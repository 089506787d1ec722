"""From the engine's `Rejected` to the error that a caller meets."""

from __future__ import annotations

from tokentrail.protocol import (
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    Rejected,
    TokentrailError,
)


def error_of(rejected: Rejected) -> TokentrailError:
    if rejected.code == "queue_full":
        return Overloaded(rejected.message)
    if rejected.code == ContextLengthExceeded.code:
        return ContextLengthExceeded(rejected.message, param="prompt")
    return InvalidRequest(rejected.message, code=rejected.code)
