"""Who has had how much of the engine: fair shares of tenants by weight.

Each tenant has a counter of the tokens computed for it (of prompts when they are admitted, of answers as they come),
divided by its weight: the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI
2024). Among tenants that wait, the one with the lowest counter is next. One that comes back begins where those who are
being served stand: nobody saves up for later what it did not use.
"""

from __future__ import annotations

_MOST_KEPT = 1024
"""Tenants that have nothing in the engine, and are remembered all the same."""


class Share:
    """One tenant's."""

    __slots__ = ("running", "served", "tenant", "waiting", "weight")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.weight = 1.0
        self.served = 0.0
        """Tokens over weight. Never falls."""
        self.waiting = 0
        self.running = 0


class Shares:
    """All tenants'."""

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}
        self._now = 0.0
        """Virtual time: the counter of whoever was next last. Never falls."""
        self.active = 0
        """Tenants that have running sequences."""

    def of(self, tenant: str, weight: float) -> Share:
        share = self._shares.get(tenant)
        if share is None:
            if len(self._shares) >= _MOST_KEPT:
                self._shares = {name: one for name, one in self._shares.items() if one.waiting or one.running}
            share = self._shares[tenant] = Share(tenant)
        share.weight = weight if weight > 0 else 1.0
        return share

    def waits(self, share: Share) -> None:
        """One more of its sequences waits."""
        if not share.waiting and share.served < self._now:
            share.served = self._now
        share.waiting += 1

    def chosen(self, share: Share) -> None:
        """One of its sequences waits no more, as it was next."""
        share.waiting -= 1
        self._now = max(self._now, share.served)

    def started(self, share: Share) -> None:
        self.active += not share.running
        share.running += 1

    def stopped(self, share: Share) -> None:
        share.running -= 1
        self.active -= not share.running

    def most_waiting(self) -> Share | None:
        """Whose queue is the longest for its weight."""
        return max(self._shares.values(), key=lambda share: share.waiting / share.weight, default=None)
