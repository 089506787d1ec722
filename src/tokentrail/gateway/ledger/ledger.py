"""What is written of requests, when, and who waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tokentrail.answer import AnswerRequest, EmbeddingRequest, Handling, Identity, Usage
from tokentrail.gateway.config import LedgerSettings
from tokentrail.gateway.database import Database
from tokentrail.gateway.ledger import reports, retention, store
from tokentrail.gateway.ledger.entry import FAILED, INSTANCE_SHIFT, REFUSED, Entry, Row
from tokentrail.gateway.ledger.prices import PriceList
from tokentrail.gateway.ledger.spool import Spool, read
from tokentrail.gateway.ledger.writer import SOON, Writer, replay
from tokentrail.protocol import TokentrailError

log = logging.getLogger(__name__)

_REFUSALS = 0.25
"""Seconds in which rows of refused requests gather: nobody waits for them."""
_DAY = 86_400
_WAKING = 0.5
"""Seconds in which a process that was stopped has caught up with what it was doing."""


class LedgerUnavailable(TokentrailError):
    """Usage cannot be written down now, so nothing may be used."""

    status = 503
    type = "server_error"
    code = "ledger_unavailable"

    def __init__(self) -> None:
        super().__init__("Usage cannot be recorded at the moment. Try again later.")


class Ledger:
    """Of one server. Its methods are called on the event loop, but for `open` and `close`, which block."""

    def __init__(self, database: Database, settings: LedgerSettings, prices: PriceList, folder: Path) -> None:
        """`folder`: the deployment file's."""
        self.settings = settings
        self.prices = prices
        """May be replaced: what is asked from then on costs that."""
        self._database = database
        self._folder = folder if settings.spool_folder is None else folder / settings.spool_folder
        self._running: dict[int, Callable[[], bool]] = {}
        """By entry: takes a checkpoint of those that are streamed, and says whether something has changed."""
        self._entries: dict[int, Entry] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._second, self._refused = 0, 0
        self._today, self._refused_today = 0, 0
        self._swept = time.monotonic()
        self._suspected: float | None = None
        self._died: list[store.Died] = []
        self._tell: Callable[[store.Died], None] | None = None

    def open(self) -> None:
        """End what died, and take up what was left in files. Raises a `TokentrailError` that says why it cannot."""
        if not self._folder.is_dir():
            raise TokentrailError(
                f"ledger.spool_folder: {self._folder} is no folder. Make it, or name another."
            )
        self._database.prepare_writing_often()
        with self._database.write() as connection:
            self.instance = store.register(connection)
            died = store.bill_the_dead(connection, self.instance, self.settings.lease_s)
        self._have_died(died)
        self._ids = itertools.count(self.instance << INSTANCE_SHIFT)
        self._adopt()
        self.writer = Writer(
            self._database,
            self.instance,
            Spool(self._folder / f"ledger-{self.instance}.spool"),
            spools=self.settings.on_failure == "spool",
            chores=self._chores,
            chores_s=self.settings.lease_s / 6,
        )
        self.writer.start()

    def close(self) -> None:
        """All requests have ended."""
        if self.writer.close():
            with self._database.write() as connection:
                store.leave(connection, self.instance)

    def on_death(self, tell: Callable[[store.Died], None]) -> None:
        """Call `tell` on this event loop for each request that a dead server leaves, those known by now included."""
        loop = asyncio.get_running_loop()

        def told(died: store.Died) -> None:
            with contextlib.suppress(RuntimeError):  # it is closed: this server ends, too
                loop.call_soon_threadsafe(tell, died)

        self._tell = told
        self._have_died([])

    def _have_died(self, died: Sequence[store.Died]) -> None:
        if died:
            log.warning("%d requests of a server that died are billed at their last checkpoint", len(died))
        self._died += died
        if self._tell is not None:
            # The writer's thread may be here as well: one that is told twice changes nothing.
            waiting, self._died = self._died, []
            for one in waiting:
                self._tell(one)

    async def billed(self, tenant: str, key: str | None, since: float) -> tuple[int, int]:
        """Tokens and cost of a tenant, or of one of its keys, since a second. Raises `DatabaseFailure`."""
        return await self._database.run(
            lambda connection: reports.billed(connection, tenant, key, since), writes=False
        )

    # --- one request -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises `LedgerUnavailable` where nothing may be used since it could not be written down."""
        if self.writer.full or (self.settings.on_failure == "refuse" and self.failing):
            raise LedgerUnavailable

    @property
    def failing(self) -> bool:
        """The database does not take rows."""
        return self.writer.failing or self._stuck()

    def begin(self, request: AnswerRequest | EmbeddingRequest) -> Entry:
        """`request` is admitted."""
        entry = self._entry(request)
        self._write(entry, SOON)
        return entry

    def watch(self, entry: Entry, checkpoint: Callable[[], bool]) -> None:
        """Call `checkpoint` now and then until the entry ends: it updates what is billed, and says whether that is
        something new.
        """
        self._entries[entry.id], self._running[entry.id] = entry, checkpoint
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.settings.checkpoint_s, self._checkpoint)

    def end(self, entry: Entry, state: str, *, status: int, error: str | None = None) -> None:
        """`entry.billed` is what it comes to. Whoever has to know that it is written asks `written`."""
        self._running.pop(entry.id, None)
        self._entries.pop(entry.id, None)
        entry.end(state, status=status, error=error)
        self._write(entry, SOON)

    async def written(self, entry: Entry) -> None:
        """Return when no crash can take what was said of `entry` so far. Raises `LedgerUnavailable` after a while."""
        writer = self.writer
        if entry.batch <= writer.done:
            return
        # Twice: if the process was stopped meanwhile, its writer had no more time than it.
        for _ in range(2):
            told = writer.wait(entry.batch)
            timer = asyncio.get_running_loop().call_later(self.settings.patience_s / 2, _give_up, told)
            try:
                if await told:
                    return
            finally:
                timer.cancel()
        if self.settings.on_failure == "refuse":
            raise LedgerUnavailable
        # The thread waits for a database that does not answer.
        try:
            await asyncio.get_running_loop().run_in_executor(None, writer.spool.append, [entry.row()])
        except OSError:
            raise LedgerUnavailable from None

    def refused(self, request: AnswerRequest | EmbeddingRequest, error: TokentrailError) -> None:
        """It was not admitted."""
        request.handling.billed = Usage()
        self._refuse(self._entry(request), error.status, error.code or error.type)

    def turned_away(
        self, identity: Identity, endpoint: str, request_id: str, received: float, status: int, error: str
    ) -> None:
        """Somebody who is let in asked something with which no model could be asked: what is no JSON, say, or a model
        that is not there, whose name may be anything and is not kept.
        """
        entry = Entry(
            next(self._ids), answer_id="", request_id=request_id, model="", endpoint=endpoint, streamed=False,
            received=received, identity=identity, handling=Handling(), prices=self.prices,
        )  # fmt: skip
        self._refuse(entry, status, error)

    def _refuse(self, entry: Entry, status: int, error: str) -> None:
        """As a row, as long as there are not too many of them."""
        entry.end(REFUSED if status < 500 else FAILED, status=status, error=error)
        now, today = time.monotonic(), int(time.time()) // _DAY
        if int(now) != self._second:
            self._second, self._refused = int(now), 0
        if today != self._today:
            self._today, self._refused_today = today, 0
        self._refused += 1
        full = self._refused > self.settings.refused_rows_per_s
        if full or self._refused_today >= self.settings.refused_rows_per_day or self.writer.failing:
            self.writer.count((today, *entry.sums()))
        else:
            self._refused_today += 1
            self._write(entry, _REFUSALS)

    def _entry(self, request: AnswerRequest | EmbeddingRequest) -> Entry:
        return Entry(
            next(self._ids),
            answer_id=request.id,
            request_id=request.request_id,
            model=request.model,
            endpoint=request.endpoint,
            streamed=isinstance(request, AnswerRequest) and request.streamed,
            received=time.time() if request.received is None else request.received,
            identity=request.identity,
            handling=request.handling,
            prices=self.prices,
        )

    def _write(self, entry: Entry, within: float) -> None:
        entry.batch = self.writer.put(entry.row(), within)

    def _checkpoint(self) -> None:
        self._timer = None
        changed = [self._entries[id].row() for id, checkpoint in self._running.items() if checkpoint()]
        loop = asyncio.get_running_loop()
        if changed:
            # What was handed to connections in this turn of the loop is sent at its end.
            loop.call_soon(self._write_all, changed)
        if self._running:
            self._timer = loop.call_later(self.settings.checkpoint_s, self._checkpoint)

    def _write_all(self, rows: list[Row]) -> None:
        for row in rows:
            if row[0] in self._entries:  # it has not ended meanwhile
                self.writer.put(row, SOON)

    def _stuck(self) -> bool:
        """Whether the writer waits for the database, and it was not this process or machine that slept."""
        if not self.writer.stuck(self.settings.patience_s):
            self._suspected = None
            return False
        now = time.monotonic()
        if self._suspected is None:
            self._suspected = now
        return now - self._suspected > _WAKING

    # --- in the writer's thread --------------------------------------------------------------------

    def _chores(self) -> None:
        with self._database.write() as connection:
            store.give_sign(connection, self.instance)
            died = store.bill_the_dead(connection, self.instance, self.settings.lease_s)
        self._have_died(died)
        if self.settings.keep_days is not None and time.monotonic() >= self._swept:
            # A little at a time: answers wait for this thread.
            more = retention.sweep(self._database, self.settings.keep_days)
            self._swept = time.monotonic() + (0 if more else retention.PAUSE)

    def _adopt(self) -> None:
        """Files that instances have left which do not run any more."""
        with self._database.read() as connection:
            alive = store.alive(connection)
        for path in sorted(self._folder.glob("ledger-*.spool")):
            number = path.stem.removeprefix("ledger-")
            if not number.isdecimal() or (int(number) in alive and int(number) != self.instance):
                continue
            rows = read(path)
            with self._database.write() as connection:
                replay(connection, rows, self.instance)
            path.unlink()
            log.info("%s: %d rows are in the database now", path, len(rows))


def _give_up(told: asyncio.Future[bool]) -> None:
    if not told.done():
        told.set_result(False)
