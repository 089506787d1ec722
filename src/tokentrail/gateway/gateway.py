"""All that a deployment file turns on, around the backend that answers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tokentrail.answer import Backend, Identity, Usage
from tokentrail.gateway.asides import AsideBackend
from tokentrail.gateway.caching import CachingBackend, MemoryStore, RedisStore, ResponseCache, Store
from tokentrail.gateway.config import (
    Deployment,
    FilterSettings,
    LimitsSettings,
    LocalModel,
    RemoteModel,
    load,
)
from tokentrail.gateway.database import open_database
from tokentrail.gateway.filtering import FilteringBackend
from tokentrail.gateway.filters import Rule
from tokentrail.gateway.filters.building import RuleBuilder
from tokentrail.gateway.judges import JudgeRule, JudgingBackend
from tokentrail.gateway.judges.building import build_judges
from tokentrail.gateway.keys import KeyRing
from tokentrail.gateway.keys.ring import pepper_of
from tokentrail.gateway.limits import LimitingBackend, LimitUse, Price, Spent, limits_of
from tokentrail.gateway.limits.memory import MemoryStore as LimitsInMemory
from tokentrail.gateway.limits.shared import RedisStore as LimitsInRedis
from tokentrail.gateway.limits.store import StoreDown
from tokentrail.gateway.observing import Observer, ObservingBackend
from tokentrail.gateway.redis import RedisLink
from tokentrail.gateway.routing import RoutingBackend, check_routes
from tokentrail.gateway.routing.metrics import target_families
from tokentrail.gateway.watching import Watch
from tokentrail.journey import JourneyStore
from tokentrail.observability import STDOUT, AccessLog, Metrics, Traffic
from tokentrail.observability.tracing import Sampler, SpanExporter, sampling_ratio
from tokentrail.protocol import TokentrailError

if TYPE_CHECKING:
    from tokentrail.gateway.database import Database
    from tokentrail.gateway.keys.refreshing import Refresher
    from tokentrail.gateway.keys.store import KeyStore
    from tokentrail.gateway.ledger.ledger import Ledger

log = logging.getLogger(__name__)


class LocalEngines(Protocol):
    """Models of this machine, while a server runs."""

    async def start(self, deployment: Deployment, names: Collection[str]) -> dict[str, Backend]:
        """Have these of a file run. Raises a `TokentrailError` that says why one does not, and then none of them do."""
        ...

    async def stop(self, backend: Backend) -> None: ...


class Gateway:
    """What a file says, checked; and where it is applied."""

    def __init__(self, path: str | Path) -> None:
        """Raises `ConfigError`."""
        self.path = Path(path)
        self._builder = RuleBuilder(self.path.parent)
        self._reloading = threading.Lock()
        self.settings, self.rules = self._read()
        settings = self.settings
        self.keys = None if settings.keys is None else KeyRing(settings.keys, settings.tenants)
        """Who may ask; None: the file says nothing of keys."""
        self.key_refresher: Refresher | None = None
        self._access_log: AccessLog | None = None
        self._filtering: FilteringBackend | None = None
        self._judging: JudgingBackend | None = None
        self._models: Backend | None = None
        """Who answers behind the filters."""
        self._judge_rules: dict[str, tuple[FilterSettings, JudgeRule]] = {}
        self._caching: CachingBackend | None = None
        self._limiting: LimitingBackend | None = None
        self.routing: RoutingBackend | None = None
        """Who answers; None: the file lists no models."""
        self._local = _local_models(settings)
        """As they run."""
        self._engines: LocalEngines | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closers: list[Callable[[], Awaitable[None]]] = []
        """What parts do when all answers have ended, the last one first."""

    @cached_property
    def redis(self) -> RedisLink | None:
        """What the file's parts share of Redis; None: it names none."""
        url = self.settings.redis
        if url is None:
            return None
        link = RedisLink(url)
        self._closers.insert(0, link.aclose)
        return link

    @cached_property
    def database(self) -> Database:
        """What the file's parts share, its tables brought to this version's form. The first use opens it, and blocks.
        Raises a `TokentrailError` that says why it cannot be opened.
        """
        database = open_database(self.settings.database, self.path.parent)

        self._closers.insert(0, _in_thread(database.close))
        return database

    @cached_property
    def key_store(self) -> KeyStore | None:
        """Keys in the database; None: the file turns them off, or says nothing of keys."""
        settings = self.settings.keys
        if settings is None or not settings.stored:
            return None
        # Only now: with it come the database's libraries.
        _ = self.database
        from tokentrail.gateway.keys.store import KeyStore

        return KeyStore(pepper_of(settings))

    @cached_property
    def ledger(self) -> Ledger | None:
        """Where requests are written down; None: the file does not say so. The first use blocks, and raises as
        `database` does.
        """
        if self.settings.ledger is None:
            return None
        database = self.database
        from tokentrail.gateway.ledger.ledger import Ledger
        from tokentrail.gateway.ledger.prices import PriceList

        ledger = Ledger(database, self.settings.ledger, PriceList(self.settings.prices), self.path.parent)
        ledger.open()

        async def close() -> None:
            await asyncio.get_running_loop().run_in_executor(None, ledger.close)

        self._closers.append(close)
        return ledger

    def prepare(self) -> None:
        """What blocks and can be done before there is a backend; its mistakes are told at once. Raises a
        `TokentrailError`.
        """
        if self.settings.database is not None:
            _ = self.database
        if self.key_store is not None:
            from tokentrail.gateway.keys.refreshing import Refresher

            assert self.keys is not None
            self.key_refresher = Refresher(self.keys, self.key_store, self.database)
            self.key_refresher.load()
            self._closers.append(self.key_refresher.aclose)
        if self.settings.ledger is not None:
            _ = self.ledger

    def route(
        self,
        local: Mapping[str, Backend],
        journeys: JourneyStore,
        metrics: Metrics,
        *,
        engines: LocalEngines | None = None,
    ) -> Backend:
        """Who answers, where the file lists models: routes over `local`, the backends of those that run here, and over
        remote upstreams. `engines`: who starts and ends such models when the file changes; None: they are those of the
        start. Raises `ConfigError`.
        """
        self._engines = engines

        def connect(model: RemoteModel) -> Backend:
            from tokentrail.answer.remote.backend import RemoteBackend

            return RemoteBackend(model.target(), journeys=journeys, metrics=metrics)

        def own_use(backend: Backend, name: str) -> Backend:
            if self.ledger is None:
                return backend
            from tokentrail.gateway.ledger.backend import OwnUse

            return OwnUse(backend, self.ledger, name)

        routing = self.routing = RoutingBackend(
            self.settings,
            local,
            journeys,
            connect=connect,
            own_use=own_use,
            let_go=None if engines is None else engines.stop,
        )
        metrics.more.append(lambda: target_families(routing))
        metrics.has_engine = bool(local)
        self._closers.insert(0, routing.aclose)
        return routing

    def around(self, backend: Backend, journeys: JourneyStore, metrics: Metrics) -> Backend:
        """`backend`, behind what the file turns on. After `prepare`, on the event loop."""
        self._loop = asyncio.get_running_loop()
        if self.key_refresher is not None:
            self.key_refresher.start()
        if self.routing is not None:
            self.routing.start()
        cache = self._response_cache(journeys, metrics)
        if cache is not None:
            self._caching = backend = CachingBackend(backend, cache)
            if self.routing is not None:
                self.routing.kept = cache.stale
        self._models = backend
        watch = Watch(self._builder.files_changed, self._reload_lists)
        watch.start()
        self._closers.append(watch.aclose)
        self._judging = backend = JudgingBackend(backend, self._judges(), metrics)
        # What the cache keeps is filtered by the rules of the day.
        self._filtering = FilteringBackend(backend, self.rules, metrics)
        backend = AsideBackend(self._filtering)
        if self.ledger is not None:
            from tokentrail.gateway.ledger.backend import LedgerBackend
            from tokentrail.gateway.ledger.metrics import ledger_families

            metrics.more.append(partial(ledger_families, self.ledger))
            backend = LedgerBackend(backend, self.ledger)
        # Keys that come later may have limits, though the file names none.
        if self.settings.limits is not None or self.keys is not None:
            backend = self._limiting = self._limited(backend, metrics)
        if self.ledger is not None:
            from tokentrail.gateway.ledger.backend import RefusalsBackend

            backend = RefusalsBackend(backend, self.ledger)
        # Outermost: whatever refuses a request is seen.
        return ObservingBackend(backend, journeys, content=self.settings.log_content)

    def observe(self, journeys: JourneyStore, metrics: Metrics, address: tuple[str, int]) -> Observer:
        """Who is told of each request. `address`: host and port of this server. Raises a `TokentrailError`
        where what the file names cannot be written to.
        """
        settings, ledger = self.settings, self.ledger
        labels = settings.metrics
        metrics.traffic = Traffic(tenants=labels.tenants, targets=labels.targets, series=labels.series)
        log = exporter = sampler = None
        if settings.access_log is not None:
            log = self._access_log = self._open_log(settings.access_log)
            metrics.log_lines_dropped = lambda: log.dropped
            self._closers.append(_in_thread(log.close))
        if (tracing := settings.tracing) is not None:
            exporter = SpanExporter(tracing.endpoint, tracing.headers, timeout=tracing.timeout_s)
            sampler = Sampler(sampling_ratio(tracing.sample_ratio))
            metrics.spans_dropped = lambda: exporter.dropped
            self._closers.append(_in_thread(exporter.close))
        return Observer(
            journeys,
            metrics.traffic,
            log,
            exporter,
            sampler=sampler,
            address=address,
            content=settings.log_content,
            turned_away=None if ledger is None else lambda one: ledger.turned_away(*one),
        )

    def _open_log(self, path: str) -> AccessLog:
        try:
            return AccessLog(path if path == STDOUT else str(self.path.parent / path))
        except OSError as error:
            raise TokentrailError(f"access_log: {path} cannot be written: {error.strerror}.") from None

    @property
    def judges(self) -> list[JudgeRule]:
        """Rules that ask somebody else."""
        return [] if self._judging is None else self._judging.rules

    def _judges(self) -> list[JudgeRule]:
        """Judges whose settings are the same stay."""

        def models() -> Backend:
            assert self._models is not None
            if self.ledger is None:
                return self._models
            from tokentrail.gateway.ledger.backend import LedgerBackend

            return LedgerBackend(self._models, self.ledger)

        kept = {name: judge for name, judge in self._judge_rules.items() if judge[0] in self.settings.filters}
        new = [one for one in self.settings.filters if one.name not in kept]
        for judge in build_judges(new, models):
            (settings,) = (one for one in new if one.name == judge.name)
            kept[judge.name] = settings, judge
            self._closers.append(judge.judge.aclose)
        self._judge_rules = kept
        return [kept[one.name][1] for one in self.settings.filters if one.name in kept]

    def _limited(self, backend: Backend, metrics: Metrics) -> LimitingBackend:
        settings = self.settings.limits or LimitsSettings()
        link = self.redis if settings.store == "redis" else None
        store = LimitsInMemory() if link is None else LimitsInRedis(link, settings.on_redis_failure)
        records = None if self.keys is None else limits_of(self.keys)
        limiting = LimitingBackend(
            backend, settings, store, metrics, records=records, price=self._price(), spent=self._spent()
        )
        if self.ledger is not None:
            self.ledger.on_death(lambda died: limiting.died(*died))
        self._closers.append(limiting.aclose)
        return limiting

    def _spent(self) -> Spent | None:
        """What was used before the counts of limits began; None: nobody knows."""
        ledger = self.ledger
        if ledger is None:
            return None
        from tokentrail.gateway.database import DatabaseFailure

        async def spent(tenant: str, key: str | None, since: float) -> tuple[int, int]:
            try:
                return await ledger.billed(tenant, key, since)
            except DatabaseFailure as error:
                log.error("what was used before cannot be looked up: %s", error)
                raise StoreDown from None

        return spent

    async def limit_use(self, tenant: str, key: str = "") -> list[LimitUse]:
        """The limits of a key and its tenant, or of a tenant alone, and how much of them is used."""
        if self._limiting is None:
            return []
        whole_tenant = not key and self.keys is not None
        return await self._limiting.use(Identity(tenant=tenant, key=key), whole_tenant=whole_tenant)

    def _price(self) -> Price | None:
        """What answers cost; None: nothing."""
        if self.settings.prices is None:
            return None
        from tokentrail.gateway.ledger.prices import PriceList

        prices = PriceList(self.settings.prices)

        def price(target: str, model: str, usage: Usage) -> int:
            of = prices.of(target, model).of
            return of(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)

        return price

    def _response_cache(self, journeys: JourneyStore, metrics: Metrics) -> ResponseCache | None:
        settings = self.settings.cache
        if settings is None:
            return None
        limit = settings.memory_mib * 2**20
        link = self.redis if settings.store == "redis" else None
        store: Store = MemoryStore(limit) if link is None else RedisStore(link, limit // 4)
        self._closers.append(store.aclose)
        return ResponseCache(settings, store, journeys, metrics)

    async def aclose(self) -> None:
        """All answers have ended: write down what waits, and let go of connections."""
        for close in reversed(self._closers):
            try:
                await close()
            except Exception as error:  # one part's trouble is not the others'
                log.error("a part of the gateway did not end well: %s", type(error).__name__)
        self._closers.clear()

    def reload(self) -> None:
        """Apply the file's filters, keys, routes and remote targets as they are now. What has begun is not disturbed;
        of a file with mistakes nothing is applied. What else it says is settled when the server starts: whether there
        is a cache, say. From another thread than the event loop's.

        Raises `ConfigError`.
        """
        if self._access_log is not None:
            self._access_log.reopen()
        with self._reloading:
            settings, rules = self._read()
            if self.routing is not None and self._loop is not None:
                applying = self._apply_routes(self.routing, settings)
                asyncio.run_coroutine_threadsafe(applying, self._loop).result()
            self.settings, self.rules = settings, rules
            if self._filtering is not None:
                self._filtering.rules = self.rules
            if self._judging is not None:
                self._judging.rules = self._judges()
        if self.keys is not None and self.settings.keys is not None:
            self.keys.apply(self.settings.keys, self.settings.tenants)
        if self.settings.ledger is not None and self.ledger is not None:
            from tokentrail.gateway.ledger.prices import PriceList

            self.ledger.prices = PriceList(self.settings.prices)
        if self._limiting is not None:
            self._limiting.apply(self.settings.limits or LimitsSettings(), self._price())
        if self._caching is not None:
            self._caching.models_changed()
        log.info("%s is applied: %d filters, %d routes", self.path, len(self.rules), len(settings.routes))

    async def _apply_routes(self, routing: RoutingBackend, settings: Deployment) -> None:
        """What has changed of models of this machine is started first, while the others answer."""
        before, now = self._local, _local_models(settings)
        changed = [
            name for name, model in now.items() if name not in before or not before[name].runs_like(model)
        ]
        engines = self._engines
        if engines is None:
            routing.apply(settings)
            for name in {*changed, *before} - {name for name in now if name not in changed}:
                log.warning(
                    "%s: what the file says now of %s, which runs on this machine, is applied after a restart",
                    self.path,
                    name,
                )
            return
        started = await engines.start(settings, changed) if changed else {}
        try:
            routing.apply(settings, started)
        except BaseException:
            for backend in started.values():
                await engines.stop(backend)
            raise
        self._local = now

    def _read(self) -> tuple[Deployment, list[Rule]]:
        settings = load(self.path)
        check_routes(settings)
        return settings, self._builder.build(settings.filters)

    def _reload_lists(self) -> None:
        """Word lists are other ones now."""
        with self._reloading:
            self.rules = self._builder.build(self.settings.filters)
            if self._filtering is not None:
                self._filtering.rules = self.rules
        log.info("word lists are read again: %d filters", len(self.rules))


def _local_models(settings: Deployment) -> dict[str, LocalModel]:
    return {model.name: model for model in settings.models if isinstance(model, LocalModel)}


def _in_thread(close: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def closing() -> None:
        await asyncio.get_running_loop().run_in_executor(None, close)

    return closing
