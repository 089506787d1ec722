"""Metrics for Prometheus and logs for people. Neither ever holds a prompt or an answer.

Recording is plain Python arithmetic; `prometheus_client` is imported at the first scrape only.
"""

from tokentrail.observability.logging import LOG_LEVELS, setup_logging
from tokentrail.observability.metrics import Histogram, Metrics

__all__ = ["LOG_LEVELS", "Histogram", "Metrics", "setup_logging"]
