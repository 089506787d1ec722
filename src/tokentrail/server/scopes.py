"""Which kind of endpoint a path is: what keys can be held to (`gateway.config.keys.Endpoint`)."""

from __future__ import annotations

from starlette.types import Scope

from tokentrail.answer import Identity
from tokentrail.protocol import PermissionDenied

_PATHS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/messages/count_tokens": "tokens",
    "/api/chat": "chat",
    "/v1/completions": "completions",
    "/completion": "completions",
    "/infill": "completions",
    "/api/generate": "completions",
    "/generate": "completions",
    "/generate_stream": "completions",
    "/v1/responses": "responses",
    "/v1/embeddings": "embeddings",
    "/embedding": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
    "/v1/moderations": "moderations",
    "/v1/files": "files",
    "/v1/batches": "files",
    "/tokenize": "tokens",
    "/detokenize": "tokens",
    "/tokenizer_info": "tokens",
    "/apply-template": "tokens",
    "/v1/journeys": "journeys",
    "/v1/live": "journeys",
    "/v1/learn": "completions",
}
"""Paths, and beginnings of paths that end at a slash."""
_FREE = {
    "/v1/models",
    "/v1/about",
    "/v1/usage",
    "/v1/limits",
    "/api/tags",
    "/api/ps",
    "/api/show",
    "/api/version",
    "/props",
    "/info",
    "/openapi.json",
}
"""What every key may ask: which models there are, how to talk to them, and what its tenant has used and may use."""
OTHER = "any other"
ADMIN = "/admin/"


def endpoint_of(method: str, path: str) -> str:
    """The kind of endpoint; empty for what every key may ask, OTHER for what only unrestricted ones may."""
    if path == "/":
        return "completions" if method == "POST" else ""
    at = len(path)
    while at > 0:
        found = _PATHS.get(path[:at])
        if found is not None:
            return found
        if path[:at] in _FREE:
            return ""
        at = path.rfind("/", 0, at)
    return OTHER


_ASKING = frozenset({"chat", "completions", "responses", "embeddings", "moderations"})


def asks_model(scope: Scope) -> bool:
    """Whether what is sent there is a question to a model, or to filters."""
    path = scope["path"]
    return scope["method"] == "POST" and (path == "/" or _PATHS.get(path) in _ASKING)


def check_endpoint(identity: Identity, method: str, path: str) -> None:
    """Raises `PermissionDenied`."""
    if path.startswith(ADMIN):
        if not identity.admin:
            raise PermissionDenied(
                "You have insufficient permissions for this operation: it needs an admin key."
            )
        return
    if identity.endpoints is None:
        return
    kind = endpoint_of(method, path)
    if kind and kind not in identity.endpoints:
        raise PermissionDenied(
            f"You have insufficient permissions for this operation. Missing scopes: {kind}. "
            f"This API key may use: {', '.join(sorted(identity.endpoints))}."
        )
