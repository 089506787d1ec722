"""Errors as Anthropic's API has them: `{"type": "error", "error": {"type", "message"}, "request_id"}`."""

from __future__ import annotations

from tokentrail.server.errors import ErrorBody, Shaped

OVERLOADED = 529
"""Its status for a server that has too much to do; 429 means that a client asks for too much."""
NO_THREADS = "thread_unsupported_request"
"""A code that clients look for: they send the whole conversation then."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def anthropic_shape(error: ErrorBody, status: int) -> Shaped:
    """A `Shape`. The client's exceptions are chosen by the status, its users look at the type."""
    if error.code == "queue_full":
        status = OVERLOADED
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    told: dict[str, object] = {"type": kind, "message": error.message}
    if error.code == NO_THREADS:
        told["details"] = {"error_code": NO_THREADS}
    return Shaped({"type": "error", "error": told, "request_id": error.request_id or None}, status)
