"""All that a deployment file turns on, around the backend that answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path

from tokentrail.answer import Backend
from tokentrail.gateway.caching import CachingBackend, ResponseCache
from tokentrail.gateway.config import Deployment, load
from tokentrail.gateway.filtering import FilteringBackend
from tokentrail.gateway.filters import Rule
from tokentrail.gateway.filters.building import build_rules
from tokentrail.gateway.redis import RedisLink
from tokentrail.journey import JourneyStore
from tokentrail.observability import Metrics

log = logging.getLogger(__name__)


class Gateway:
    """What a file says, checked; and where it is applied."""

    def __init__(self, path: str | Path) -> None:
        """Raises `ConfigError`."""
        self.path = Path(path)
        self.settings, self.rules = self._read()
        self._filtering: FilteringBackend | None = None
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

    def around(self, backend: Backend, journeys: JourneyStore, metrics: Metrics) -> Backend:
        """`backend`, behind what the file turns on."""
        if self.settings.cache is not None:
            backend = CachingBackend(backend, ResponseCache(self.settings.cache), journeys, metrics)
        # Outermost: what the cache keeps is filtered by the rules of the day.
        self._filtering = FilteringBackend(backend, self.rules, metrics)
        return self._filtering

    async def aclose(self) -> None:
        """All answers have ended: write down what waits, and let go of connections."""
        for close in reversed(self._closers):
            try:
                await close()
            except Exception as error:  # one part's trouble is not the others'
                log.error("a part of the gateway did not end well: %s", type(error).__name__)
        self._closers.clear()

    def reload(self) -> None:
        """Apply the file's filters as they are now. What has begun is not disturbed; of a file with mistakes nothing is
        applied. Whether there is a cache is settled when the server starts.

        Raises `ConfigError`.
        """
        self.settings, self.rules = self._read()
        if self._filtering is not None:
            self._filtering.rules = self.rules
        log.info("%s is applied: %d filters", self.path, len(self.rules))

    def _read(self) -> tuple[Deployment, list[Rule]]:
        settings = load(self.path)
        return settings, build_rules(settings.filters, self.path.parent)
