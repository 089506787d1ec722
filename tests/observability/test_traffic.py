"""Labels are bounded, whatever names come; counters do not fall."""

from __future__ import annotations

from tokentrail.observability import Metrics, Traffic
from tokentrail.observability.traffic import OTHER, Ended, Names


def ended(route: str = "r", target: str = "t", tenant: str = "a", outcome: str = "ok") -> Ended:
    return Ended(route, target, tenant, outcome, 1.0, 0.1, 0.01, 10, 4, 20)


def samples(traffic: Traffic) -> dict[str, float]:
    metrics = Metrics("m")
    metrics.traffic = traffic
    lines = metrics.render()[0].decode().splitlines()
    gateway = [line for line in lines if line.startswith("tokentrail_gateway_")]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in gateway}


def test_requests_are_counted_by_route_target_and_tenant() -> None:
    traffic = Traffic()
    for outcome in ("ok", "ok", "failed"):
        traffic.add(ended(outcome=outcome))
    found = samples(traffic)
    labels = 'route="r",target="t",tenant="a"'
    assert found[f'tokentrail_gateway_requests_total{{outcome="ok",{labels}}}'] == 2
    assert found[f'tokentrail_gateway_requests_total{{outcome="failed",{labels}}}'] == 1
    assert found[f"tokentrail_gateway_prompt_tokens_total{{{labels}}}"] == 30
    assert found[f"tokentrail_gateway_cached_tokens_total{{{labels}}}"] == 12
    assert found[f"tokentrail_gateway_completion_tokens_total{{{labels}}}"] == 60
    assert found[f"tokentrail_gateway_request_latency_seconds_count{{{labels}}}"] == 2
    assert found[f"tokentrail_gateway_time_to_first_token_seconds_count{{{labels}}}"] == 3


def test_a_flood_of_names_makes_no_flood_of_series() -> None:
    traffic = Traffic(tenants=3, targets=2, series=8)
    for number in range(500):
        traffic.add(ended(f'r{number}"}} 1\n', f"t{number}", f"a{number}"))
    found = samples(traffic)
    counts = {
        name: value for name, value in found.items() if name.startswith("tokentrail_gateway_requests_total")
    }
    assert len(counts) <= 8 + 1
    assert sum(counts.values()) == 500
    assert any(f'tenant="{OTHER}"' in name for name in counts)


def test_names_that_nobody_uses_make_room() -> None:
    now = 0.0
    forgotten: list[str] = []
    names = Names(2, forget=forgotten.append, clock=lambda: now)
    assert [names(one) for one in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]
    now = 3700.0
    assert names("a") == "a"
    assert names("c") == "c"
    assert forgotten == ["b"]
    assert [names(one) for one in ("b", "a", "c")] == [OTHER, "a", "c"]
    none = Names(0)
    assert none("a") == OTHER


def test_what_a_name_that_makes_room_has_counted_goes() -> None:
    now = 0.0
    traffic = Traffic(tenants=1, clock=lambda: now)
    traffic.add(ended(tenant="a"))
    traffic.add(ended(tenant="b"))
    now = 4000.0
    traffic.add(ended(tenant="c"))
    tenants = {name.split('tenant="')[1].split('"')[0] for name in samples(traffic)}
    assert tenants == {"c", OTHER}
