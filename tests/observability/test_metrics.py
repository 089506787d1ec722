"""What a scrape says, by prometheus_client's own parser."""

from __future__ import annotations

import random
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tokentrail.observability import Histogram, Metrics
from tokentrail.protocol import EngineStats


def scraped(metrics: Metrics) -> dict[str, float]:
    """`name{label="value",…}` → value, without the model's name."""
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "model_name")
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_engine_numbers_are_told_as_they_are() -> None:
    metrics = Metrics("m")
    metrics.stats = EngineStats(
        running=3,
        waiting=2,
        blocks_total=100,
        blocks_used=25,
        prompt_tokens=70,
        generated_tokens=9,
        steps=5,
        drafted_tokens=12,
        accepted_tokens=7,
    )
    found = scraped(metrics)
    assert found["tokentrail_num_requests_running"] == 3
    assert found["tokentrail_num_requests_waiting"] == 2
    assert found["tokentrail_kv_cache_usage_perc"] == 0.25
    assert found["tokentrail_prompt_tokens_total"] == 70
    assert found["tokentrail_generation_tokens_total"] == 9
    assert found["tokentrail_engine_steps_total"] == 5
    assert found["tokentrail_spec_decode_num_draft_tokens_total"] == 12
    assert found["tokentrail_spec_decode_num_accepted_tokens_total"] == 7


def test_what_others_count_is_fetched_for_each_scrape() -> None:
    metrics = Metrics()

    def refresh() -> None:
        metrics.engine_restarts += 1

    metrics.before_scrape.append(refresh)
    assert scraped(metrics)["tokentrail_engine_restarts_total"] == 1
    assert scraped(metrics)["tokentrail_engine_restarts_total"] == 2


def test_a_histogram_counts_as_prometheus_defines_it() -> None:
    rng = random.Random(2)
    histogram = Histogram((0.1, 1.0, 10.0))
    values = [0.1, 1.0, 10.0, *(rng.uniform(0, 20) for _ in range(500))]
    for value in values:
        histogram.observe(value)
    assert histogram.buckets() == [
        ("0.1", sum(v <= 0.1 for v in values)),
        ("1", sum(v <= 1 for v in values)),
        ("10", sum(v <= 10 for v in values)),
        ("+Inf", len(values)),
    ]
    assert histogram.sum == pytest.approx(sum(values))
    histogram.observe(0.5, 4)
    assert histogram.buckets()[-1] == ("+Inf", len(values) + 4)


def test_labels_from_outside_cannot_break_the_format() -> None:
    metrics = Metrics('a "model"\nwith \\ everything')
    metrics.http_response("POST", "/v1/completions", 200)
    metrics.requests["stop"] += 2
    found = scraped(metrics)
    assert found["tokentrail_http_requests_total{method=POST,path=/v1/completions,status=200}"] == 1
    assert found["tokentrail_requests_total{outcome=stop}"] == 2


def test_an_observation_is_cheap() -> None:
    histogram = Metrics().inter_token
    rounds = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(1000):
            histogram.observe(0.02)
        rounds.append((time.perf_counter() - start) / 1000)
    assert min(rounds) < 3e-6
