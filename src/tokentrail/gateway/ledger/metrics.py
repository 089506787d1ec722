"""The ledger's own numbers, made when somebody scrapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokentrail.gateway.ledger.ledger import Ledger

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def ledger_families(ledger: Ledger) -> Iterator[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    writer = ledger.writer
    for name, text, value in (
        ("rows", "Rows written, those of the same request again included", writer.rows),
        ("commits", "Transactions in which they were written", writer.commits),
    ):
        yield CounterMetricFamily(f"tokentrail_ledger_{name}", text, value=value)
    for name, text, value in (
        ("waiting_rows", "Rows that are not in the database yet", writer.waiting),
        ("failing", "1 while the database does not take them", int(ledger.failing)),
    ):
        yield GaugeMetricFamily(f"tokentrail_ledger_{name}", text, value=value)
