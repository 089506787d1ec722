"""What is known of one request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tokentrail.answer import AnswerRequest, EmbeddingRequest, Handling, Timing, Usage
from tokentrail.observability.tracing import TraceContext

if TYPE_CHECKING:
    from tokentrail.journey import Journey


class Observed(Handling, kw_only=True):
    """A request on its way, from its arrival over HTTP on. `request` and what follows it: once it asks a model."""

    started: float
    """Wall clock."""
    context: TraceContext | None = None
    request: AnswerRequest | EmbeddingRequest | None = None
    opened: float | None = None
    """When the model was asked."""
    journey: Journey | None = None
    response_model: str = ""
    fingerprint: str = ""
    usage: Usage | None = None
    timing: Timing | None = None
    finish_reasons: list[str | None] = msgspec.field(default_factory=list)
    """Of the choices."""
    error: BaseException | None = None
    """What the answer ended with, if not well."""
    texts: list[list[str]] | None = None
    """The choices' texts, where content is told."""

    @property
    def whole(self) -> bool:
        """All choices came to their ends."""
        return None not in self.finish_reasons
