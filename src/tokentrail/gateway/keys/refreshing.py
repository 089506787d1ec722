"""Keeps a key ring as the database is: what any process changes there holds here within a second."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING

from tokentrail.gateway.keys.ring import KeyRing
from tokentrail.gateway.keys.store import COARSE, KeyStore
from tokentrail.protocol import TokentrailError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tokentrail.gateway.database import Database

log = logging.getLogger(__name__)

PERIOD = 0.5
"""Seconds between two looks at the version."""


class Refresher:
    """Looks at one row again and again, and at all of them when it says so. While the database cannot be reached the
    keys of before hold: nobody can revoke one there either.
    """

    def __init__(self, ring: KeyRing, store: KeyStore, database: Database) -> None:
        self._ring = ring
        self._store = store
        self._database = database
        self._version = -1
        self._lock = threading.Lock()
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    def load(self) -> None:
        """Before there is an event loop. Blocks. Raises `DatabaseFailure`."""
        with self._database.read() as connection:
            self._load(connection)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="key-refresher")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._write_used()

    async def refresh(self) -> None:
        """Now: this process has changed something. Raises `DatabaseFailure`."""
        await self._database.run(self._load, writes=False)

    async def _run(self) -> None:
        written = time.monotonic()
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self._database.run(self._look, writes=False)
                if time.monotonic() - written >= COARSE:
                    written = time.monotonic()
                    await self._write_used()
            except Exception as error:
                if not self._failing:
                    why = str(error) if isinstance(error, TokentrailError) else type(error).__name__
                    log.error("keys cannot be looked up; those of before hold: %s", why)
                self._failing = True
                continue
            if self._failing:
                log.info("keys can be looked up again")
                self._failing = False

    def _look(self, connection: Connection) -> None:
        if self._store.version(connection) != self._version:
            self._load(connection)

    def _load(self, connection: Connection) -> None:
        with self._lock:  # what was read last is taken last
            loaded = self._store.load(connection)
            self._ring.replace(loaded.keys, loaded.tenants)
            self._version = loaded.version

    async def _write_used(self) -> None:
        used, self._ring.used = self._ring.used, {}
        if not used:
            return
        try:
            await self._database.run(lambda connection: self._store.note_used(connection, used))
        except BaseException:
            self._ring.used = used | self._ring.used
            raise
