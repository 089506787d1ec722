"""One database: its engine, its threads, its transactions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from tokentrail.gateway.database.direct import DirectConnection
from tokentrail.gateway.database.failures import DatabaseFailure, explain

T = TypeVar("T")

_THREADS = 4
"""What works on the database beside the ledger's own thread: few and short transactions."""
_WAIT = 10.0
"""Seconds that a statement waits for others, or for a server that does not answer."""


class Database:
    """A database that is reached by `url`. Safe in several threads.

    Nothing of it may run on an event loop but `run`, which uses a thread.
    """

    def __init__(self, url: str, folder: Path | None = None, *, wait: float = _WAIT) -> None:
        """`folder`: where SQLite's relative paths begin. `wait`: seconds, for others who hold what is wanted. Connects
        to nothing yet. Raises `DatabaseFailure`.
        """
        self.url = resolve(url, folder or Path())
        self.engine = _engine(self.url, wait)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._writing = self.engine.execution_options(tokentrail_writes=True)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="database")
        self._direct: DirectConnection | None = None

    @property
    def name(self) -> str:
        """For people, without a password."""
        return str(self.url.database) if self.is_sqlite else self.url.render_as_string(hide_password=True)

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction, committed at the block's end, and rolled back by an error in it. In SQLite it waits for other
        writers where it begins, so that what it has read cannot change before it writes.

        Raises `DatabaseFailure` where the database is the cause.
        """
        with self._told(), self._writing.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def write_often(self) -> Iterator[Connection | DirectConnection]:
        """The same for who writes with every request, in statements of the driver's: on a connection of its own, where
        that is less work. For one thread.
        """
        if not self.is_sqlite:
            with self.write() as connection:
                yield connection
            return
        with self._told(), self._own().transaction() as direct:
            yield direct

    def prepare_writing_often(self) -> None:
        """In the thread that will, or before it. Raises as `write` does."""
        if self.is_sqlite:
            with self._told():
                self._own().lengthen_log()

    def _own(self) -> DirectConnection:
        if self._direct is None:
            self._direct = DirectConnection(self.engine)
        return self._direct

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """One view of the database that does not change; nothing may be written in it. Raises as `write` does."""
        with self._told(), self.engine.connect() as connection:
            yield connection

    async def run(self, work: Callable[[Connection], T], *, writes: bool = True) -> T:
        """`work`, in a transaction of its own, in a thread of the database. Raises as `write` does."""

        def inside() -> T:
            with self.write() if writes else self.read() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._threads, inside)

    def migrate(self) -> tuple[str | None, str]:
        """Bring its tables to this version's form, and make them where there are none. Of several that start at once
        one does it, and the others wait. (revision before, and now). Raises `DatabaseFailure`.
        """
        from tokentrail.gateway.database.migrating import upgrade

        with self.write() as connection:
            return upgrade(connection, self.name)

    def check(self) -> None:
        """Raise `DatabaseFailure` unless it is there, and its tables have this version's form."""
        from tokentrail.gateway.database.migrating import check

        if self.is_sqlite and not Path(str(self.url.database)).is_file():
            raise DatabaseFailure(f"The database {self.name} is not there: no server has made it yet.")
        with self.read() as connection:
            check(connection, self.name)

    def close(self) -> None:
        """What runs is finished."""
        self._threads.shutdown()
        if self._direct is not None:
            self._direct.close()
        self.engine.dispose()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise explain(error, self.url) from error


def resolve(url: str, folder: Path) -> URL:
    """The whole URL: with the driver, and a path from the root. Raises `DatabaseFailure`."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise DatabaseFailure(
            "The database's URL cannot be read. It looks like sqlite:///FILE or "
            "postgresql://USER:PASSWORD@HOST:5432/NAME; signs such as @ and / in a password are written as %40 and %2F."
        ) from None
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or parsed.host:
            raise DatabaseFailure(
                "The database's URL names no file: write sqlite:///FILE, with three slashes before a path that is "
                "relative to the deployment file, or four before one from the root."
            )
        return parsed.set(database=str((folder / parsed.database).resolve()))
    return parsed.set(drivername="postgresql+psycopg")


def _engine(url: URL, wait: float) -> Engine:
    options: dict[str, Any]
    if url.get_backend_name() == "sqlite":
        options = {"connect_args": {"timeout": wait, "check_same_thread": False}}
    else:
        options = {
            "connect_args": {
                "connect_timeout": 5,
                # A server that is cut off is noticed, rather than waited for.
                "tcp_user_timeout": int(wait * 1000),
                "keepalives_idle": 30,
                "keepalives_interval": 10,
                "keepalives_count": 3,
                "options": f"-c lock_timeout={int(wait * 1000)} -c statement_timeout=60s",
                "application_name": "tokentrail",
                **url.query,
            },
            "pool_pre_ping": True,
            "isolation_level": "READ COMMITTED",
        }
    # The values of statements stay out of errors and logs.
    engine = sqlalchemy.create_engine(
        url, pool_size=_THREADS + 1, pool_timeout=wait, hide_parameters=True, **options
    )
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, record: object) -> None:
    # Transactions begin where `_begin_sqlite` says, not where Python's module guesses.
    connection.isolation_level = None
    cursor = connection.cursor()
    # Readers do not wait for the writer; what is committed is on the disk, power cuts included.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("tokentrail_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
