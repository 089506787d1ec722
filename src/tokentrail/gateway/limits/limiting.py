"""Limits before a backend: what a request may use is reserved before it runs, and what it used is settled when it ends,
however it ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from tokentrail.answer import (
    Answer,
    AnswerRequest,
    Backend,
    Chunk,
    EmbeddingRequest,
    Embeddings,
    Identity,
    Usage,
    estimated,
)
from tokentrail.gateway.config import LimitsSettings
from tokentrail.gateway.forwarding import ForwardingAnswer, ForwardingBackend
from tokentrail.gateway.limits.meters import Bound, Meters, Records
from tokentrail.gateway.limits.store import Amounts, Kind, Reading, Store, StoreDown, Unit, Verdict
from tokentrail.gateway.limits.telling import LimitUse, headers_of, longest, never, refusal, use_of
from tokentrail.observability import Metrics
from tokentrail.protocol import TokentrailError

Price = Callable[[str, str, Usage], int]
"""What an answer costs, in billionths of the currency: by who answered, and which model was asked for."""
Spent = Callable[[str, "str | None", float], Awaitable["tuple[int, int]"]]
"""Tokens and money of a tenant, or of one of its keys, since some second: what has been billed by now."""

_UNKNOWN = "What this key has used cannot be looked up at the moment. Try again a little later."
_LOOKS = 3
"""At what was billed before: a store may lose what it was just told."""


class LimitsUnknown(TokentrailError):
    """What has been used cannot be looked up, and the deployment file says to refuse then."""

    status = 503
    type = "server_error"
    code = "limits_unavailable"


class LimitingBackend(ForwardingBackend):
    """See `answer.backend.Backend`."""

    def __init__(
        self,
        inner: Backend,
        settings: LimitsSettings,
        store: Store,
        metrics: Metrics,
        *,
        records: Records | None = None,
        price: Price | None = None,
        spent: Spent | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`records`, `spent`: see there; `price`: needed where a limit is of money. Without `spent` a day or a month
        that the store knows nothing of is taken for unused.
        """
        super().__init__(inner)
        self._store = store
        self._spent = spent
        self._looking_up = asyncio.Lock()
        self._metrics = metrics
        self._records = records
        self._clock = clock
        self._full: dict[tuple[str, str], tuple[float, int]] = {}
        """By group and name: windows of requests that are known to be full, until when, at which limit. What is
        counted there is never given back, so nobody needs to be asked, and no prompt read, meanwhile.
        """
        self._open: dict[str, _Reservation] = {}
        self._renewing: asyncio.Task[None] | None = None
        self.apply(settings, price)

    def apply(self, settings: LimitsSettings, price: Price | None) -> None:
        """From now on. What is reserved stays so."""
        self._settings = settings
        self._price = price
        self.meters = Meters(settings, self._records, self._clock)

    async def open(self, request: AnswerRequest) -> Answer:
        bounds = self.meters.of(request.identity)
        if not bounds:
            return await self.inner.open(request)
        self._refuse_if_full(request.identity.tenant, bounds)
        answer = await self.inner.open(request)
        try:
            sampling = request.sampling
            prompt = answer.usage.prompt_tokens or estimated(request.prompts)
            asked = request.default_max_tokens if sampling.max_tokens is None else sampling.max_tokens
            most = self._settings.answer_tokens if asked is None else asked
            reservation = await self._reserve(
                request, bounds, prompt, most * answer.num_choices, fixed=asked is not None
            )
        except BaseException as error:
            if isinstance(error, TokentrailError):
                request.handling.refusal = error
            await answer.aclose()
            raise
        return LimitedAnswer(answer, reservation)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        bounds = self.meters.of(request.identity)
        if not bounds:
            return await self.inner.embed(request)
        self._refuse_if_full(request.identity.tenant, bounds)
        reservation = await self._reserve(request, bounds, estimated(request.prompts), 0, fixed=False)
        used = Usage()
        try:
            made = await self.inner.embed(request)
            used = made.usage
        finally:
            reservation.settle(used)
        made.headers.update(reservation.headers)
        return made

    async def use(self, identity: Identity, *, whole_tenant: bool = False) -> list[LimitUse]:
        """The limits of whoever this is, or only its tenant's, and how much of them is used. Raises `LimitsUnknown`."""
        bounds = [one for one in self.meters.of(identity) if one.of == "tenant" or not whole_tenant]
        try:
            if self._spent is not None and any(bound.quota for bound in bounds):
                await self._store.begin(identity.tenant, await self._billed_before(identity, bounds))
            readings = await self._store.read(identity.tenant, [bound.meter for bound in bounds])
        except StoreDown:
            raise LimitsUnknown(_UNKNOWN) from None
        return [use_of(bound, reading) for bound, reading in zip(bounds, readings, strict=True)]

    async def aclose(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        await self._store.aclose()

    # --- reservations ---

    async def _reserve(
        self,
        request: AnswerRequest | EmbeddingRequest,
        bounds: list[Bound],
        prompt: int,
        answer: int,
        *,
        fixed: bool,
    ) -> _Reservation:
        """`prompt`, `answer`: tokens; those of the answer are the client's own word (`fixed`), or only supposed, and
        then as many as the limits leave. Raises `RateLimited`, `NeverPossible`, `LimitsUnknown`.
        """
        if not fixed:
            room = [bound.meter.limit - prompt for bound in bounds if bound.meter.unit is Unit.TOKENS]
            answer = max(0, min(answer, *room)) if room else answer
        amounts = self.amounts(request, Usage(prompt_tokens=prompt, completion_tokens=answer))
        for bound in bounds:
            if amounts[bound.meter.unit] > bound.meter.limit:
                self._metrics.limited[bound.of, bound.name] += 1
                raise never(bound, amounts, prompt, fixed=fixed)
        group = request.identity.tenant
        try:
            verdict = await self._ask_store(request, bounds, amounts)
        except StoreDown:
            raise LimitsUnknown(_UNKNOWN) from None
        except asyncio.CancelledError:
            # It may have been counted.
            self._store.settle(group, request.id, (1, 0, 0))
            raise
        if not verdict.granted:
            raise self._refusal(group, bounds, verdict.readings, amounts)
        reservation = _Reservation(self, group, request, headers_of(bounds, verdict.readings))
        self._open[request.id] = reservation
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renew())
        return reservation

    async def _ask_store(
        self, request: AnswerRequest | EmbeddingRequest, bounds: list[Bound], amounts: Amounts
    ) -> Verdict:
        """Raises `StoreDown`."""
        group, meters, lease = request.identity.tenant, [one.meter for one in bounds], self._settings.lease_s
        store, surely = self._store, self._spent is not None
        verdict = await store.reserve(group, request.id, meters, amounts, lease, surely=surely)
        if not verdict.unknown:
            return verdict
        async with self._looking_up:
            for _ in range(_LOOKS):
                verdict = await store.reserve(group, request.id, meters, amounts, lease, surely=True)
                if not verdict.unknown:
                    return verdict
                await store.begin(group, await self._billed_before(request.identity, bounds))
        raise StoreDown

    async def _billed_before(self, identity: Identity, bounds: list[Bound]) -> list[tuple[str, int, float]]:
        assert self._spent is not None
        found: dict[tuple[str, float], tuple[int, int]] = {}
        used = []
        for bound in bounds:
            if not bound.quota:
                continue
            key = identity.key if bound.of == "key" else None
            if (bound.of, bound.since) not in found:
                found[bound.of, bound.since] = await self._spent(identity.tenant, key, bound.since)
            tokens, money = found[bound.of, bound.since]
            amount = money if bound.meter.unit is Unit.MONEY else tokens
            used.append((bound.meter.name, amount, bound.meter.until))
        return used

    def died(self, tenant: str, id: str, tokens: int, money: int) -> None:
        """A request whose gateway died was billed for so much: what it had reserved comes free at once."""
        self._store.lapse(tenant, id, (1, tokens, money))

    def _refusal(
        self, group: str, bounds: list[Bound], readings: list[Reading], amounts: Amounts
    ) -> TokentrailError:
        bound, _ = longest(bounds, readings)
        self._metrics.limited[bound.of, bound.name] += 1
        for each, reading in zip(bounds, readings, strict=True):
            meter = each.meter
            if reading.refused and meter.kind is Kind.WINDOW and meter.unit is Unit.REQUESTS:
                self._full[group, meter.name] = self._clock() + reading.wait_ms / 1000, meter.limit
        ends = self.meters.local_time(bound.meter.until) if bound.quota else ""
        return refusal(bounds, readings, amounts, ends)

    def _refuse_if_full(self, group: str, bounds: list[Bound]) -> None:
        """Raises `RateLimited` where that is known without a look."""
        if not self._full:
            return
        now = self._clock()
        for bound in bounds:
            known = self._full.get((group, bound.meter.name))
            if known is None:
                continue
            until, limit = known
            if until <= now or limit != bound.meter.limit:
                del self._full[group, bound.meter.name]
                continue
            self._metrics.limited[bound.of, bound.name] += 1
            left = int((until - now) * 1000) + 1
            reading = Reading(limit, left, left, True)
            raise refusal([bound], [reading], (1, 0, 0))

    def settle(self, reservation: _Reservation, usage: Usage) -> None:
        request = reservation.request
        if self._open.pop(request.id, None) is not None:
            if request.handling.billed is not None:
                usage = request.handling.billed  # the ledger knows best
            self._store.settle(reservation.group, request.id, self.amounts(request, usage))

    def amounts(self, request: AnswerRequest | EmbeddingRequest, usage: Usage) -> Amounts:
        money = 0
        if self._price is not None:
            money = self._price(request.handling.target, request.model, usage)
        return 1, usage.prompt_tokens + usage.completion_tokens, money

    async def _renew(self) -> None:
        """Tell the store now and then which requests still run, as long as there are any."""
        while True:
            await asyncio.sleep(self._settings.lease_s / 3)
            if not self._open:
                return
            groups: dict[str, list[tuple[str, Amounts]]] = {}
            for reservation in self._open.values():
                item = reservation.request.id, reservation.used()
                groups.setdefault(reservation.group, []).append(item)
            for group, used in groups.items():
                try:
                    await self._store.renew(group, used, self._settings.lease_s)
                except StoreDown:
                    break


class _Reservation:
    """One request's, from the moment that it is granted."""

    __slots__ = ("_backend", "group", "headers", "request", "usage")

    def __init__(
        self,
        backend: LimitingBackend,
        group: str,
        request: AnswerRequest | EmbeddingRequest,
        headers: dict[str, str],
    ) -> None:
        self._backend = backend
        self.group = group
        self.request = request
        self.headers = headers
        self.usage = Usage()
        """What it has used so far; an answer's own, which grows."""

    def used(self) -> Amounts:
        return self._backend.amounts(self.request, self.usage)

    def settle(self, usage: Usage) -> None:
        """It has ended. Only the first call counts."""
        self._backend.settle(self, usage)


class LimitedAnswer(ForwardingAnswer):
    """See `answer.backend.Answer`."""

    def __init__(self, inner: Answer, reservation: _Reservation) -> None:
        super().__init__(inner)
        self.headers.update(reservation.headers)
        self._reservation: _Reservation | None = reservation
        self._begun = False
        self._chunks = self._run()

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    async def _run(self) -> AsyncGenerator[list[Chunk], None]:
        reservation = self._reservation
        if reservation is not None:
            # From now on this is what has been used if this process dies.
            reservation.usage = self.usage
        self._begun = True
        try:
            async for chunks in self.inner:
                yield chunks
        except GeneratorExit:
            await self.inner.aclose()  # first, as its usage grows until then
            raise
        except Exception:
            # Refused, or failed before anything came of it: nothing was used.
            self._begun = self.timing.first_token is not None
            raise
        finally:
            self._end()

    async def aclose(self) -> None:
        await self._chunks.aclose()
        await self.inner.aclose()
        self._end()

    def _end(self) -> None:
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.settle(self.usage if self._begun else Usage())
