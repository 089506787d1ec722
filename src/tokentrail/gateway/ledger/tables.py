"""The ledger's tables."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, text

from tokentrail.gateway.database.schema import metadata

instances = Table(
    "gateway_instances",
    metadata,
    # A run of a server. Its number is the upper part of its requests' ids.
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("host", String, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started", BigInteger, nullable=False),
    # Its last sign of life; NULL once it has ended and all of its requests have.
    Column("alive", BigInteger, nullable=True),
)

# In SQLite only a column of just this type is the table's own order, without an index beside it.
_Id = BigInteger().with_variant(Integer, "sqlite")

_counts = [
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    # Billionths of the currency.
    "cost",
]

requests = Table(
    "usage_requests",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    Column("instance", Integer, ForeignKey(instances.c.id), nullable=False),
    # running, done, aborted (by the client), failed, rejected, interrupted (its server died)
    Column("state", String, nullable=False),
    Column("received", BigInteger, nullable=False),
    # The answer's id, and the client's own for the request.
    Column("answer_id", String, nullable=False),
    Column("request_id", String, nullable=True),
    Column("tenant", String, nullable=False),
    Column("key", String, nullable=False),
    Column("route", String, nullable=False),
    Column("target", String, nullable=False),
    Column("model", String, nullable=False),
    Column("endpoint", String, nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("degraded", Boolean, nullable=False),
    Column("attempts", Integer, nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in _counts),
    Column("currency", String, nullable=False),
    # Microseconds since `received`.
    Column("first_token", BigInteger, nullable=True),
    Column("duration", BigInteger, nullable=True),
    Column("finish", String, nullable=True),
    Column("status", Integer, nullable=True),
    Column("error", String, nullable=True),
    Index("ix_usage_requests_received", "received"),
    Index("ix_usage_requests_tenant", "tenant", "received"),
    # Few at any time, and looked for by whoever starts.
    Index(
        "ix_usage_requests_running",
        "instance",
        sqlite_where=text("state = 'running'"),
        postgresql_where=text("state = 'running'"),
    ),
)
"""One row a request."""

days = Table(
    "usage_days",
    metadata,
    # Days since 1970, in UTC.
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("tenant", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("route", String, primary_key=True),
    Column("target", String, primary_key=True),
    Column("model", String, primary_key=True),
    Column("state", String, primary_key=True),
    Column("currency", String, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in _counts),
)
"""Sums of rows that are no longer kept, and of those refused in a flood."""
