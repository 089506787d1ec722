"""An answer by whichever target gives one first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tokentrail.answer import Answer, AnswerRequest, Chunk, Timing, Usage
from tokentrail.gateway.routing.plans import Choice, Group, Plan, unavailable
from tokentrail.gateway.routing.targets import Attempt, Target, retryable
from tokentrail.journey import Stage
from tokentrail.protocol import ContextLengthExceeded, SamplingParams

if TYPE_CHECKING:
    from tokentrail.gateway.routing.backend import RoutingBackend

log = logging.getLogger(__name__)

SERVED_BY = "x-tokentrail-served-by"
DEGRADED = "x-tokentrail-degraded"


class _Asked:
    """Who has taken the request."""

    __slots__ = ("answer", "attempt", "began", "chunks", "group", "started")

    def __init__(self, answer: Answer, group: Group, attempt: Attempt | None) -> None:
        """`attempt`: None of an answer that was kept."""
        self.answer = answer
        self.group = group
        self.attempt = attempt
        self.chunks = aiter(answer)
        self.started = time.time()
        self.began = False
        """Something of it has come."""


class RoutedAnswer:
    """See `answer.backend.Answer`. Until the first piece has come, another target may take the first one's place; from
    then on all is its own: what it says of itself is what the target's answer says. Of an answer that is not streamed
    the client has nothing before its end, so a remote one is taken as a whole.
    """

    usage: Usage
    timing: Timing
    seed: int
    fingerprint: str
    prompt_token_ids: list[list[int]]
    sampling: SamplingParams
    num_choices: int

    def __init__(self, backend: RoutingBackend, plan: Plan, main: Group, request: AnswerRequest) -> None:
        self.id, self.model = request.id, request.model
        self.created = int(time.time() if request.received is None else request.received)
        self.headers: dict[str, str] = {}
        self._backend = backend
        self._plan = plan
        self._groups = plan.groups(main)
        self._request = request
        self._session = plan.session(request)
        self._tried: list[Target] = []
        self._current: Answer | None = None
        self._take: Callable[[Chunk], bool] | None = None
        self._settled = False
        self._open: list[_Asked] = []
        """Those that have neither ended nor been given up."""
        self._chunks = self._run()

    def __getattr__(self, name: str) -> Any:
        """What the answer says of itself, as it is now."""
        current = self.__dict__.get("_current")
        if current is None:
            raise AttributeError(name)
        return getattr(current, name)

    # --- the first target -----------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Find a target that takes the request. Raises why none does."""
        self._show(await self._next(None))

    def _show(self, asked: _Asked) -> None:
        self._current = asked.answer
        if asked.attempt is not None:
            handling, name = self._request.handling, asked.attempt.target.name
            handling.target, handling.degraded = name, asked.group.degraded
            self.headers[SERVED_BY] = name
        self.headers.pop(DEGRADED, None)
        if asked.group.degraded:
            self.headers[DEGRADED] = "true"

    async def _next(self, error: Exception | None) -> _Asked:
        """The next one that takes the request. `error`: why the one before did not answer."""
        while True:
            found = self._choose(again=error is not None)
            if found is None:
                break
            try:
                return await self._ask(*found)
            except Exception as refusal:
                if not self._may_go_on(refusal):
                    raise
                error = refusal
        kept = await self._backend.kept_answer(self._request)
        if kept is None:
            raise error or unavailable(self._plan.name, self._groups)
        asked = _Asked(kept, Group((), degraded=True), None)
        self._open.append(asked)
        return asked

    def _choose(self, *, again: bool = False, hedge: bool = False) -> tuple[Choice, Group] | None:
        """Of the first group in which there is one. What is more than one attempt is taken from the budget."""
        groups = self._groups[:1] if hedge else self._groups
        if len(self._tried) >= self._plan.attempts:
            # Enough of these; others may step in for them.
            groups = [g for g in groups if all(one.target not in self._tried for one in g.choices)]
        found = self._pick(groups, hedge)
        if found is None or ((again or hedge) and not self._backend.budget.take()):
            return None
        choice, group = found
        counts = choice.target.counts
        counts.retries += again
        counts.hedges += hedge
        counts.degraded += group.degraded
        return found

    def _pick(self, groups: list[Group], hedge: bool) -> tuple[Choice, Group] | None:
        for group in groups:
            choice = group.pick(self._backend.chance, self._session, self._tried)
            if choice is not None:
                return choice, group
        for group in () if hedge else groups:
            choice = group.waiting(self._tried)
            if choice is not None:
                return choice, group
        return None

    def _may_go_on(self, error: BaseException) -> bool:
        """Another target may be asked after one that ended so."""
        if isinstance(error, ContextLengthExceeded):
            # A target with more room may do; others need not be asked.
            room = _room(self._tried[-1])
            others = {one.target for group in self._groups for one in group.choices} - set(self._tried)
            self._tried += [target for target in others if _room(target) <= room]
            return any(_room(target) > room for target in others)
        return retryable(error)

    async def _ask(self, choice: Choice, group: Group) -> _Asked:
        request = self._request
        self._tried.append(choice.target)
        number = request.handling.attempts = request.handling.attempts + 1
        attempt = choice.target.begin()
        started = time.time()
        try:
            answer = await choice.target.backend.open(
                msgspec.structs.replace(
                    request,
                    id=request.id if number == 1 else f"{request.id}.{number}",
                    request_id=request.request_id or request.id,
                    model=choice.model,
                    session=self._session,
                )
            )
        except Exception as error:
            self._stage(choice.target, started, error)
            attempt.failed(error)
            raise
        except BaseException:
            attempt.left()
            raise
        asked = _Asked(answer, group, attempt)
        self._open.append(asked)
        return asked

    # --- its pieces -----------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        if self._settled and self._current is not None:
            self._current.divert(take)
        else:
            self._take = take

    def sent(self, seconds: float) -> None:
        if self._current is not None:
            self._current.sent(seconds)

    async def aclose(self) -> None:
        await self._chunks.aclose()
        await self._give_up(list(self._open))

    async def _run(self) -> AsyncGenerator[list[Chunk], None]:
        try:
            asked, batch = await self._first()
            self._settle(asked)
            await self._give_up([other for other in self._open if other is not asked])
            try:
                if batch is not None:
                    yield batch
                    if self._take is not None:
                        asked.answer.divert(self._take)
                        self._take = None
                    async for chunks in asked.chunks:
                        yield chunks
            except Exception as error:
                if asked.attempt is not None:
                    asked.attempt.failed(error)
                raise
            self._add_headers(asked)
            if asked.attempt is not None:
                asked.attempt.succeeded()
        finally:
            await self._give_up(list(self._open))

    def _settle(self, asked: _Asked) -> None:
        """This is the one."""
        self._show(asked)
        self._add_headers(asked)
        self._settled = True
        handling = self._request.handling
        self._backend.journeys.handled(
            self._request.id,
            by=asked.answer.id,
            route=handling.route,
            target=handling.target,
            degraded=handling.degraded,
            attempts=handling.attempts,
        )

    def _add_headers(self, asked: _Asked) -> None:
        for name, value in asked.answer.headers.items():
            if asked.attempt is None or name not in (SERVED_BY, DEGRADED):
                self.headers[name] = value

    async def _first(self) -> tuple[_Asked, list[Chunk] | None]:
        """Whoever has the first piece (None: an answer without any), and that. Raises what the last one ended with if
        nobody has.
        """
        waiting = {asyncio.ensure_future(self._piece(self._open[-1]))}
        hedge_after = self._plan.hedge_after
        error: Exception | None = None
        try:
            while True:
                if not waiting:
                    asked = await self._next(error)
                    self._show(asked)
                    waiting = {asyncio.ensure_future(self._piece(asked))}
                done, waiting = await asyncio.wait(
                    waiting, timeout=hedge_after, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    hedge_after = None
                    slow = not any(asked.began for asked in self._open)
                    found = self._choose(hedge=True) if slow else None
                    if found is not None:
                        waiting = {*waiting, asyncio.ensure_future(self._hedge(*found))}
                for task in done:
                    problem = task.exception()
                    if problem is None:
                        waiting |= done - {task}
                        return task.result()
                    if not isinstance(problem, Exception):
                        raise problem
                    error = problem
                if error is not None and not waiting and not self._may_go_on(error):
                    raise error
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)
                for task in waiting:
                    if not task.cancelled():
                        task.exception()  # it has been heard

    async def _hedge(self, choice: Choice, group: Group) -> tuple[_Asked, list[Chunk] | None]:
        return await self._piece(await self._ask(choice, group))

    async def _piece(self, asked: _Asked) -> tuple[_Asked, list[Chunk] | None]:
        """The first piece of one answer, or all of it."""
        attempt = asked.attempt
        began = asked.started
        try:
            batch = await _anext(asked.chunks)
            asked.began, began = True, time.time()
            if (
                batch is not None
                and not self._request.streamed
                and attempt is not None
                and attempt.target.remote
            ):
                batch = list(batch)
                async for more in asked.chunks:
                    batch += more
        except Exception as error:
            self._open.remove(asked)
            if attempt is not None:
                self._stage(attempt.target, asked.started, error)
                attempt.failed(error)
            await asked.answer.aclose()
            raise
        if attempt is not None:
            self._stage(attempt.target, asked.started, None)
            if not asked.group.degraded:
                self._plan.first_tokens.add(began - asked.started)
        return asked, batch

    def _stage(self, target: Target, started: float, problem: BaseException | None) -> None:
        """For traces."""
        facts: dict[str, str | int | float | bool] = {"target": target.name}
        if problem is not None:
            facts["error"] = getattr(problem, "code", None) or type(problem).__name__
        stage = Stage(name="attempt", start=started, end=time.time(), facts=facts)
        self._request.handling.stages.append(stage)

    async def _give_up(self, those: list[_Asked]) -> None:
        """Those that lost, that nobody waits for any more, or that have ended."""
        for asked in those:
            self._open.remove(asked)
            if asked.attempt is not None:
                asked.attempt.left()
            try:
                await asked.answer.aclose()
            except Exception as error:
                log.error("an answer could not be closed: %s", type(error).__name__)


async def _anext(chunks: AsyncIterator[list[Chunk]]) -> list[Chunk] | None:
    return await anext(chunks, None)


def _room(target: Target) -> int:
    """Tokens that its context holds; where that is not known it may be any number."""
    return max((card.max_model_len for card in target.backend.models()), default=0) or 2**62
