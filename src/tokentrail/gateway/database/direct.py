"""A way to SQLite past SQLAlchemy, for who commits with every request: of a small transaction its layers take four
times as long as SQLite does.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

_LOG_PAGES = 1100
"""As long as SQLite's log gets: at 1,000 pages it is copied into the database and begun again."""
_SPILL = 16
"""Pages of a transaction that are held before they are written to the log."""


class _Dialect(NamedTuple):
    name: str


class DirectConnection:
    """One connection, for one thread. Of SQLAlchemy's it has what statements in the driver's own words need."""

    dialect = _Dialect("sqlite")

    def __init__(self, engine: Engine) -> None:
        """`engine`: of SQLite."""
        self._engine = engine
        self._pooled = engine.raw_connection()
        self._driver: sqlite3.Connection = self._pooled.dbapi_connection  # type: ignore[assignment]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[DirectConnection]:
        """Committed at the block's end, and rolled back by an error in it. Raises SQLAlchemy's errors."""
        try:
            self._driver.execute("BEGIN IMMEDIATE")
            yield self
            self._driver.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                self._driver.rollback()
            if isinstance(error, sqlite3.Error):
                raise DBAPIError.instance(
                    None, None, error, sqlite3.Error, hide_parameters=True, dialect=self._engine.dialect
                ) from error
            raise

    def exec_driver_sql(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self._driver.execute(statement, parameters)

    def lengthen_log(self) -> None:
        """Make SQLite's log as long as it gets, so that commits write over what is there: one that makes the file
        longer has the file system write its own records, too, which takes several times as long. Nothing is changed:
        what a large transaction has written to the log before it is undone means nothing, and its place is used again.
        """
        size = self._driver.execute("PRAGMA page_size").fetchone()[0]
        held = self._driver.execute("PRAGMA cache_size").fetchone()[0]
        self._driver.execute(f"PRAGMA cache_size = {_SPILL}")
        try:
            with contextlib.suppress(_Undone), self.transaction():
                self.exec_driver_sql("CREATE TABLE tokentrail_filler (x)")
                self.exec_driver_sql(
                    "INSERT INTO tokentrail_filler VALUES (zeroblob(?))", (_LOG_PAGES * size,)
                )
                raise _Undone
        finally:
            self._driver.execute(f"PRAGMA cache_size = {held}")

    def close(self) -> None:
        self._pooled.close()


class _Undone(Exception):
    pass
