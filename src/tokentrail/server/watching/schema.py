"""The JSON shape of `GET /v1/live`."""

from __future__ import annotations

from typing import Any

import msgspec


class LiveRequest(msgspec.Struct, kw_only=True):
    """A request that is not over."""

    id: str
    """Its journey's."""
    model: str
    endpoint: str
    state: str
    """waiting, prompt (being read), answer (coming), or elsewhere: a remote model has it."""
    received_at: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    sequences: int
    blocks: int
    """KV blocks held."""
    own: bool
    """Made with this key; an admin's sees others, too."""


class LiveStep(msgspec.Struct, kw_only=True):
    number: int
    """Of all engines' steps since the server started."""
    replica: int
    start_at: float
    seconds: float
    forward_seconds: float
    batch_sequences: int
    batch_tokens: int
    blocks_used: int
    journeys: list[str]
    """Whose, of those that this key may see."""


class LiveTotals(msgspec.Struct, kw_only=True):
    """Sizes now, and counters since the server started."""

    running: int
    waiting: int
    blocks_total: int
    blocks_used: int
    prompt_tokens: int
    generated_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    drafted_tokens: int
    accepted_tokens: int
    steps: int


class Percentiles(msgspec.Struct, kw_only=True):
    """Seconds, interpolated in the buckets of the metric; None: nothing was observed."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None


class LiveRates(msgspec.Struct, kw_only=True):
    window_seconds: float
    """How long the tokens were counted for."""
    tokens_per_second: float
    prompt_tokens_per_second: float
    latency_window_seconds: float
    """How long latencies were."""
    first_token: Percentiles
    inter_token: Percentiles


class LiveBlocks(msgspec.Struct, kw_only=True):
    """One engine's KV blocks."""

    total: int
    free: int
    cached: int
    used: int
    shared: int
    blocks_per_cell: int
    cells: str
    """A letter a cell, in the order of the blocks: f(ree), c(ached: free, but found again), u(sed), s(hared). A cell of
    several blocks shows what is most in use among them."""


class LiveTarget(msgspec.Struct, kw_only=True):
    """A model of the deployment file."""

    name: str
    state: str
    """closed (it is asked), open (ejected), half_open (being tried), full, or down (its engine is being started)."""
    detail: dict[str, Any] | None
    """All that is known of it; for administrators' keys."""


class Live(msgspec.Struct, kw_only=True):
    at: float
    engine_up: bool
    draining: bool
    totals: LiveTotals
    requests: list[LiveRequest]
    others_running: int
    """Requests of other keys, of which no more is told."""
    others_waiting: int
    steps: list[LiveStep]
    """Those since the event before; in the first one, the last 200."""
    rates: LiveRates | None
    """None until there is something to compare with."""
    blocks: list[LiveBlocks] | None
    """By engine, twice a second and when they have changed; None: as before."""
    targets: list[LiveTarget] | None
    """None: there is no deployment file with targets, or this key may only ask some of its models."""
