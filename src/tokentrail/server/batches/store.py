"""Where files and batches lie: contents as plain files under names of ours, all else in a SQLite database.

What a method has written when it returns is on the disk: a process may be killed, or a machine lose its power, at any
moment. A content is complete before the database knows of it, so the worst that is left over is a file that nobody
knows, which the next start removes.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokentrail.protocol import TokentrailError
from tokentrail.server.batches.bodies import OPEN, BatchBody, FileBody

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    serial INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, purpose TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    serial INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, status TEXT NOT NULL,
    input TEXT NOT NULL, total INTEGER NOT NULL, completed INTEGER NOT NULL, failed INTEGER NOT NULL,
    body BLOB NOT NULL, key TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS results (
    batch TEXT NOT NULL, line INTEGER NOT NULL, ok INTEGER NOT NULL, content BLOB NOT NULL, UNIQUE (batch, line)
);
CREATE INDEX IF NOT EXISTS files_of_tenant ON files (tenant, serial);
CREATE INDEX IF NOT EXISTS batches_of_tenant ON batches (tenant, serial);
"""
_VERSION = 2
_ADDED = {1: "ALTER TABLE batches ADD COLUMN key TEXT NOT NULL DEFAULT ''"}
"""What makes the version after it of an older one."""


class Owner(NamedTuple):
    """Who made a batch."""

    tenant: str
    key: str
    """The key's id; empty: there was none, or it was made before keys were noted."""


_file_decoder = msgspec.json.Decoder(FileBody)
_batch_decoder = msgspec.json.Decoder(BatchBody)


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


def now() -> int:
    return int(time.time())


class Store:
    """A folder that one server uses at a time. Not thread-safe: all its methods are called in one thread, except those
    about contents.
    """

    def __init__(self, folder: Path) -> None:
        """Raises a `TokentrailError` that says why the folder cannot be used."""
        self._contents = folder / "content"
        self._drafts = folder / "tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _lock(folder)
            self._contents.mkdir(exist_ok=True, mode=0o700)
            self._drafts.mkdir(exist_ok=True, mode=0o700)
            self._db = sqlite3.connect(folder / "store.sqlite", check_same_thread=False, isolation_level=None)
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, *_ADDED, _VERSION):
                raise TokentrailError(
                    f"--files-dir {folder}: was written by another version of this program; give another folder."
                )
            self._used: dict[str, int] = {}
            """See `used`; of tenants that were asked for."""
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
            for older, change in _ADDED.items():
                if 0 < version <= older:
                    self._db.execute(change)
            self._db.execute(f"PRAGMA user_version = {_VERSION}")
            self._tidy()
        except (OSError, sqlite3.Error) as error:
            raise TokentrailError(
                f"--files-dir {folder}: cannot be used: {error}. Give a folder that can be written to."
            ) from None

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def _tidy(self) -> None:
        """Remove what a process that died has left over."""
        for draft in self._drafts.iterdir():
            draft.unlink()
        known = {id for (id,) in self._db.execute("SELECT id FROM files")}
        for content in self._contents.iterdir():
            if content.name not in known:
                content.unlink()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # --- contents, from any thread -------------------------------------------------------------------

    def draft(self) -> Path:
        """A path for a content that is being written."""
        return self._drafts / uuid.uuid4().hex

    def content(self, id: str) -> Path:
        """Of a file that is known: ids that others make up never become paths."""
        return self._contents / id

    def keep(self, draft: Path, id: str) -> None:
        """Make a draft, which was synchronized, the content of file `id`."""
        draft.rename(self._contents / id)
        folder = os.open(self._contents, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    # --- files ---------------------------------------------------------------------------------------

    def used(self, tenant: str) -> int:
        """Bytes of the tenant's files, and of results that are in none yet."""
        if tenant not in self._used:
            files = self._db.execute("SELECT body FROM files WHERE tenant = ?", (tenant,))
            (results,) = self._db.execute(
                "SELECT coalesce(sum(length(content)), 0) FROM results WHERE batch IN "
                "(SELECT id FROM batches WHERE tenant = ?)",
                (tenant,),
            ).fetchone()
            self._used[tenant] = results + sum(_file_decoder.decode(body).bytes for (body,) in files)
        return self._used[tenant]

    def _uses(self, tenant: str, nbytes: int) -> None:
        if tenant in self._used:
            self._used[tenant] += nbytes

    def add_file(self, tenant: str, body: FileBody) -> None:
        with self._transaction() as db:
            _insert_file(db, tenant, body)
        self._uses(tenant, body.bytes)

    def file(self, tenant: str, id: str) -> FileBody | None:
        row = self._db.execute("SELECT body FROM files WHERE id = ? AND tenant = ?", (id, tenant)).fetchone()
        return None if row is None else _file_decoder.decode(row[0])

    def files(
        self, tenant: str, *, purpose: str | None, after: str | None, limit: int, ascending: bool
    ) -> list[FileBody] | None:
        """One more than `limit`, if there are; None: there is no file `after`."""
        where, values = "", []
        if purpose is not None:
            where, values = " AND purpose = ?", [purpose]
        rows = self._page("files", "body", tenant, where, values, after, limit, ascending)
        return None if rows is None else [_file_decoder.decode(body) for (body,) in rows]

    def remove_file(self, tenant: str, id: str) -> str | None:
        """Returns the id of an unfinished batch that needs it, and removes nothing then."""
        with self._transaction() as db:
            marks = ",".join("?" * len(OPEN))
            row = db.execute(
                f"SELECT id FROM batches WHERE input = ? AND status IN ({marks})", (id, *OPEN)
            ).fetchone()
            if row is not None:
                return str(row[0])
            removed = db.execute("DELETE FROM files WHERE id = ? AND tenant = ?", (id, tenant)).rowcount
        if removed:
            self._used.pop(tenant, None)
            self.content(id).unlink(missing_ok=True)
        return None

    # --- batches -------------------------------------------------------------------------------------

    def add_batch(self, owner: Owner, body: BatchBody, most: int) -> str | None:
        """Returns why not: `input`, if there is no such file to work at, or `open`, if `most` batches of the tenant are
        not over yet.
        """
        with self._transaction() as db:
            file = self.file(owner.tenant, body.input_file_id)
            if file is None or file.purpose != "batch":
                return "input"
            if self.num_open(owner.tenant) >= most:
                return "open"
            db.execute(
                "INSERT INTO batches (id, tenant, key, status, input, total, completed, failed, body) "
                "VALUES (?, ?, ?, ?, ?, 0, 0, 0, ?)",
                (body.id, *owner, body.status, body.input_file_id, msgspec.json.encode(body)),
            )
        return None

    def batch(self, tenant: str, id: str) -> BatchBody | None:
        row = self._db.execute(
            f"SELECT {_BATCH} FROM batches WHERE id = ? AND tenant = ?", (id, tenant)
        ).fetchone()
        return None if row is None else _batch(row)

    def batches(self, tenant: str, *, after: str | None, limit: int) -> list[BatchBody] | None:
        """The newest first; one more than `limit`, if there are; None: there is no batch `after`."""
        rows = self._page("batches", _BATCH, tenant, "", [], after, limit, ascending=False)
        return None if rows is None else [_batch(row) for row in rows]

    def open_batches(self) -> list[tuple[Owner, BatchBody]]:
        """(owner, batch) of those that are not over, the oldest first."""
        marks = ",".join("?" * len(OPEN))
        rows = self._db.execute(
            f"SELECT tenant, key, {_BATCH} FROM batches WHERE status IN ({marks}) ORDER BY serial", OPEN
        ).fetchall()
        return [(Owner(*row[:2]), _batch(row[2:])) for row in rows]

    def num_open(self, tenant: str) -> int:
        marks = ",".join("?" * len(OPEN))
        row = self._db.execute(
            f"SELECT count(*) FROM batches WHERE tenant = ? AND status IN ({marks})", (tenant, *OPEN)
        ).fetchone()
        return int(row[0])

    def advance(self, body: BatchBody, before: str) -> bool:
        """Take over all but the counts of requests done, if the batch still has the status `before`."""
        with self._transaction() as db:
            row = db.execute("SELECT status FROM batches WHERE id = ?", (body.id,)).fetchone()
            if row is None or row[0] != before:
                return False
            _update_batch(db, body)
            return True

    def cancel(self, tenant: str, id: str) -> tuple[BatchBody | None, bool]:
        """The batch, and whether it was cancelled by this: it is not if it is over already, or about to be."""
        with self._transaction():
            body = self.batch(tenant, id)
            if body is None or body.status not in ("validating", "in_progress"):
                return body, False
            body.status, body.cancelling_at = "cancelling", now()
            _update_batch(self._db, body)
            return body, True

    def done(self, batch: str) -> set[int]:
        """Numbers of the lines that have their result."""
        return {line for (line,) in self._db.execute("SELECT line FROM results WHERE batch = ?", (batch,))}

    def add_result(self, tenant: str, batch: str, line: int, ok: bool, content: bytes) -> None:
        """A line's result and its count, at once, and only the first time."""
        count = "completed" if ok else "failed"
        with self._transaction() as db:
            added = db.execute(
                "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", (batch, line, int(ok), content)
            ).rowcount
            if added:
                db.execute(f"UPDATE batches SET {count} = {count} + 1 WHERE id = ?", (batch,))
        if added:
            self._uses(tenant, len(content))

    def write_results(self, batch: str, ok: bool, draft: Path) -> int:
        """Results of a batch, a line each in the input's order, to a new file. Returns its bytes; nothing is written
        where there are none.
        """
        rows = self._db.execute(
            "SELECT content FROM results WHERE batch = ? AND ok = ? ORDER BY line", (batch, int(ok))
        )
        first = rows.fetchone()
        if first is None:
            return 0
        with draft.open("xb") as file:
            file.write(first[0] + b"\n")
            for (content,) in rows:
                file.write(content + b"\n")
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def finish(self, tenant: str, body: BatchBody, files: list[FileBody]) -> None:
        """The batch is over: with its files, and without the results that they hold, at once."""
        with self._transaction() as db:
            for file in files:
                _insert_file(db, tenant, file)
            _update_batch(db, body)
            db.execute("DELETE FROM results WHERE batch = ?", (body.id,))
        self._used.pop(tenant, None)

    # --- lists ---------------------------------------------------------------------------------------

    def _page(
        self,
        table: str,
        columns: str,
        tenant: str,
        where: str,
        values: list[Any],
        after: str | None,
        limit: int,
        ascending: bool,
    ) -> list[Any] | None:
        if after is not None:
            row = self._db.execute(
                f"SELECT serial FROM {table} WHERE id = ? AND tenant = ?", (after, tenant)
            ).fetchone()
            if row is None:
                return None
            where += f" AND serial {'>' if ascending else '<'} ?"
            values = [*values, row[0]]
        order = "ASC" if ascending else "DESC"
        return self._db.execute(
            f"SELECT {columns} FROM {table} WHERE tenant = ?{where} ORDER BY serial {order} LIMIT ?",
            (tenant, *values, limit + 1),
        ).fetchall()


_BATCH = "body, total, completed, failed"


def _batch(row: tuple[Any, ...]) -> BatchBody:
    body = _batch_decoder.decode(row[0])
    counts = body.request_counts
    counts.total, counts.completed, counts.failed = row[1:]
    return body


def _insert_file(db: sqlite3.Connection, tenant: str, body: FileBody) -> None:
    db.execute(
        "INSERT INTO files (id, tenant, purpose, body) VALUES (?, ?, ?, ?)",
        (body.id, tenant, body.purpose, msgspec.json.encode(body)),
    )


def _update_batch(db: sqlite3.Connection, body: BatchBody) -> None:
    db.execute(
        "UPDATE batches SET status = ?, total = ?, body = ? WHERE id = ?",
        (body.status, body.request_counts.total, msgspec.json.encode(body), body.id),
    )


def _lock(folder: Path) -> int:
    """A file descriptor that holds the folder for this process, and for as long as it lives."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        import fcntl
    except ImportError:  # not there on Windows
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise TokentrailError(
            f"--files-dir {folder}: another server uses this folder; give each one its own."
        ) from None
    return descriptor
