"""A file for rows while the database fails: a line a row, on the disk before anybody goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tokentrail.gateway.ledger.entry import COLUMNS, Row


class Spool:
    """Of one instance. Safe in several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def append(self, rows: Sequence[Row]) -> None:
        """Raises `OSError`."""
        data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        with self._lock:
            new = not self.path.exists()
            # What is billed is nobody else's business.
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                # A line that a crash or a full disk has cut must not swallow the next one.
                view = memoryview(b"\n" + data)
                while view:
                    view = view[os.write(file, view) :]
                os.fsync(file)
            finally:
                os.close(file)
            if new:
                _sync_folder(self.path.parent)

    def take(self) -> list[Row]:
        """All that is there; a line that was cut short is left out, as nobody went on after it."""
        with self._lock:
            return read(self.path)

    def drop(self, rows: int) -> None:
        """`rows` of them are in the database now; if more came meanwhile, the file stays as it is."""
        with self._lock:
            if len(read(self.path)) == rows:
                self.path.unlink(missing_ok=True)


def read(path: Path) -> list[Row]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    rows: list[Row] = []
    for line in data.splitlines():
        try:
            values = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(values, list) and len(values) == len(COLUMNS):
            rows.append(tuple(values))
    return rows


def _sync_folder(folder: Path) -> None:
    """A new name is on the disk only with its folder."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
