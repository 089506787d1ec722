"""All that a deployment file turns on, around the backend that answers."""

from __future__ import annotations

import logging
from pathlib import Path

from tokentrail.answer import Backend
from tokentrail.gateway.caching import CachingBackend, ResponseCache
from tokentrail.gateway.config import Deployment, load
from tokentrail.gateway.filtering import FilteringBackend
from tokentrail.gateway.filters import Rule
from tokentrail.gateway.filters.building import build_rules
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

    def around(self, backend: Backend, journeys: JourneyStore, metrics: Metrics) -> Backend:
        """`backend`, behind what the file turns on."""
        if self.settings.cache is not None:
            backend = CachingBackend(backend, ResponseCache(self.settings.cache), journeys, metrics)
        # Outermost: what the cache keeps is filtered by the rules of the day.
        self._filtering = FilteringBackend(backend, self.rules, metrics)
        return self._filtering

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
