"""Who asks, and who answered: what keys, limits, routes and the ledger know of one request beside its content."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from tokentrail.journey import Stage

if TYPE_CHECKING:
    from tokentrail.answer.types import Usage


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks. A server without keys knows one identity, which may do all but administer."""

    tenant: str = ""
    """Whose journeys, files, cached prefixes and kept answers are shared. Never a key itself."""
    key: str = ""
    """Id of the key, by which people speak of it; not the key."""
    admin: bool = False
    """May see and change what is not its own: keys, limits, usage, targets."""
    models: tuple[str, ...] | None = None
    """Names that may be asked, or patterns of names (`llama-*`); None: all."""
    endpoints: frozenset[str] | None = None
    """Kinds of endpoints that may be used (`gateway.keys.ENDPOINTS`); None: all."""
    weight: float = 1.0
    """Share of the engine beside other tenants', when all of them want more than there is."""

    def may_ask(self, model: str) -> bool:
        return self.models is None or any(fnmatchcase(model, pattern) for pattern in self.models)


class Handling(msgspec.Struct, kw_only=True):
    """What became of a request on its way to an answer; written by who handles it, read by who counts."""

    route: str = ""
    """The public name that was asked for, where it is a route's."""
    target: str = ""
    """Who answered in the end: a model of the deployment file."""
    degraded: bool = False
    """Not by one of the route's own targets: a fallback, or an answer that was kept."""
    attempts: int = 0
    """Targets that were asked."""
    stages: list[Stage] = []
    """What parts of the gateway did, in order of their ends; those of the engine are the journey's."""
    kept_as: bytes = b""
    """The question's name in the cache of answers, where there is one."""
    trace: str | None = None
    """W3C trace context (`traceparent`) of the request's span, to be told to whoever is asked for its sake."""
    refusal: Exception | None = None
    """Why it does not run, though it was opened: it is closed without having been iterated."""
    billed: Usage | None = None
    """What the ledger has it down for in the end; None: it is not over, or there is no ledger."""
    ends_late: bool = False
    """The answer's end is told later than its last chunk, which must have been sent by then."""


class TargetState(msgspec.Struct, kw_only=True):
    """How a model that routes may choose is doing, as people are told."""

    name: str
    kind: str
    """local or remote."""
    state: str
    """closed (it is asked), open (ejected), half_open (being tried), full, or down (its engine is being started)."""
    since: float
    """Wall clock."""
    active: int
    max_concurrent: int | None
    share: float
    """Part of its weight that it has now; below 1 while it is coming back."""
    opens_in_s: float
    ejections: int
    last_error: str | None
    last_error_at: float | None
    requests: int
    failures: int
    full: int
    retries: int
    hedges: int
    degraded: int
