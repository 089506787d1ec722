"""One answer of a remote upstream, while it comes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Protocol

import msgspec

from tokentrail.answer.remote import failures
from tokentrail.answer.remote.asking import Asked
from tokentrail.answer.remote.connections import Connection, ConnectionLost, ConnectionPool
from tokentrail.answer.remote.reading import AnswerReader, GaveUp, Unreadable
from tokentrail.answer.remote.sse import EventReader
from tokentrail.answer.remote.target import RemoteTarget
from tokentrail.answer.remote.wire import Event, read_event
from tokentrail.answer.types import AnswerRequest, Chunk, Timing, Usage
from tokentrail.journey import Journey, JourneyStore
from tokentrail.observability import Metrics
from tokentrail.protocol import (
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    UpstreamError,
)

_BACKLOG = 256 * 1024
"""Bytes of events that wait for a slow client, beyond which nothing more is read from the upstream."""
_GRACE = 0.05
"""Seconds."""
_LARGEST_ANSWER = 64 * 1024 * 1024
_LARGEST_REFUSAL = 64 * 1024
_BADNESS = {"stop": 0, "tool_calls": 0, "content_filter": 0, "length": 1}


class _Told(Exception):
    """The upstream says within its answer that it failed."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Place(Protocol):
    """What an answer needs of its backend."""

    target: RemoteTarget
    pool: ConnectionPool
    journeys: JourneyStore
    metrics: Metrics
    fingerprint: str
    """The upstream's, as it told it last."""

    def wire(self, path: str, body: bytes, id: str) -> bytes:
        """A request as it is sent."""
        ...

    async def room(self, request: AnswerRequest) -> int:
        """Tokens that the request's prompt leaves of the context."""
        ...


class RemoteAnswer:
    """See `answer.backend.Answer`. The upstream is asked when the answer is first iterated."""

    def __init__(
        self, place: Place, request: AnswerRequest, asked: Asked, seed: int, *, estimate: int
    ) -> None:
        """`estimate`: tokens of the prompts, until the upstream counts them."""
        now = time.time()
        received = now if request.received is None else request.received
        self.id, self.model, self.created = request.id, request.model, int(received)
        self.seed = seed
        self.fingerprint = place.fingerprint
        self.prompt_token_ids: list[list[int]] = [[] for _ in request.prompts]
        self.usage = Usage(prompt_tokens=estimate)
        self.timing = Timing(received)
        self.sampling = request.sampling
        self.num_choices = len(request.prompts) * request.sampling.n
        self.headers: dict[str, str] = {}
        self._place = place
        self._request = request
        self._asked = asked
        self._chunks = self._run()
        self._reader = AnswerReader(
            self.num_choices,
            self.usage,
            self.prompt_token_ids,
            logprobs=request.sampling.logprobs is not None,
            prompt_logprobs=request.sampling.prompt_logprobs or 0,
        )
        # What is told of the connection.
        self._connection: Connection | None = None
        self._status = 0
        self._response_headers: dict[str, str] = {}
        self._events: EventReader | None = None
        self._body = bytearray()
        self._arrived: list[bytes] = []
        """Pieces of the stream, in the call in which they arrive."""
        self._again = False
        """To be asked once more: nothing has come, for a reason that will not come again."""
        # What is told to who iterates.
        self._ready: list[Chunk] = []
        self._pending: Chunk | None = None
        """The latest, to which what arrives at the same time is added; the last, until the tokens have been counted."""
        self._backlog = 0
        self._paused = False
        self._take: Callable[[Chunk], bool] | None = None
        self._error: Exception | None = None
        self._over = False
        self._sent = False
        self._wake: asyncio.Future[None] | None = None
        # How long it has been silent.
        self._due = math.inf
        self._late = False
        """It has been silent for too long when it was looked the last time."""
        self._timer: asyncio.TimerHandle | None = None
        self._journey: Journey | None = place.journeys.begin_for(request)
        self._journey.served_by = place.target.name
        self._journey.seed, self._journey.fingerprint = seed, self.fingerprint
        self._journey.prompt_tokens = estimate

    # --- see `answer.backend.Answer` -----------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        self._take = None
        for number, chunk in enumerate(self._ready):
            if not take(chunk):
                del self._ready[:number]
                return
        self._ready.clear()
        self._take = take

    async def aclose(self) -> None:
        """Stop: the upstream's connection is closed at once, by which it knows."""
        await self._chunks.aclose()
        self._end("abort")

    def sent(self, seconds: float) -> None:
        if self._journey is not None:
            self._journey.send_seconds += seconds

    async def _run(self) -> AsyncGenerator[list[Chunk], None]:
        outcome = "error"
        deadline = self._request.deadline
        timer: asyncio.TimerHandle | None = None
        try:
            if deadline is not None:
                left = max(0.0, deadline - time.time())
                timer = asyncio.get_running_loop().call_later(left, self._expire)
            if self._asked.fill:
                self._asked.body["max_tokens"] = await self._place.room(self._request)
            await self._ask(fresh=False)
            while True:
                if self._ready:
                    ready, self._ready, self._backlog = self._ready, [], 0
                    if self._paused:
                        self._go_on()
                    yield ready
                elif self._error is not None:
                    raise self._error
                elif self._over:
                    break
                elif self._again:
                    self._again = False
                    await self._ask(fresh=True)
                else:
                    self._wake = asyncio.get_running_loop().create_future()
                    await self._wake
            reasons = [reason or "stop" for reason in self._reader.finish_reasons()]
            outcome = "length" if max(_BADNESS[reason] for reason in reasons) else "stop"
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "abort"
            raise
        except Overloaded:
            outcome = "rejected"
            raise
        except DeadlineExceeded:
            outcome = "timeout"
            raise
        except UpstreamError as error:
            self._place.metrics.upstream_failures[self._place.target.name, error.code or ""] += 1
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._hang_up()
            self._end(outcome)

    # --- asking --------------------------------------------------------------------------------------

    async def _ask(self, *, fresh: bool) -> None:
        """`fresh`: on a new connection, since an old one was closed just when it was used."""
        place = self._place
        connection = None if fresh else place.pool.idle()
        if connection is None:
            deadline = self._request.deadline
            left = math.inf if deadline is None else max(0.0, deadline - time.time())
            try:
                connection = await place.pool.connect(left)
            except (OSError, asyncio.TimeoutError) as error:
                if self._error is not None:
                    raise self._error from None  # its time is up
                raise failures.unreachable(place.target, error) from None
        if self._error is not None:
            connection.abort()
            raise self._error
        data = place.wire(self._asked.path, msgspec.json.encode(self._asked.body), self.id)
        self._connection = connection
        self._arm(place.target.timeouts.first_token_s)
        if self._journey is not None:
            self._journey.queued = time.time()
        connection.ask(data, self)

    # --- told by the connection ----------------------------------------------------------------------

    def head(self, status: int, headers: dict[str, str]) -> None:
        self._status, self._response_headers = status, headers
        if status != 200:
            return
        content_type = headers.get("content-type", "")
        kind = content_type.partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            self._events = EventReader()
        elif kind != "application/json":
            raise failures.wrong_type(self._place.target, content_type)

    def data(self, data: bytes) -> None:
        if self._done:
            return
        if self._events is None:
            self._body += data
            if self._status == 200 and len(self._body) > _LARGEST_ANSWER:
                raise Unreadable("an answer without end")
            if self._status != 200 and len(self._body) > _LARGEST_REFUSAL:
                self._refused()
            return
        self._arrived.append(data)

    def settle(self) -> None:
        """What has arrived at the same time is read at once, and texts are joined: where many events are waiting, as
        they are when a machine is busy, they cost less.
        """
        if not self._arrived or self._done or self._events is None:
            return
        arrived, self._arrived = self._arrived, []
        data = arrived[0] if len(arrived) == 1 else b"".join(arrived)
        tokens = 0
        for event in self._events.feed(data):
            if event == b"[DONE]":
                self._finish()
            elif event:
                tokens += self._read(read_event(event), event)
            if self._done:
                break
        if tokens:
            self._observe(tokens)
        if self._done:
            return
        if self._pending is not None and self._reader.unfinished:
            pending, self._pending = self._pending, None
            self._hand(pending)
        if self._ready:
            self._backlog += len(data)
            if self._backlog > _BACKLOG and not self._paused and self._connection is not None:
                self._paused = True
                self._due = math.inf
                self._connection.pause()

    def end(self) -> None:
        self.settle()
        if self._done:
            return
        if self._status != 200:
            self._refused()
            return
        if self._events is None:
            body = bytes(self._body)
            self._observe(self._read(read_event(body), body))
        if not self._done:
            self._finish()

    def failed(self, error: Exception) -> None:
        if self._done:
            return
        pending, self._pending = self._pending, None
        if pending is not None:
            if not self._reader.unfinished:
                self._pending = pending
            else:
                self._hand(pending)  # what came before it is told before it
        if isinstance(error, ConnectionLost):
            if error.unused:
                self._connection = None
                self._again = True
                self._stir()
                return
            if self._events is not None and not self._reader.unfinished:
                self._finish()  # all has come but the count of tokens
                return
        if isinstance(error, _Told):
            error = failures.told(self._place.target, error.value, sent=self._sent)
        elif isinstance(error, Unreadable):
            error = failures.unreadable(self._place.target, str(error), sent=self._sent)
        elif isinstance(error, GaveUp):
            error = failures.broken(self._place.target, ConnectionLost(unused=False), sent=self._sent)
        self._fail(failures.broken(self._place.target, error, sent=self._sent))

    @property
    def _done(self) -> bool:
        return self._over or self._error is not None

    def _read(self, event: Event, raw: bytes) -> int:
        """Returns how many tokens it brought."""
        reader = self._reader
        if event.error is not None or event.object == "error":
            value = event.error if event.error is not None else msgspec.json.decode(raw)
            raise _Told(value)
        for chunk in reader.read(event):
            if self._journey is not None and self._journey.keep_text:
                self._keep_text(chunk)
            pending = self._pending
            if pending is not None and _joined(pending, chunk):
                continue
            self._pending = chunk
            if pending is not None:
                self._hand(pending)
        if not reader.unfinished and event.usage is not None:
            self._finish()
        return reader.new_tokens

    def _observe(self, tokens: int) -> None:
        timing, timeouts = self.timing, self._place.target.timeouts
        now = time.time()
        if timing.first_token is None:
            timing.first_token = now
            self._place.metrics.first_token.observe(now - timing.received)
            self._arm(timeouts.between_tokens_s)
        else:
            self._due = asyncio.get_running_loop().time() + timeouts.between_tokens_s
            if tokens and timing.last_token is not None:
                self._place.metrics.inter_token.observe((now - timing.last_token) / tokens, tokens)
        timing.last_token = now

    def _hand(self, chunk: Chunk) -> None:
        """To who takes chunks in this very call, or else to who iterates."""
        self._sent = True
        take = self._take
        if take is not None and take(chunk):
            return
        self._take = None
        self._ready.append(chunk)
        self._stir()

    def _finish(self) -> None:
        """All has come."""
        reader = self._reader
        if reader.unfinished:
            raise ConnectionLost(unused=False)
        if reader.fingerprint is not None:
            self.fingerprint = self._place.fingerprint = reader.fingerprint
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()
        pending, self._pending = self._pending, None
        if pending is not None:
            self._hand(pending)
        self._over = True
        self._stir()

    def _refused(self) -> None:
        error = failures.refusal(
            self._place.target, self._status, self._response_headers, bytes(self._body[:_LARGEST_REFUSAL])
        )
        if isinstance(error, ContextLengthExceeded) and self._asked.refill:
            # It may be `max_tokens`, which nobody asked for, and not the prompt.
            self._asked.refill = False
            for name in ("max_tokens", "max_completion_tokens"):
                self._asked.body.pop(name, None)
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.release()
            self._status, self._body = 0, bytearray()
            self._again = True
            self._stir()
            return
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._done:
            return
        self._error = error
        self._take = None
        self._hang_up()
        self._stir()

    def _hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection, self._connection = self._connection, None
        if connection is None:
            return
        # A refusal's connection is as good as before.
        if isinstance(self._error, (InvalidRequest, Overloaded)):
            connection.release()
        else:
            connection.abort()

    def _stir(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # --- time ----------------------------------------------------------------------------------------

    def _arm(self, seconds: float) -> None:
        """Let it be silent for so long."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        """One timer serves all tokens: it looks whether it is time, and sleeps on if not."""
        self._timer = None
        if self._done:
            return
        timeouts = self._place.target.timeouts
        begun = self.timing.first_token is not None
        allowed = timeouts.between_tokens_s if begun else timeouts.first_token_s
        loop = asyncio.get_running_loop()
        left = min(self._due - loop.time(), allowed)
        if left > 0.001:
            self._late = False
            self._timer = loop.call_later(left, self._tick)
        elif not self._late:
            # After a machine stood still, timers may come before what has arrived meanwhile.
            self._late = True
            self._timer = loop.call_later(_GRACE, self._tick)
        else:
            self._fail(failures.silent(self._place.target, allowed, sent=self._sent))

    def _go_on(self) -> None:
        """Read on: the client has caught up."""
        self._paused = False
        self._due = asyncio.get_running_loop().time() + self._place.target.timeouts.between_tokens_s
        if self._connection is not None:
            self._connection.resume()

    def _expire(self) -> None:
        self._fail(self._request.late())

    # --- its trail -----------------------------------------------------------------------------------

    def _keep_text(self, chunk: Chunk) -> None:
        journey = self._journey
        assert journey is not None
        if not journey.texts:
            journey.texts = [""] * self.num_choices
        journey.texts[chunk.index] += chunk.reasoning + chunk.text

    def _end(self, outcome: str) -> None:
        """The request is over. Only the first call counts."""
        journey, self._journey = self._journey, None
        if journey is None:
            return
        usage, timing, metrics = self.usage, self.timing, self._place.metrics
        journey.fingerprint = self.fingerprint
        journey.prompt_tokens, journey.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        journey.completion_tokens = usage.completion_tokens
        journey.first_token, journey.last_token = timing.first_token, timing.last_token
        journey.end(outcome)
        metrics.requests[outcome] += 1
        if outcome == "rejected":
            return
        metrics.latency.observe(time.time() - timing.received)
        metrics.request_prompt_tokens.observe(usage.prompt_tokens)
        metrics.request_generation_tokens.observe(usage.completion_tokens)
        between = usage.completion_tokens - self.num_choices
        if timing.first_token is not None and timing.last_token is not None and between > 0:
            seconds = (timing.last_token - timing.first_token) * self.num_choices
            metrics.per_output_token.observe(seconds / between)


def _joined(chunk: Chunk, more: Chunk) -> bool:
    """Add `more` to `chunk`, if they can be one."""
    if (
        chunk.index != more.index
        or chunk.finish_reason is not None
        or chunk.calls
        or more.calls
        or chunk.logprobs is not None
        or more.logprobs is not None
        or more.prompt_logprobs is not None
        or (chunk.text and more.reasoning)
    ):
        return False
    chunk.text += more.text
    chunk.reasoning += more.reasoning
    if more.token_ids:
        chunk.token_ids = [*chunk.token_ids, *more.token_ids]
    chunk.finish_reason, chunk.stop_reason = more.finish_reason, more.stop_reason
    return True
