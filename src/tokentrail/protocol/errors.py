"""Errors a user can meet, as types. Each says what is wrong, with which field and value, and what helps.

The server maps them to OpenAI's error shape by the attributes below; the CLI prints `str(error)` on one line.
"""

from __future__ import annotations


class TokentrailError(Exception):
    """Base of every error that is meant for a user's eyes.

    `status` is the HTTP status the server answers with, `type` and `code` are OpenAI's error fields,
    and `param` names the request field at fault, where there is one.
    """

    status: int = 500
    type: str = "server_error"
    code: str | None = None
    lines: bool = False
    """Whether each line of the message stands for itself; others are told in one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers: dict[str, str] = {}
        """For HTTP: what is told beside the message."""
        if code is not None:
            self.code = code


class InvalidRequest(TokentrailError):
    """The request itself is wrong; sending it again unchanged will not help."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or the prompt plus `max_tokens`, does not fit into the model's context."""

    code = "context_length_exceeded"


class Unauthorized(TokentrailError):
    """Nobody knows who asks: there is no key, or none that is good."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class PermissionDenied(TokentrailError):
    """The key is good, but not for this."""

    status = 403
    type = "invalid_request_error"
    code = "missing_scope"


class ModelNotFound(InvalidRequest):
    """There is no such model, or the key may not ask it: who may not learns nothing of it."""

    status = 404
    code = "model_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The model `{name[:200]}` does not exist or you do not have access to it.", param="model"
        )


class Overloaded(TokentrailError):
    """The waiting queue is full. The request was not started; try again after `retry_after` seconds."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineExceeded(TokentrailError):
    """The request was not done in the time it was given. What it had begun was stopped and freed."""

    status = 504
    type = "server_error"
    code = "request_timeout"


class EngineDead(TokentrailError):
    """The engine process died several times in a row, or did not start."""

    status = 503
    type = "server_error"
    code = "engine_dead"


class UpstreamError(TokentrailError):
    """A remote upstream failed. Its code says how: `upstream_unreachable`, `upstream_timeout`, `upstream_cut` (an
    answer broke off), `upstream_broken` (what it said is no answer), `upstream_failed` (it said that it failed), or
    `upstream_refused` (its key or model is wrong in the deployment file).
    """

    status = 502
    type = "server_error"
    code = "upstream_failed"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        target: str = "",
        sent: bool = False,
        status: int = 502,
    ) -> None:
        """`target`: whom; `sent`: something of the answer had come before."""
        super().__init__(message, code=code)
        self.target = target
        self.sent = sent
        self.status = status

    @property
    def retryable(self) -> bool:
        """Nothing of the answer has been handed on, so another target may be asked instead."""
        return not self.sent


class ModelFileError(TokentrailError):
    """A model file is damaged or not supported: names the file, the problem and the remedy, in one line."""

    status = 500
    type = "model_error"


class CapacityError(TokentrailError):
    """Something does not fit into memory: how much is needed, how much there is, which flags help."""

    status = 500
    type = "capacity_error"
