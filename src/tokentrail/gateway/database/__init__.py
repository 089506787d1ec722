"""The database that keys, quotas and the ledger share: SQLite by default, PostgreSQL where there are several gateways.

Parts declare their tables with `metadata` (in `schema.import_tables`, too) and add a migration (`migrations/versions`),
which is applied at the start. Its libraries are of the extra `gateway`, and loaded when a database is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokentrail.gateway.database.opening import connect, look, open_database

if TYPE_CHECKING:
    from tokentrail.gateway.database.database import Database
    from tokentrail.gateway.database.failures import DatabaseFailure
    from tokentrail.gateway.database.schema import metadata

__all__ = ["Database", "DatabaseFailure", "connect", "look", "metadata", "open_database"]


def __getattr__(name: str) -> object:
    if name == "Database":
        from tokentrail.gateway.database.database import Database

        return Database
    if name == "DatabaseFailure":
        from tokentrail.gateway.database.failures import DatabaseFailure

        return DatabaseFailure
    if name == "metadata":
        from tokentrail.gateway.database.schema import metadata

        return metadata
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
