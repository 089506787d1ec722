"""Tables made and changed by Alembic's migrations, which are part of the package."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from tokentrail.gateway.database.failures import DatabaseFailure
from tokentrail.gateway.database.schema import import_tables

log = logging.getLogger(__name__)

_LOCK = 0x746F6B656E747261
"""Of PostgreSQL's advisory locks: who migrates."""


@cache
def head() -> str:
    """The newest revision that this version knows."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    assert found is not None
    return found


def upgrade(connection: Connection, name: str) -> tuple[str | None, str]:
    """Apply what is missing, within the connection's transaction: all of it, or nothing. (before, now).

    In SQLite the transaction must have begun as a writer's; in PostgreSQL a lock is taken, which its end releases.
    `name`: the database's, for people. Raises `DatabaseFailure` for a schema that is newer than this version.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        connection.exec_driver_sql(
            "SET LOCAL statement_timeout = 0"
        )  # others may take a while, and so may this
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    before = _revision(connection, name)
    if before != head():
        config = _config()
        config.attributes["connection"] = connection
        import_tables()
        command.upgrade(config, "head")
        log.info("%s: tables are of revision %s now (%s before)", name, head(), before or "none")
    return before, head()


def check(connection: Connection, name: str) -> None:
    """Raises `DatabaseFailure` unless the tables are of this version's form."""
    if (before := _revision(connection, name)) != head():
        raise DatabaseFailure(
            f"The database {name} has tables of revision {before or 'none'}, and this version's are {head()}. Start a "
            "server of this version, or run: tokentrail config migrate FILE."
        )


def _revision(connection: Connection, name: str) -> str | None:
    before = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if before is not None and before not in known:
        raise DatabaseFailure(
            f"The database {name} was made by a newer version of Tokentrail (its tables are of revision {before}, "
            f"and this version knows {head()} at most). Update Tokentrail, or name another database."
        )
    return before


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config
