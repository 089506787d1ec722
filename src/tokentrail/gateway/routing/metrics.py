"""Targets as Prometheus sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokentrail.gateway.routing.backend import RoutingBackend

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

STATES = ("closed", "half_open", "open", "full", "down")


def target_families(routing: RoutingBackend) -> Iterator[Metric]:
    """Made when somebody scrapes; there are as many series as targets in the file."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    # One that is being replaced has the name of its successor, which is told.
    targets = list({target.name: target for target in reversed(routing.targets())}.values())
    state = GaugeMetricFamily(
        "tokentrail_target_state", "1 for the state that a target is in", labels=["target", "state"]
    )
    for target in targets:
        for name in STATES:
            state.add_metric([target.name, name], float(target.state == name))
    yield state
    for name, text in (
        ("active", "Requests under way at a target"),
        ("share", "Part of its weight that a target has now"),
    ):
        gauge = GaugeMetricFamily(f"tokentrail_target_{name}", text, labels=["target"])
        for target in targets:
            gauge.add_metric([target.name], getattr(target, name))
        yield gauge
    for name, text in (
        ("requests", "Requests sent to a target, second ones included"),
        ("failures", "Requests that a target did not answer to their end"),
        ("full", "Requests that a target refused because its queue was full"),
        ("retries", "Requests sent because another target had failed"),
        ("hedges", "Requests sent because another target took long"),
        ("degraded", "Requests sent though the target is not one of the route's own"),
        ("ejections", "Times that a target was taken out of service"),
    ):
        counter = CounterMetricFamily(f"tokentrail_target_{name}", text, labels=["target"])
        for target in targets:
            counter.add_metric([target.name], getattr(target, name))
        yield counter
