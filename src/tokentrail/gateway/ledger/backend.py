"""The ledger before a backend: each admitted request has a row before anything of its answer leaves, and its last word
leaves when the row says how it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import msgspec

from tokentrail.answer import (
    Answer,
    AnswerRequest,
    Backend,
    Chunk,
    EmbeddingRequest,
    Embeddings,
    Handling,
    Usage,
)
from tokentrail.gateway.forwarding import ForwardingAnswer, ForwardingBackend
from tokentrail.gateway.ledger.entry import ABORTED, DONE, FAILED, REFUSED, Entry
from tokentrail.gateway.ledger.ledger import Ledger, LedgerUnavailable
from tokentrail.protocol import TokentrailError

CLIENT_GONE = "client_gone"
_STATUS_GONE = 499
_RANK = {"stop": 0, "tool_calls": 1, "length": 2, "content_filter": 3}
"""Of several choices' ends the one that is told."""


class RefusalsBackend(ForwardingBackend):
    """The outermost: what any part behind it refuses is written down, too."""

    def __init__(self, inner: Backend, ledger: Ledger) -> None:
        super().__init__(inner)
        self._ledger = ledger

    async def open(self, request: AnswerRequest) -> Answer:
        try:
            return await self.inner.open(request)
        except TokentrailError as error:
            if request.handling.billed is None:
                self._ledger.refused(request, error)
            raise

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        try:
            return await self.inner.embed(request)
        except TokentrailError as error:
            if request.handling.billed is None:
                self._ledger.refused(request, error)
            raise


class LedgerBackend(ForwardingBackend):
    """See `answer.backend.Backend`. Stands behind whatever decides whether a request may be asked at all."""

    def __init__(self, inner: Backend, ledger: Ledger) -> None:
        super().__init__(inner)
        self._ledger = ledger

    async def open(self, request: AnswerRequest) -> Answer:
        self._ledger.check()
        answer = await self.inner.open(request)
        request.handling.ends_late = request.streamed
        return LedgerAnswer(answer, self._ledger.begin(request), request.handling, self._ledger)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        ledger = self._ledger
        ledger.check()
        entry = ledger.begin(request)
        try:
            made = await self.inner.embed(request)
            entry.billed = request.handling.billed = made.usage
            ledger.end(entry, DONE, status=200)
            await ledger.written(entry)
        except BaseException as error:
            if entry.state != DONE or isinstance(error, LedgerUnavailable):
                ended(ledger, entry, request.handling, error, Usage())
            raise
        return made


class OwnUse(LedgerBackend):
    """Before a backend that the gateway asks for itself: rows under a name that no key has, such as classifier:chat."""

    def __init__(self, inner: Backend, ledger: Ledger, name: str) -> None:
        super().__init__(inner, ledger)
        self._name = name

    async def open(self, request: AnswerRequest) -> Answer:
        identity = msgspec.structs.replace(request.identity, key=self._name)
        # Of its own, whoever made the request: what is billed is noted there.
        return await super().open(
            msgspec.structs.replace(
                request, identity=identity, handling=Handling(trace=request.handling.trace)
            )
        )


class LedgerAnswer(ForwardingAnswer):
    """See `answer.backend.Answer`.

    Billed is of a stream what was handed on to the client, wherever it ends. Of an answer that is sent whole: all of
    it; what had been made of it when the client left; and nothing if it failed, since then nothing was sent.
    """

    def __init__(self, inner: Answer, entry: Entry, handling: Handling, ledger: Ledger) -> None:
        super().__init__(inner)
        self._entry = entry
        self._handling = handling
        self._ledger = ledger
        self._over = False
        self._handed = self._sent = 0
        """Tokens of the answer: those that whoever iterates has, and those that it is done with."""
        self._chunks = self._run()
        if entry.streamed:
            ledger.watch(entry, self._checkpoint)

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        # What came by iteration has been sent, or this would not be called.
        self._sent = self._handed
        usage = self.inner.usage

        def through(chunk: Chunk) -> bool:
            if not take(chunk):
                return False
            self._handed = self._sent = usage.completion_tokens
            if chunk.finish_reason is not None:
                self._note(chunk.finish_reason)
            return True

        self.inner.divert(through)

    async def aclose(self) -> None:
        await self._chunks.aclose()
        await self.inner.aclose()
        if not self._over:  # nobody has iterated
            self._end(self._handling.refusal or asyncio.CancelledError())

    async def _run(self) -> AsyncGenerator[list[Chunk], None]:
        ledger, entry = self._ledger, self._entry
        try:
            first = entry.streamed
            async for chunks in self.inner:
                if first:
                    # Clients know of it from here on, so a crash must not make it forgotten.
                    await ledger.written(entry)
                    first = False
                yield self._passing(chunks)
            if entry.streamed:
                # What was handed to the connection in this turn of the loop is sent at its end, and so before the row
                # says that all of it was.
                await asyncio.sleep(0)
            self._bill(self.inner.usage)
            self._over = True
            self._handling.billed = entry.billed
            ledger.end(entry, DONE, status=200)
            await ledger.written(entry)
        except LedgerUnavailable as error:
            self._over = False
            self._end(error)
            raise
        except BaseException as error:
            if not self._over:
                self._end(error)
            raise

    def _passing(self, chunks: list[Chunk]) -> list[Chunk]:
        self._sent = self._handed
        self._handed = self.inner.usage.completion_tokens
        for chunk in chunks:
            if chunk.finish_reason is not None:
                self._note(chunk.finish_reason)
        return chunks

    def _note(self, finish: str) -> None:
        before = self._entry.finish
        if before is None or _RANK.get(finish, 9) > _RANK.get(before, 9):
            self._entry.finish = finish

    def _checkpoint(self) -> bool:
        """Nothing is billed before something was sent."""
        if self._sent == self._entry.billed.completion_tokens:
            return False
        self._bill(self._so_far())
        return True

    def _so_far(self) -> Usage:
        usage = self.inner.usage
        if not self._sent:
            return Usage()
        return Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=self._sent,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=min(usage.reasoning_tokens, self._sent),
        )

    def _bill(self, usage: Usage) -> None:
        self._entry.billed = msgspec.structs.replace(usage)
        self._entry.first_token = self.inner.timing.first_token

    def _end(self, error: BaseException) -> None:
        self._over = True
        self._sent = self._handed
        left = isinstance(error, (asyncio.CancelledError, GeneratorExit)) and _why(error) == CLIENT_GONE
        self._bill(self._so_far() if self._entry.streamed else self.inner.usage if left else Usage())
        ended(self._ledger, self._entry, self._handling, error, self._entry.billed)


def ended(ledger: Ledger, entry: Entry, handling: Handling, error: BaseException, billed: Usage) -> None:
    """By something else than its answer's end."""
    entry.billed = handling.billed = billed
    if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
        why = _why(error)
        if why == CLIENT_GONE:
            ledger.end(entry, ABORTED, status=_STATUS_GONE, error=why)
        else:
            ledger.end(entry, FAILED, status=503, error=why)
    elif isinstance(error, TokentrailError):
        refused = error.status < 500 and not billed.completion_tokens
        ledger.end(entry, REFUSED if refused else FAILED, status=error.status, error=error.code or error.type)
    else:
        ledger.end(entry, FAILED, status=500, error="internal_error")


def _why(error: BaseException) -> str:
    """Whoever cancels may say why; a client that leaves needs no words."""
    return str(error.args[0]) if error.args and error.args[0] else CLIENT_GONE
