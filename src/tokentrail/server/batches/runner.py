"""Works off batches in the background, and goes on with them where a server that died has left them.

Each line is a request to our own application. Its result counts from the moment at which it is on the disk, together
with its count, under the line's number: a line whose result is not there is asked again, and no other one.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from starlette.types import ASGIApp

from tokentrail.server.batches.bodies import (
    BatchBody,
    BatchError,
    BatchErrors,
    FileBody,
    LineError,
    LineResponse,
    LineResult,
)
from tokentrail.server.batches.calling import ask
from tokentrail.server.batches.lines import Line, parse, read, validate
from tokentrail.server.batches.quota import QUOTA_USED_UP, Quota
from tokentrail.server.batches.store import Owner, Store, new_id, now
from tokentrail.server.errors import CLIENT_GONE, log_internal, unavailable
from tokentrail.server.keys import Keys

log = logging.getLogger(__name__)

T = TypeVar("T")

_LATER = (429, 503, CLIENT_GONE)
"""Statuses that say nothing about the request: the queue is full, the engine is being restarted."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
"""Seconds before such a request is tried again …"""
_LONGEST_TOLD = 60.0
"""… and at most so many where the refusal says when: a limit may be lifted before."""
_EXPIRED = LineError(
    "batch_expired", "This request could not be executed before the completion window expired."
)
_CANCELLED = LineError("batch_cancelled", "The batch was cancelled before this request was executed.")
_KEY_GONE = LineError(
    "key_not_usable",
    "The API key that made the batch was revoked or expired before this request was executed.",
)
_KEY_STOPS = (
    "The API key that made the batch was revoked or has expired. What was done by then is in its files."
)


class _KeyGone(Exception):
    """Nobody may ask any more as who made the batch."""


class BatchRunner:
    """At most `concurrency` requests run at a time, of all batches in turn."""

    def __init__(
        self, app: ASGIApp, store: Store, keys: Keys, *, concurrency: int, longest_line: int, quota: int
    ) -> None:
        """`quota`: bytes that the files of one tenant may have."""
        self.store = store
        self.quota = Quota(quota, lambda tenant: self.call(store.used, tenant))
        self._app = app
        self._keys = keys
        self._longest_line = longest_line
        self._thread = ThreadPoolExecutor(1, "files")
        self._slots = asyncio.Semaphore(concurrency)
        self._most_begun = concurrency
        """Lines of one batch that are asked or wait to be asked again. Those that wait have no slot: a tenant that is
        over its limits does not hold up others' batches.
        """
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}
        """Of batches that are worked at: set when they are cancelled."""
        self._running = self._closed = False
        self._starting: asyncio.Task[None] | None = None

    async def call(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run one of the store's methods in its thread."""
        if self._closed:
            raise unavailable("The server is shutting down.", "shutting_down")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: work(*arguments, **options))

    # --- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Requests are answered from now on: take up what is not done."""
        self._running = True
        self._starting = asyncio.create_task(self._start())

    async def _start(self) -> None:
        for owner, batch in await self.call(self.store.open_batches):
            log.info("batch %s: goes on (%s)", batch.id, batch.status)
            self.begin(owner, batch)

    def begin(self, owner: Owner, batch: BatchBody) -> None:
        """Work at a batch that the store knows."""
        if self._running and batch.id not in self._tasks:
            self._stops[batch.id] = asyncio.Event()
            if batch.status == "cancelling":
                self._stops[batch.id].set()
            task = self._tasks[batch.id] = asyncio.create_task(self._work(owner, batch))
            task.add_done_callback(lambda _: self._forget(batch.id))

    def cancel(self, id: str) -> None:
        """The store has it as cancelling."""
        if (stop := self._stops.get(id)) is not None:
            stop.set()

    async def stop(self) -> None:
        """Leave off; a later process goes on. Its requests are ended at once."""
        self._running = False
        if self._starting is not None:
            await asyncio.wait({self._starting})
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if not self._closed:
            self._closed = True
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self.store.close)
            self._thread.shutdown()

    def _forget(self, id: str) -> None:
        del self._tasks[id]
        del self._stops[id]

    # --- one batch -----------------------------------------------------------------------------------

    async def _work(self, owner: Owner, batch: BatchBody) -> None:
        while True:
            try:
                await self._advance(owner, batch)
                return
            except (OSError, sqlite3.Error) as error:
                # A full disk, as a rule. What is done is kept, and it goes on when there is room again.
                log.error("batch %s: %s; trying again in %g s", batch.id, error, _LONGEST_PAUSE)
                await asyncio.sleep(_LONGEST_PAUSE)
                batch = await self._current(owner, batch)
            except Exception as error:
                log_internal(error, f"batch {batch.id}")
                batch.status, batch.failed_at = "failed", now()
                text = "The server had an internal error while it worked at the batch."
                batch.errors = BatchErrors([BatchError(code="internal_error", message=text)])
                await self.call(self.store.finish, owner.tenant, batch, [])
                return

    async def _advance(self, owner: Owner, batch: BatchBody) -> None:
        stop = self._stops[batch.id]
        if batch.status == "validating":
            path = self.store.content(batch.input_file_id)
            loop = asyncio.get_running_loop()
            count, errors = await loop.run_in_executor(
                None, validate, path, batch.endpoint, self._longest_line
            )
            if stop.is_set():
                batch = await self._current(owner, batch)
            elif errors:
                batch.status, batch.failed_at, batch.errors = "failed", now(), BatchErrors(errors)
            else:
                batch.status, batch.in_progress_at = "in_progress", now()
            batch.request_counts.total = count
            if not await self.call(self.store.advance, batch, "validating"):
                batch = await self._current(owner, batch)  # cancelled in between
                batch.request_counts.total = count
            if batch.status == "failed":
                log.info("batch %s: failed, %d errors in its file", batch.id, len(errors))
                return
        unfinished: LineError | None = _CANCELLED if batch.status == "cancelling" else None
        if batch.status == "in_progress":
            whole = gone = False
            try:
                whole = await self._run_lines(owner, batch, stop)
            except _KeyGone:
                gone = True
            if stop.is_set():
                batch, unfinished = await self._current(owner, batch), _CANCELLED
            elif gone:
                batch, unfinished = await self._current(owner, batch), _KEY_GONE
            else:
                unfinished = None if whole else _EXPIRED
                total = batch.request_counts.total
                batch.status, batch.finalizing_at = "finalizing", now()
                if not await self.call(self.store.advance, batch, "in_progress"):
                    batch, unfinished = await self._current(owner, batch), _CANCELLED
                batch.request_counts.total = total
        elif batch.status == "finalizing" and now() >= batch.expires_at:
            unfinished = _EXPIRED
        await self._finish(owner, batch, unfinished)

    async def _current(self, owner: Owner, batch: BatchBody) -> BatchBody:
        """What the store has of it, where a request has changed it."""
        found = await self.call(self.store.batch, owner.tenant, batch.id)
        assert found is not None
        return found

    async def _run_lines(self, owner: Owner, batch: BatchBody, stop: asyncio.Event) -> bool:
        """Ask for every line that has no result yet. Returns False if time was up before all had theirs."""
        loop = asyncio.get_running_loop()
        left = batch.expires_at - now()
        deadline = loop.time() + left
        stopped = asyncio.ensure_future(stop.wait())
        working: set[asyncio.Task[None]] = set()
        lines = await self.call(self._open_lines, batch)
        try:
            while True:
                following = await loop.run_in_executor(None, next, lines, None)
                if following is None:
                    break
                if len(working) >= self._most_begun:
                    await asyncio.wait(
                        {*working, stopped},
                        timeout=max(0.0, deadline - loop.time()),
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                for done in [one for one in working if one.done()]:
                    working.discard(done)
                    done.result()
                if stop.is_set() or loop.time() >= deadline:
                    return False
                number, line = following
                working.add(asyncio.create_task(self._run_line(owner, batch, number, line)))
            if working:
                whole = asyncio.ensure_future(asyncio.wait(working))
                await asyncio.wait(
                    {whole, stopped},
                    timeout=max(0.0, deadline - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                whole.cancel()
            done_all = all(task.done() for task in working)
            for task in working:
                if task.done():
                    task.result()
            return done_all
        finally:
            stopped.cancel()
            await _end(working)

    def _open_lines(self, batch: BatchBody) -> Iterator[tuple[int, Line]]:
        done = self.store.done(batch.id)
        path = self.store.content(batch.input_file_id)
        return (
            (number, parse(data, batch.endpoint))
            for number, data in read(path, self._longest_line)
            if number not in done
        )

    async def _run_line(self, owner: Owner, batch: BatchBody, number: int, line: Line) -> None:
        id = _line_id(batch, number)
        if await self.quota.used_up(owner.tenant):
            refused = LineResult(id=id, custom_id=line.custom_id, response=None, error=QUOTA_USED_UP)
            content = msgspec.json.encode(refused)
            await self.call(self.store.add_result, owner.tenant, batch.id, number, False, content)
            return
        pause = _FIRST_PAUSE
        while True:
            identity = self._keys.identity_of(owner.tenant, owner.key)
            if identity is None:
                raise _KeyGone
            async with self._slots:
                reply = await ask(self._app, line.url, bytes(line.body), identity=identity, request_id=id)
            if reply.status not in _LATER:
                break
            told = reply.headers.get(b"retry-after", b"")
            await asyncio.sleep(min(float(told), _LONGEST_TOLD) if told.isdigit() else pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        request_id = reply.headers.get(b"x-request-id", id.encode()).decode()
        json = reply.headers.get(b"content-type", b"").startswith(b"application/json")
        body = reply.body if json else msgspec.json.encode(reply.body.decode("utf-8", "replace"))
        response = LineResponse(reply.status, request_id, msgspec.Raw(body))
        result = LineResult(id=id, custom_id=line.custom_id, response=response, error=None)
        ok = 200 <= reply.status < 300
        await self.call(
            self.store.add_result, owner.tenant, batch.id, number, ok, msgspec.json.encode(result)
        )

    async def _finish(self, owner: Owner, batch: BatchBody, unfinished: LineError | None) -> None:
        """Write the output files, and end the batch. `unfinished`: what to say of requests without a result."""
        # Of a batch that was cancelled early nobody knows yet whether its lines are requests.
        if unfinished is not None and batch.in_progress_at is not None:
            lines = await self.call(self._open_lines, batch)
            loop = asyncio.get_running_loop()
            while (following := await loop.run_in_executor(None, next, lines, None)) is not None:
                number, line = following
                result = LineResult(
                    id=_line_id(batch, number), custom_id=line.custom_id, response=None, error=unfinished
                )
                content = msgspec.json.encode(result)
                await self.call(self.store.add_result, owner.tenant, batch.id, number, False, content)
        files: list[FileBody] = []
        for ok, name in ((True, "output"), (False, "error")):
            draft = self.store.draft()
            nbytes = await self.call(self.store.write_results, batch.id, ok, draft)
            if not nbytes:
                continue
            file = FileBody(
                id=new_id("file-"),
                bytes=nbytes,
                created_at=now(),
                filename=f"{batch.id}_{name}.jsonl",
                purpose="batch_output",
            )
            await self.call(self.store.keep, draft, file.id)
            files.append(file)
            if ok:
                batch.output_file_id = file.id
            else:
                batch.error_file_id = file.id
        if unfinished is _CANCELLED:
            batch.status, batch.cancelled_at = "cancelled", now()
        elif unfinished is _KEY_GONE:
            batch.status, batch.failed_at = "failed", now()
            batch.errors = BatchErrors([BatchError(code=_KEY_GONE.code, message=_KEY_STOPS)])
        elif unfinished is _EXPIRED:
            batch.status, batch.expired_at = "expired", now()
        else:
            batch.status, batch.completed_at = "completed", now()
        await self.call(self.store.finish, owner.tenant, batch, files)
        log.info("batch %s: %s", batch.id, batch.status)


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel tasks until they are done: before Python 3.12, `asyncio.wait_for` can swallow a cancellation, and a
    request that did not notice would be tried again without end.
    """
    left = tasks
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.2)


def _line_id(batch: BatchBody, number: int) -> str:
    """The same whenever the line is asked."""
    return f"batch_req_{batch.id.removeprefix('batch_')}_{number}"
