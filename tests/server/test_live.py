"""What is told of what happens now, to whom, and in which steps."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted_server import MODEL, MakeServer, ScriptedServer

from tokentrail.observability.metrics import Histogram
from tokentrail.protocol import EngineStats
from tokentrail.server.watching.feed import block_map
from tokentrail.server.watching.rates import Rates, quantile

SSE = {"accept": "text/event-stream"}


def keyed(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **more}


@contextlib.contextmanager
def watching(server: ScriptedServer, query: str = "?interval=0.1", **headers: str) -> Iterator[Iterator[Any]]:
    with server.http.stream("GET", f"{server.url}/v1/live{query}", headers={**SSE, **headers}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))


@contextlib.contextmanager
def asking(server: ScriptedServer, **headers: str) -> Iterator[httpx.Response]:
    """A stream that has begun."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with server.http.stream(
        "POST", server.url + "/v1/chat/completions", json=body, headers=headers
    ) as response:
        lines = response.iter_lines()
        next(line for line in lines if '"content":"' in line and '"content":""' not in line)
        yield response


def until(events: Iterator[Any], wanted: Any) -> Any:
    return next(event for event in events if wanted(event))


def test_one_look(server: ScriptedServer) -> None:
    server.chat()
    live = server.get("/v1/live").json()
    assert live["engine_up"] is True
    assert live["totals"]["steps"] == len(live["steps"]) > 0
    assert live["requests"] == []
    (blocks,) = live["blocks"]
    assert blocks["total"] == len(blocks["cells"]) == 100


@pytest.mark.parametrize("interval", ["0.05", "61", "nan", "x", ""])
def test_intervals_are_checked(server: ScriptedServer, interval: str) -> None:
    refused = server.get("/v1/live", params={"interval": interval})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "interval"


def test_each_key_sees_its_own_and_a_count_of_others(make_server: MakeServer) -> None:
    server = make_server(api_keys=("one", "two"), engine={"delay": 0.01, "script": lambda _: [33] * 400})
    with (
        watching(server, **keyed("one")) as events,
        asking(server, **keyed("one")) as mine,
        asking(server, **keyed("two")),
    ):
        event = until(
            events,
            lambda e: e["others_running"] == 1 and e["requests"] and e["requests"][0]["state"] == "answer",
        )
        (request,) = event["requests"]
        assert request["id"] == mine.headers["x-request-id"]
        assert request["own"] is True
        event = until(events, lambda e: len({bool(step["journeys"]) for step in e["steps"]}) == 2)
        assert {id for step in event["steps"] for id in step["journeys"]} == {request["id"]}
    assert server.get("/v1/live").status_code == 401


def test_events_tell_each_step_once(make_server: MakeServer) -> None:
    server = make_server(engine={"delay": 0.002, "script": lambda _: [33] * 300})
    with watching(server) as events, asking(server):
        numbers: list[int] = []
        while len(numbers) < 30:
            numbers += [step["number"] for step in next(events)["steps"]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_blocks_are_told_when_they_change(make_server: MakeServer) -> None:
    server = make_server(engine={"delay": 0.01, "script": lambda _: [33] * 400})
    with watching(server) as events:
        assert next(events)["blocks"][0]["used"] == 0
        with asking(server):
            assert until(events, lambda e: e["blocks"])["blocks"][0]["used"] == 1
        assert until(events, lambda e: e["blocks"])["blocks"][0]["used"] == 0


def test_watchers_end_when_the_server_does(make_server: MakeServer) -> None:
    server = make_server()
    with watching(server) as events:
        next(events)
        server.call(server.state.drain(1.0))
        assert list(events)[-1]["error"]["code"] == "shutting_down"


def test_watchers_are_bounded(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokentrail.server.watching.routes._MOST_WATCHERS", 1)
    server = make_server()
    with watching(server) as events:
        next(events)
        refused = server.get("/v1/live", headers=SSE)
        assert refused.status_code == 429
        assert "retry-after" in refused.headers


def test_block_maps() -> None:
    rng = random.Random(3)
    states = bytes(rng.choice([0, 1, 2, 3]) for _ in range(10_000))
    told = block_map(states)
    assert (told.free, told.cached, told.used, told.shared) == tuple(states.count(k) for k in range(4))
    assert told.blocks_per_cell == 3
    assert told.cells == "".join("fcus"[max(states[at : at + 3])] for at in range(0, 10_000, 3))
    assert block_map(b"\0\1\2\3").cells == "fcus"


def test_quantiles_are_those_of_evenly_spread_values() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    for k in range(1000):
        histogram.observe(4.0 * (k + 0.5) / 1000)
    for part in (0.1, 0.25, 0.5, 0.9, 0.99):
        assert quantile(histogram.bounds, histogram.counts, part) == pytest.approx(4.0 * part, abs=0.01)
    assert quantile((1.0, 2.0), [0, 0, 5], 0.5) == 2.0


def test_rates_count_over_two_seconds_and_latencies_over_a_minute(server: ScriptedServer) -> None:
    metrics = type(server.state.metrics)()
    rates = Rates(metrics, started=0.0)
    assert rates.look(100.0, EngineStats(generated_tokens=1000)) is None
    metrics.first_token.observe(0.3)
    told = rates.look(104.0, EngineStats(generated_tokens=1100, prompt_tokens=40))
    assert told is not None
    assert (told.window_seconds, told.tokens_per_second, told.prompt_tokens_per_second) == (4.0, 25.0, 10.0)
    assert (told.first_token.count, told.inter_token.count, told.inter_token.p50) == (1, 0, None)
    for second in range(105, 175):
        told = rates.look(float(second), EngineStats(generated_tokens=1100))
    assert told is not None
    assert told.tokens_per_second == 0.0
    assert told.first_token.count == 0, "that was more than a minute ago"
