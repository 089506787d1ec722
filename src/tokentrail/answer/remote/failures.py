"""What an upstream says when it refuses or fails → the error that our clients are told."""

from __future__ import annotations

import asyncio
import email.utils
import math
import ssl
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from tokentrail.answer.remote.connections import ConnectionLost, ProtocolError
from tokentrail.answer.remote.sse import EventTooLarge
from tokentrail.answer.remote.target import RemoteTarget
from tokentrail.protocol import (
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    TokentrailError,
    UpstreamError,
)

_LONGEST = 1000
"""Characters of an upstream's message that are passed on."""
_MOST_RETRY = 3600.0
_TOO_LONG = ("context_length_exceeded", "exceed_context_size_error", "string_above_max_length")
_TOO_LONG_WORDS = ("maximum context length", "context size", "longer than the maximum model length")


def refusal(target: RemoteTarget, status: int, headers: Mapping[str, str], body: bytes) -> TokentrailError:
    """Of a response whose status is not 200."""
    said = _Said.of(body, target)
    name = target.name
    if status in (401, 403):
        # Not in the upstream's words, which may quote a part of the key.
        return UpstreamError(
            f"The model {name} cannot be asked: its upstream refuses the server's key (status {status}). Who runs this "
            "server must correct api_key in its deployment file.",
            code="upstream_refused",
            target=name,
        )
    if status == 404 or said.code == "model_not_found":
        return UpstreamError(
            f"The model {name} cannot be asked: its upstream does not know it, or has no such route (status {status})"
            f"{said.quoted}. Who runs this server must correct url or model in its deployment file.",
            code="upstream_refused",
            target=name,
        )
    if said.code in ("insufficient_quota", "billing_hard_limit_reached"):
        return UpstreamError(
            f"The model {name} cannot be asked: its upstream says that the server's account has no quota left.",
            code="upstream_refused",
            target=name,
        )
    if status in (429, 503, 529):
        return Overloaded(
            f"The upstream of {name} takes no more requests now (status {status}){said.quoted}. Try again later.",
            retry_after=_retry_after(headers),
        )
    if status in (408, 504):
        return UpstreamError(
            f"The upstream of {name} did not answer in its own time (status {status}){said.quoted}.",
            code="upstream_timeout",
            target=name,
            status=504,
        )
    if 300 <= status < 400 or status == 405:
        return UpstreamError(
            f"The model {name} cannot be asked: at its upstream's url is something else (status {status}). Who runs "
            "this server must correct url in its deployment file.",
            code="upstream_refused",
            target=name,
        )
    if 400 <= status < 500:
        return said.invalid(status)
    return UpstreamError(
        f"The upstream of {name} failed (status {status}){said.quoted}.", code="upstream_failed", target=name
    )


def told(target: RemoteTarget, error: Any, *, sent: bool) -> TokentrailError:
    """An error within a stream, or in the place of an answer: what stands in the field `error`."""
    said = _Said.from_value(error, target)
    if not sent and said.status is not None and 400 <= said.status < 500:
        return refusal(target, said.status, {}, msgspec.json.encode({"error": error}))
    if not sent and said.type == "invalid_request_error":
        return said.invalid(400)
    if not sent and said.status in (503, 529):
        return refusal(target, 503, {}, msgspec.json.encode({"error": error}))
    where = "while it answered" if sent else "before it answered"
    return UpstreamError(
        f"The upstream of {target.name} failed {where}{said.quoted}.",
        code="upstream_failed",
        target=target.name,
        sent=sent,
    )


def broken(target: RemoteTarget, error: Exception, *, sent: bool) -> Exception:
    """What went wrong on the way. What is not of the upstream's making is returned as it is."""
    name = target.name
    part = "within its answer" if sent else "before its answer"
    if isinstance(error, ConnectionLost):
        return UpstreamError(
            f"The upstream of {name} closed the connection {part}.",
            code="upstream_cut",
            target=name,
            sent=sent,
        )
    if isinstance(error, ProtocolError):
        what = str(error)
    elif isinstance(error, EventTooLarge):
        what = "an event without end"
    elif isinstance(error, (msgspec.DecodeError, UnicodeDecodeError, RecursionError)):
        what = "an event that is no answer in JSON"
    else:
        return error
    return unreadable(target, what, sent=sent)


def unreadable(target: RemoteTarget, what: str, *, sent: bool) -> UpstreamError:
    return UpstreamError(
        f"The upstream of {target.name} sent what is no answer: {what}.",
        code="upstream_broken",
        target=target.name,
        sent=sent,
    )


def wrong_type(target: RemoteTarget, content_type: str) -> UpstreamError:
    shown = _clean(content_type, target)[:80] or "nothing"
    return UpstreamError(
        f"The upstream of {target.name} sent what is no answer: {shown} instead of a stream of events. Who runs this "
        "server should look at url in its deployment file.",
        code="upstream_broken",
        target=target.name,
    )


def unreachable(target: RemoteTarget, error: BaseException) -> UpstreamError:
    """The connection could not be made."""
    if isinstance(error, asyncio.TimeoutError):
        why = f"no connection within {target.timeouts.connect_s:g} seconds"
    elif isinstance(error, ssl.SSLCertVerificationError):
        why = f"its certificate is not trusted ({error.verify_message})"
    elif isinstance(error, ssl.SSLError):
        why = "it does not speak TLS as it should"
    elif isinstance(error, OSError) and error.strerror:
        why = error.strerror
    else:
        why = str(error) or type(error).__name__
    return UpstreamError(
        f"The upstream of {target.name} cannot be reached: {why}.",
        code="upstream_unreachable",
        target=target.name,
        status=503,
    )


def silent(target: RemoteTarget, seconds: float, *, sent: bool) -> UpstreamError:
    what = "go on with its answer" if sent else "begin to answer"
    return UpstreamError(
        f"The upstream of {target.name} did not {what} within {seconds:g} seconds.",
        code="upstream_timeout",
        target=target.name,
        sent=sent,
        status=504,
    )


class _Said(msgspec.Struct):
    """What an upstream says of an error, whatever its shape."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | None = None
    status: int | None = None

    @classmethod
    def of(cls, body: bytes, target: RemoteTarget) -> _Said:
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls()  # a page of HTML, say
        if isinstance(value, list) and value:
            value = value[0]  # Google's
        if isinstance(value, dict):
            # {"error": …}, FastAPI's {"detail": …}, or the fields as they are.
            if isinstance(value.get("error"), str):
                return cls.from_value({**value, "message": value.get("message") or value["error"]}, target)
            value = value.get("error") or value.get("detail") or value
        return cls.from_value(value, target)

    @classmethod
    def from_value(cls, value: Any, target: RemoteTarget) -> _Said:
        if isinstance(value, str):
            return cls(_clean(value, target))
        if isinstance(value, list) and value and isinstance(value[0], dict):
            first = value[0]  # a list of pydantic's
            where = ".".join(str(part) for part in first.get("loc", ()) if part != "body")
            return cls(_clean(f"{where}: {first.get('msg', '')}", target), param=where or None)
        if not isinstance(value, dict):
            return cls()

        def text(name: str) -> str | None:
            found = value.get(name)
            return _clean(found, target) if isinstance(found, str) else None

        code = value.get("code")
        number = code if isinstance(code, int) else value.get("status")
        return cls(
            message=text("message") or "",
            type=text("type") or text("error_type"),
            param=text("param"),
            code=text("code"),
            status=number if isinstance(number, int) and 100 <= number < 600 else None,
        )

    @property
    def quoted(self) -> str:
        return f": {self.message.rstrip('.')}" if self.message else ""

    def invalid(self, status: int) -> InvalidRequest:
        message = self.message or f"The model's upstream refuses the request (status {status})."
        known = (self.code, self.type)
        if any(word in _TOO_LONG for word in known) or any(word in message for word in _TOO_LONG_WORDS):
            return ContextLengthExceeded(message, param=self.param)
        return InvalidRequest(message, param=self.param, code=self.code)


def _clean(text: str, target: RemoteTarget) -> str:
    """Without the server's key, and no longer than an error should be."""
    for secret in (target.api_key, *target.headers.values()):
        if len(secret) >= 4:
            text = text.replace(secret, "…")
    text = "".join(
        letter if letter.isprintable() or letter == "\n" else " " for letter in text[: _LONGEST + 1]
    )
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _retry_after(headers: Mapping[str, str]) -> float:
    given = headers.get("retry-after", "")
    try:
        seconds = float(given)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(given).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 1.0
    return 1.0 if math.isnan(seconds) else min(max(seconds, 0.0), _MOST_RETRY)
