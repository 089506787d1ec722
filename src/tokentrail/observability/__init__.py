"""Metrics for Prometheus, logs for people and programs, traces. None holds a prompt or an answer unless told to.

Recording is plain Python arithmetic; `prometheus_client` is imported at the first scrape only, OpenTelemetry where a
deployment file asks for traces.
"""

from tokentrail.observability.access_log import STDOUT, AccessLog
from tokentrail.observability.histograms import Histogram
from tokentrail.observability.logging import LOG_LEVELS, setup_logging
from tokentrail.observability.metrics import Metrics
from tokentrail.observability.traffic import Traffic

__all__ = ["LOG_LEVELS", "STDOUT", "AccessLog", "Histogram", "Metrics", "Traffic", "setup_logging"]
