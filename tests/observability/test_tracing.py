"""Trace context, sampling, and queues that hold nobody up."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tokentrail.observability import AccessLog
from tokentrail.observability.batching import Batches
from tokentrail.observability.tracing import Sampler, SpanExporter, sampling_ratio, traceparent_of
from tokentrail.protocol import TokentrailError

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_callers_trace_goes_on() -> None:
    context = Sampler(0.0).begin(PARENT)
    assert context.sampled
    assert f"{context.trace_id:032x}" == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert f"{context.parent_id:016x}" == "00f067aa0ba902b7"
    assert context.traceparent == f"00-4bf92f3577b34da6a3ce929d0e0e4736-{context.span_id:016x}-01"
    assert not Sampler(1.0).begin(PARENT[:-1] + b"0").sampled
    assert traceparent_of(PARENT) == PARENT.decode()


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"secret words",
        PARENT.upper(),
        PARENT[:-3],
        b"ff" + PARENT[2:],
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + b"-01",
    ],
)
def test_what_is_no_context_begins_a_trace(header: bytes | None) -> None:
    contexts = [Sampler(1.0).begin(header) for _ in range(2)]
    assert all(one.sampled and one.parent_id is None for one in contexts)
    assert contexts[0].trace_id != contexts[1].trace_id


def test_a_part_of_the_traces_is_kept() -> None:
    kept = sum(Sampler(0.25).begin(None).sampled for _ in range(4000))
    assert 700 < kept < 1300  # eleven standard deviations either way
    assert not any(Sampler(0.0).begin(None).sampled for _ in range(100))


@pytest.mark.parametrize(
    ("given", "environment", "ratio"),
    [
        (None, {}, 1.0),
        (0.5, {"OTEL_TRACES_SAMPLER": "always_off"}, 0.5),
        (None, {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, 0.0),
        (None, {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}, 0.1),
        (None, {"OTEL_TRACES_SAMPLER": "always_on"}, 1.0),
        (1.0, {"OTEL_SDK_DISABLED": "true"}, 0.0),
    ],
)
def test_the_environment_decides_where_the_file_does_not(
    monkeypatch: pytest.MonkeyPatch, given: float | None, environment: dict[str, str], ratio: float
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert sampling_ratio(given) == ratio


def test_a_ratio_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "much")
    with pytest.raises(TokentrailError, match="OTEL_TRACES_SAMPLER_ARG"):
        sampling_ratio(None)


def test_an_exporter_without_traces_imports_nothing() -> None:
    exporter = SpanExporter("http://127.0.0.1:9")
    exporter.close()
    assert exporter.dropped == 0


def test_a_full_queue_drops_and_counts() -> None:
    go = threading.Event()
    done: list[int] = []

    def work(items: list[int]) -> None:
        go.wait(10)
        done.extend(items)

    batches: Batches[int] = Batches(work, name="test", capacity=10, batch=4, interval=0.01)
    for number in range(100):
        batches.put(number)
    assert batches.dropped >= 100 - 10 - 4
    go.set()
    batches.close()
    assert len(done) == 100 - batches.dropped
    assert done == sorted(done)


def test_work_that_fails_is_counted_and_goes_on() -> None:
    done: list[int] = []

    def work(items: list[int]) -> None:
        if 0 in items:
            raise ValueError("secret")
        done.extend(items)

    batches: Batches[int] = Batches(work, name="test", interval=0.01)
    batches.put(0)
    batches.flush()
    batches.put(1)
    batches.close()
    assert (done, batches.dropped) == ([1], 1)


def test_an_access_log_appends_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(2):
        log = AccessLog(str(path))
        for _ in range(50):
            log.put({"number": number, "text": "line\nend"})
        log.close()
    lines = path.read_bytes().splitlines()
    assert lines == [b'{"number":0,"text":"line\\nend"}'] * 50 + [b'{"number":1,"text":"line\\nend"}'] * 50
    with pytest.raises(OSError):
        AccessLog(str(tmp_path / "none" / "log"))
