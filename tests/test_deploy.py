"""Deployment files: they are what their formats want, and ask for metrics that the server has."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

from tokentrail.gateway.config import load
from tokentrail.gateway.database.database import resolve
from tokentrail.gateway.ledger.metrics import ledger_families
from tokentrail.gateway.routing.metrics import target_families
from tokentrail.gateway.routing.targets import Counts
from tokentrail.observability import Metrics, Traffic, processes
from tokentrail.observability.traffic import Ended
from tokentrail.protocol import EngineStats

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
METRIC = re.compile(r"\btokentrail_\w+")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    metrics = Metrics("m")
    metrics.filter_matches["rule", "input", "mask"] = 1
    metrics.http_response("GET", "/health", 200)
    metrics.replicas = [(True, 0, EngineStats())]
    counts = dict.fromkeys(("active", "ejections", *Counts.__struct_fields__), 0)
    target = SimpleNamespace(name="t", state="closed", share=1.0, **counts)
    routing: Any = SimpleNamespace(targets=lambda: [target])
    metrics.more.append(lambda: target_families(routing))
    writer = SimpleNamespace(rows=0, commits=0, waiting=0)
    metrics.more.append(lambda: ledger_families(SimpleNamespace(writer=writer, failing=False)))  # type: ignore[arg-type]
    metrics.filter_failures["rule"] = metrics.response_cache["hit"] = 1
    metrics.log_lines_dropped = metrics.spans_dropped = lambda: 0
    metrics.traffic = Traffic()
    metrics.traffic.add(Ended("r", "t", "a", "ok", 1.0))
    monkeypatch.setattr(processes, "gpus", lambda: [processes.Gpu(0, 0.5, 1, 2)])
    monkeypatch.setattr(processes, "children_usage", lambda: [processes.Usage(1, 1.0, 1)])
    names = set()
    for line in metrics.render()[0].decode().splitlines():
        if not line.startswith("#"):
            names.add(re.split(r"[{ ]", line, maxsplit=1)[0])
    return names


def expressions() -> list[str]:
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text(encoding="utf-8"))
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((DEPLOY / "grafana/dashboards/tokentrail.json").read_text(encoding="utf-8"))
    return found + [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_alerts_and_panels_ask_for_metrics_that_there_are(known: set[str]) -> None:
    asked = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(asked) > 15
    assert asked - known == set()


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/tokentrail.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_kubernetes_scales_by_a_metric_that_there_is(known: set[str]) -> None:
    text = (DEPLOY / "kubernetes/tokentrail.yaml").read_text(encoding="utf-8")
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(text))
    kinds = {document["kind"]: document for document in documents}
    assert {"Deployment", "Service", "HorizontalPodAutoscaler"} <= set(kinds)
    (metric,) = kinds["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in known
    validate = pytest.importorskip("kubernetes_validate")
    for document in documents:
        validate.validate(document, "1.31", strict=True)


def test_probes_and_units_name_what_there_is() -> None:
    kubernetes = (DEPLOY / "kubernetes/tokentrail.yaml").read_text(encoding="utf-8")
    docker = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    paths = set(re.findall(r"/health[/\w]*", kubernetes + docker))
    assert paths == {"/health/live", "/health/ready"}
    help = subprocess.run(
        ["tokentrail", "serve", "--help"], capture_output=True, text=True, check=True
    ).stdout
    unit = (DEPLOY / "systemd/tokentrail.service").read_text(encoding="utf-8")
    for flag in set(re.findall(r"--[a-z-]{3,}", unit.split("[Service]")[1] + kubernetes)) - {
        "--from-literal"
    }:
        assert flag in help
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists()


def test_the_deployment_file_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTGRES_PASSWORD", "secret")
    settings = load(DEPLOY / "gateway/deploy.yaml")
    assert settings.ledger is not None
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    url = resolve(settings.database or "", DEPLOY)
    assert url.host in compose["services"]
    database = compose["services"][url.host]["environment"]
    assert (url.username, url.database) == (database["POSTGRES_USER"], database["POSTGRES_DB"])


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (apt install prometheus)"
)
def test_promtool_is_content() -> None:
    folder = DEPLOY / "prometheus"
    checked = subprocess.run(
        ["promtool", "check", "config", str(folder / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    metrics, _ = Metrics("m").render()
    linted = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, check=False)
    # Names that follow vLLM's are not all as promtool would have them; what it cannot read would be an error.
    assert linted.returncode in (0, 3), linted.stderr


@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (apt install prometheus)"
)
def test_prometheus_scrapes_a_server_that_answers(tmp_path: Path) -> None:
    sys.path.insert(0, str(DEPLOY.parent / "tests" / "server"))
    from scripted_server import ScriptedServer

    from tokentrail.answer.parts import load_text_parts

    server = ScriptedServer(load_text_parts(None), {}, {}, True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [server.url.removeprefix("http://")]
    shutil.copy(DEPLOY / "prometheus/alerts.yml", tmp_path)
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    prometheus = subprocess.Popen(
        ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
    )  # fmt: skip

    def value(query: str) -> float | None:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query})
        except httpx.HTTPError:
            return None
        if answer.status_code == 503:  # it starts
            return None
        found = answer.json()["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    try:
        deadline = time.monotonic() + 60
        while value('sum(tokentrail_requests_total{outcome="stop"})') != 8:
            if (
                value("up") == 1
                and server.metric('tokentrail_requests_total{model_name="demo",outcome="stop"}') < 8
            ):
                server.chat()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for expression in expressions():
            asked = expression.replace("$__rate_interval", "30s").replace("$model", ".*")
            answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": asked}).json()
            assert answer["status"] == "success", answer
        assert value("sum(rate(tokentrail_time_to_first_token_seconds_count[30s]))")
        rules = httpx.get(f"http://127.0.0.1:{port}/api/v1/rules").json()["data"]["groups"][0]["rules"]
        assert {rule["health"] for rule in rules} == {"ok"}
        assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
    finally:
        prometheus.terminate()
        prometheus.wait(20)
        server.close()
