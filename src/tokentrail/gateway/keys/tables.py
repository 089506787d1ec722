"""The tables of keys and tenants."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
)

from tokentrail.gateway.database.schema import metadata

tenants = Table(
    "tenants",
    metadata,
    # In the order in which they were made; pages of lists go by it.
    Column("serial", Integer, primary_key=True, autoincrement=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("weight", Float, nullable=False),
    Column("limits", JSON, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("created", BigInteger, nullable=False),
)

keys = Table(
    "api_keys",
    metadata,
    Column("serial", Integer, primary_key=True, autoincrement=True),
    Column("id", String(32), nullable=False, unique=True),
    Column("tenant", String(64), ForeignKey(tenants.c.name), nullable=False),
    Column("name", String(128), nullable=False),
    # SHA-256 of the whole key, or that keyed with the pepper. There is nothing else of it.
    Column("digest", LargeBinary(32), nullable=False),
    Column("old_digest", LargeBinary(32), nullable=True),
    Column("old_until", BigInteger, nullable=True),
    Column("created", BigInteger, nullable=False),
    Column("rotated", BigInteger, nullable=True),
    Column("expires", BigInteger, nullable=True),
    Column("revoked", BigInteger, nullable=True),
    Column("last_used", BigInteger, nullable=True),
    Column("admin", Boolean, nullable=False),
    Column("models", JSON(none_as_null=True), nullable=True),
    Column("endpoints", JSON(none_as_null=True), nullable=True),
    Column("limits", JSON, nullable=False),
    Index("ix_api_keys_tenant", "tenant", "serial"),
)

changes = Table(
    "api_key_changes",
    metadata,
    # One row. Whoever changes a key or a tenant counts it up in the same transaction: by it servers notice.
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
)
