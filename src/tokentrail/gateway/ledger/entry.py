"""One request in the ledger."""

from __future__ import annotations

import time
from typing import TypeAlias

from tokentrail.answer import Handling, Identity, Usage
from tokentrail.gateway.ledger.prices import PriceList

Row: TypeAlias = tuple[int | str | bool | None, ...]
"""Values of a row, in the order of `COLUMNS`."""

COLUMNS = (
    "id",
    "instance",
    "state",
    "received",
    "answer_id",
    "request_id",
    "tenant",
    "key",
    "route",
    "target",
    "model",
    "endpoint",
    "streamed",
    "degraded",
    "attempts",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost",
    "currency",
    "first_token",
    "duration",
    "finish",
    "status",
    "error",
)
STATE, INSTANCE = COLUMNS.index("state"), COLUMNS.index("instance")

RUNNING, DONE, ABORTED, FAILED, REFUSED, INTERRUPTED = (
    "running", "done", "aborted", "failed", "refused", "interrupted",
)  # fmt: skip
STATES = (RUNNING, DONE, ABORTED, FAILED, REFUSED, INTERRUPTED)

_NOTHING = Usage()


class Entry:
    """What is known of a request so far."""

    __slots__ = (
        "_endpoint", "_fixed", "_handling", "_identity", "_model", "_prices", "batch", "billed", "duration", "error",
        "finish", "first_token", "id", "received", "state", "status", "streamed",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        *,
        answer_id: str,
        request_id: str | None,
        model: str,
        endpoint: str,
        streamed: bool,
        received: float,
        identity: Identity,
        handling: Handling,
        prices: PriceList,
    ) -> None:
        self.id = id
        self.streamed = streamed
        self.received = received
        self.state = RUNNING
        self.billed = _NOTHING
        """Tokens that count."""
        self.first_token: float | None = None
        """Wall clock."""
        self.duration: float | None = None
        self.finish: str | None = None
        self.status: int | None = None
        self.error: str | None = None
        self.batch = -1
        """Of the writer's batches, the newest that has something of it."""
        self._identity, self._handling, self._prices = identity, handling, prices
        self._model, self._endpoint = word(model, 256), word(endpoint, 64)
        self._fixed = (
            int(received * 1e6),
            word(answer_id),
            None if request_id is None else word(request_id),
            word(identity.tenant),
            word(identity.key),
        )

    def end(self, state: str, *, status: int, error: str | None = None) -> None:
        self.state, self.status, self.error = state, status, error and word(error, 64)
        self.duration = max(0.0, time.time() - self.received)

    def sums(self) -> tuple[str, str, str, str, str, str, str]:
        """Under what its day counts it, the day apart: see `store.DayKey`."""
        _, _, _, tenant, key = self._fixed
        handling = self._handling
        return (
            tenant, key, word(handling.route), word(handling.target), self._model, self.state, self._prices.currency,
        )  # fmt: skip

    def row(self) -> Row:
        """As it is now."""
        handling, billed = self._handling, self.billed
        price = self._prices.of(handling.target, self._model)
        first, duration = self.first_token, self.duration
        return (
            self.id, self.id >> INSTANCE_SHIFT, self.state, *self._fixed,
            word(handling.route), word(handling.target), self._model, self._endpoint,
            self.streamed, handling.degraded, handling.attempts,
            billed.prompt_tokens, billed.cached_tokens, billed.completion_tokens, billed.reasoning_tokens,
            price.of(billed.prompt_tokens, billed.cached_tokens, billed.completion_tokens), self._prices.currency,
            None if first is None else int(max(0.0, first - self.received) * 1e6),
            None if duration is None else int(duration * 1e6),
            self.finish, self.status, self.error,
        )  # fmt: skip


INSTANCE_SHIFT = 40
"""Requests of one instance at most, in bits."""


def word(text: str, most: int = 128) -> str:
    """What any database takes: PostgreSQL knows no zero byte and no half of a surrogate."""
    if len(text) <= most and text.isascii() and text.isprintable():
        return text
    return text[:most].replace("\0", "").encode("utf-8", "replace").decode()
