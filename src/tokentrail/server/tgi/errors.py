"""Errors as Text Generation Inference tells them: what kind, and statuses of its own."""

from __future__ import annotations

from typing import Any

from tokentrail.server.errors import ErrorBody, Shaped

_KINDS = {401: "authentication", 404: "not_found", 429: "overloaded", 503: "healthcheck"}


def shape(error: ErrorBody, status: int) -> Any:
    """`{"error": "what is wrong", "error_type": "of which kind"}`"""
    if status == 400:
        body = {"error": f"Input validation error: {error.message}", "error_type": "validation"}
        return Shaped(body, 422)
    if status == 500:
        return Shaped({"error": error.message, "error_type": "generation"}, 424)
    return {"error": error.message, "error_type": _KINDS.get(status, "validation")}
