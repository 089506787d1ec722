"""A thread that writes what requests have become, those of the same moment in one transaction.

While one transaction is on its way to the disk, what comes gathers for the next: so the more there is to do, the less
each of it costs, and a single client waits for one commit alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, IntegrityError

from tokentrail.gateway.database import Database, DatabaseFailure
from tokentrail.gateway.ledger import store
from tokentrail.gateway.ledger.entry import INSTANCE, INTERRUPTED, RUNNING, STATE, Row
from tokentrail.gateway.ledger.spool import Spool

log = logging.getLogger(__name__)

SOON = 0.005
"""Seconds in which what nobody waits for may gather."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds between attempts while the database fails."""
_MOST_ROWS = 50_000
_MOST_COUNTS = 10_000
_LONGEST_END = 15.0


class Writer:
    """`start` and `close` once each; nothing but these two blocks. `put`, `count` and `wait` are called on an event
    loop.
    """

    def __init__(
        self,
        database: Database,
        instance: int,
        spool: Spool,
        *,
        spools: bool,
        chores: Callable[[], None],
        chores_s: float,
    ) -> None:
        """`spools`: while the database fails, rows go into `spool`, and then count as written. Otherwise only the end
        of the server puts them there. `chores`: what else the thread does every `chores_s` seconds; may raise
        `DatabaseFailure`.
        """
        self.instance = instance
        self.spool = spool
        self.failing = False
        """Of the last attempt."""
        self.done = -1
        """Number of the newest batch whose rows a crash cannot take any more."""
        self.rows = 0
        """Written so far."""
        self.commits = 0
        self._database = database
        self._spools = spools
        self._chores, self._chores_s = chores, chores_s
        self._change = threading.Condition()
        self._rows: dict[int, Row] = {}
        self._counts: Counter[store.DayKey] = Counter()
        self._number = 0
        """Of the batch that gathers."""
        self._due = float("inf")
        """When the thread was told to write."""
        self._timer: tuple[asyncio.AbstractEventLoop, float] | None = None
        """On which loop one runs that will tell it, and when."""
        self._chores_due = time.monotonic() + chores_s
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []
        self._stopping = False
        self._busy_since: float | None = None
        self._spooled = 0
        """Rows in the file that may not be in the database."""
        self._pause = _FIRST_PAUSE
        self._retry = 0.0
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> bool:
        """Write all that has come. What the database does not take is kept in the file for the next start; then
        False.
        """
        with self._change:
            self._stopping = True
            self._change.notify()
        self._thread.join(_LONGEST_END)
        if self._thread.is_alive():
            # It hangs in the database. Written twice is written once.
            with self._change:
                rows = list(self._rows.values())
            self._to_file(rows)
            return False
        return not (self.failing or self._spooled)

    @property
    def waiting(self) -> int:
        """Rows that are not in the database yet, but for those on their way."""
        return len(self._rows) + self._spooled

    @property
    def full(self) -> bool:
        """So much waits that nothing may be added."""
        return len(self._rows) > _MOST_ROWS

    def put(self, row: Row, within: float) -> int:
        """`row` is to be written in so many seconds at most. Returns its batch's number."""
        with self._change:
            self._rows[row[0]] = row  # type: ignore[index]
            number = self._number
        self._soon(within)
        return number

    def count(self, key: store.DayKey) -> None:
        """One more of those that get no row."""
        with self._change:
            if key in self._counts or len(self._counts) < _MOST_COUNTS:
                self._counts[key] += 1
        self._soon(1.0)

    def wait(self, batch: int) -> asyncio.Future[bool]:
        """Gets True when a crash cannot take that batch's rows any more."""
        future = asyncio.get_running_loop().create_future()
        with self._change:
            if batch <= self.done:
                future.set_result(True)
            else:
                self._waiting.append((batch, future))
                if batch == self._number:
                    self._hurry()
        return future

    def stuck(self, seconds: float) -> bool:
        """Whether one attempt takes longer than that."""
        since = self._busy_since
        return since is not None and time.monotonic() - since > seconds

    def _hurry(self) -> None:
        if self._due > 0.0:
            self._due = 0.0
            self._change.notify()

    def _soon(self, within: float) -> None:
        """Have the event loop wake the thread in so many seconds: were it woken at once to learn of that time, each
        batch would wake it twice, which costs as much as writing it.
        """
        if within <= 0.0:
            self._ring()
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + within
        if self._timer is None or self._timer[0] is not loop or due < self._timer[1]:
            self._timer = loop, due
            loop.call_later(within, self._ring)

    def _ring(self) -> None:
        self._timer = None
        with self._change:
            if self._rows or self._counts:
                self._hurry()

    # --- in the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._stopping and (left := self._next() - time.monotonic()) > 0:
                    self._change.wait(left)
                rows, self._rows = self._rows, {}
                counts, self._counts = self._counts, Counter()
                number, self._number = self._number, self._number + 1
                self._due = float("inf")
                stopping = self._stopping
            try:
                self._attempt(rows, counts, number, stopping)
            except Exception as error:  # a mistake of ours must not end the thread
                log.error("the ledger's writer failed: %s", type(error).__name__)
                self._again(rows, counts)
                self._wait_longer()
            if stopping:
                return

    def _next(self) -> float:
        """When something is to be done."""
        due = min(self._due, self._chores_due)
        return max(due, self._retry) if self.failing and not self._spools else due

    def _attempt(
        self, rows: dict[int, Row], counts: Counter[store.DayKey], number: int, stopping: bool
    ) -> None:
        if self.failing and self._spools and time.monotonic() < self._retry and not stopping:
            self._kept(rows, counts, number)
            return
        self._busy_since = time.monotonic()
        try:
            if rows or counts or self._spooled:
                self._to_database(rows, counts)
            if time.monotonic() >= self._chores_due or self.failing:
                self._chores_due = time.monotonic() + self._chores_s
                self._chores()
        except DatabaseFailure as error:
            if not self.failing:
                self.failing = True
                log.error("the ledger cannot be written: %s", error)
            self._wait_longer()
            if self._spools or stopping:
                self._kept(rows, counts, number)
            else:
                self._again(rows, counts)
        else:
            if self.failing:
                self.failing = False
                self._pause = _FIRST_PAUSE
                log.warning("the ledger is written again")
            self._tell(number)
        finally:
            self._busy_since = None

    def _to_database(self, rows: dict[int, Row], counts: Counter[store.DayKey]) -> None:
        spooled = self.spool.take() if self._spooled else []
        try:
            self._transaction(spooled, list(rows.values()), counts)
        except DatabaseFailure as error:
            if not isinstance(error.__cause__, (DataError, IntegrityError)):
                raise
            self._one_by_one([*spooled, *rows.values()])
        self.rows += len(rows)
        self.commits += 1
        if self._spooled:
            self.spool.drop(len(spooled))
            self._spooled = 0

    def _transaction(
        self, spooled: Sequence[Row], rows: Sequence[Row], counts: Mapping[store.DayKey, int]
    ) -> None:
        if not (spooled or counts):
            with self._database.write_often() as connection:
                store.write_rows(connection, rows)
            return
        with self._database.write() as connection:
            replay(connection, spooled, self.instance)
            store.write_rows(connection, rows)
            store.add_to_days(connection, counts)

    def _one_by_one(self, rows: Sequence[Row]) -> None:
        """The database does not take one of them. It must not keep the others out."""
        for row in rows:
            try:
                self._transaction([], [row], {})
            except DatabaseFailure as error:
                if not isinstance(error.__cause__, (DataError, IntegrityError)):
                    raise
                path = self.spool.path.with_suffix(".refused")
                log.error("the database refuses a row, which is kept in %s: %s", path, error)
                with contextlib.suppress(OSError):
                    Spool(path).append([row])

    def _kept(self, rows: dict[int, Row], counts: Counter[store.DayKey], number: int) -> None:
        """Into the file, which will do until the database is back."""
        if self._to_file(list(rows.values())):
            self._again({}, counts)
            self._tell(number)
        else:
            self._again(rows, counts)

    def _to_file(self, rows: Sequence[Row]) -> bool:
        if not rows:
            return True
        try:
            self.spool.append(rows)
        except OSError as error:
            log.error("%s: %d rows cannot be written: %s", self.spool.path, len(rows), error.strerror)
            return False
        self._spooled += len(rows)
        return True

    def _again(self, rows: dict[int, Row], counts: Counter[store.DayKey]) -> None:
        """With the next batch; what has come for the same requests since is newer."""
        with self._change:
            self._rows = {**rows, **self._rows}
            self._counts.update(counts)
            if self._rows or self._counts:
                self._due = min(self._due, self._retry)

    def _wait_longer(self) -> None:
        self._retry = time.monotonic() + self._pause
        self._chores_due = self._retry
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _tell(self, number: int) -> None:
        with self._change:
            self.done = number
            told = [future for batch, future in self._waiting if batch <= number]
            self._waiting = [one for one in self._waiting if one[0] > number]
        for loop in {future.get_loop() for future in told}:
            ready = [future for future in told if future.get_loop() is loop]
            with contextlib.suppress(RuntimeError):  # it is closed, and nobody waits there
                loop.call_soon_threadsafe(_resolve, ready)


def replay(connection: Connection, rows: Sequence[Row], instance: int) -> None:
    """Rows that a file has kept. Those of other instances, which are dead, do not go on."""
    newest: dict[int, Row] = {}
    for row in rows:
        number: int = row[0]  # type: ignore[assignment]
        if row[STATE] == RUNNING and number in newest and newest[number][STATE] != RUNNING:
            continue
        newest[number] = row
    store.write_rows(
        connection,
        [
            (*row[:STATE], INTERRUPTED, *row[STATE + 1 : -1], "server_died")
            if row[STATE] == RUNNING and row[INSTANCE] != instance
            else row
            for row in newest.values()
        ],
    )


def _resolve(futures: Sequence[asyncio.Future[bool]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(True)
