"""What is told about requests: traces to a real receiver of OTLP, a line of JSON each, metrics with bounded labels."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from otlp_receiver import Received, Receiver

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


def deploy(folder: Path, text: str) -> str:
    file = folder / "deploy.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


@pytest.fixture
def observed(receiver: Receiver, make_server: MakeServer, tmp_path: Path) -> ScriptedServer:
    text = f"""
        access_log: access.jsonl
        tracing: {{endpoint: {receiver.url}, headers: {{x-api-key: secret}}}}
        filters: [{{name: f, words: [lazy], action: mask}}, {{name: g, words: [zebra], action: block}}]
    """
    return make_server(deployment=deploy(tmp_path, text), api_keys=("a", "b"))


def flush(server: ScriptedServer) -> None:
    observer = server.state.observer
    assert observer is not None
    for part in (observer.log, observer.exporter):
        if part is not None:
            part.flush()


def lines(server: ScriptedServer, folder: Path, count: int) -> list[dict[str, Any]]:
    """Once there are so many: a request is told when its response is over, just after its client knows."""
    for _ in range(1000):
        flush(server)
        file = folder / "access.jsonl"
        found = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        if len(found) >= count:
            break
        time.sleep(0.01)
    assert len(found) == count
    return [json.loads(line) for line in found]


def spans_of(server: ScriptedServer, receiver: Receiver, root: str) -> dict[str, Received]:
    for _ in range(1000):
        flush(server)
        found = {span.name: span for span in receiver.spans}
        if root in found:
            return found
        time.sleep(0.01)
    raise AssertionError(list(found))


def ask(server: ScriptedServer, prompt: str = "Hi", **body: Any) -> Any:
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **body}
    return server.post("/v1/chat/completions", body, authorization="Bearer a")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_with_one_for_each_stage(
    observed: ScriptedServer, receiver: Receiver, stream: bool
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5, "seed": 7}
    response = observed.post(
        "/v1/chat/completions",
        {**body, "stream": stream},
        authorization="Bearer a",
        traceparent=f"00-{TRACE}-{PARENT}-01",
    )
    assert response.status_code == 200
    spans = spans_of(observed, receiver, f"chat {MODEL}")
    root = spans.pop(f"chat {MODEL}")
    assert (root.trace_id, root.parent_id, root.kind, root.failed) == (TRACE, PARENT, 2, False)
    assert {"received", "filtered", "templated", "tokenized", "queued", "prefill", "decode", "sent"} <= set(
        spans
    )
    assert "filtered out" in spans
    for span in spans.values():
        assert (span.trace_id, span.parent_id, span.kind) == (TRACE, root.span_id, 1)
        assert root.start <= span.start <= span.end <= root.end, span.name
    order = ["received", "filtered", "templated", "tokenized", "queued", "prefill", "decode"]
    assert [spans[name].start for name in order] == sorted(spans[name].start for name in order)
    facts = root.facts
    asked = observed.engine.requests[0]
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tokentrail",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": len(asked.prompt),
        "gen_ai.usage.output_tokens": len(observed.tokens),
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
    }
    assert {name: facts.get(name) for name in expected} == expected
    assert asked.trace == f"00-{TRACE}-{root.span_id}-01"
    assert root.resource["service.name"] == "tokentrail"
    assert receiver.paths == ["/v1/traces"]
    assert receiver.headers[0]["x-api-key"] == "secret"


def test_failures_and_refusals_are_told_by_their_codes(
    observed: ScriptedServer, receiver: Receiver, tmp_path: Path
) -> None:
    assert ask(observed, "a zebra").status_code == 400
    assert ask(observed, model="unknown").status_code == 404
    assert ask(observed, temperature="hot").status_code == 400
    assert observed.chat().status_code == 401
    assert observed.get("/nowhere/else").status_code == 401
    found = lines(observed, tmp_path, 5)
    assert [(one["status"], one["error"]) for one in found] == [
        (400, "content_filter"),
        (404, "model_not_found"),
        (400, "invalid_request_error"),
        (401, "invalid_api_key"),
        (401, "invalid_api_key"),
    ]
    assert found[0]["model"] == MODEL
    assert "model" not in found[1]
    assert [one["path"] for one in found[-2:]] == ["other", "other"]
    codes = sorted(span.facts.get("http.response.status_code", 0) for span in receiver.spans)
    assert [code for code in codes if code] == [400, 400, 401, 401, 404]
    assert not any(span.failed for span in receiver.spans)


def test_a_line_has_what_the_ledger_has(observed: ScriptedServer, tmp_path: Path) -> None:
    response = ask(observed, stream=True, stream_options={"include_usage": True})
    assert response.status_code == 200
    usage = json.loads(response.text.split("data: ")[-2])["usage"]
    (line,) = lines(observed, tmp_path, 1)
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert line["id"] == line["request_id"] or line["request_id"].startswith("req_")
    assert (line["model"], line["finish"]) == (MODEL, ["stop"])
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["completion_tokens"] == usage["completion_tokens"]
    assert 0 < line["first_token_s"] <= line["duration_s"]
    assert len(line["tenant"]) == 32
    assert line["time"].endswith("Z")
    assert not {"prompt", "answer", "error"} & set(line)
    assert observed.get("/health").status_code == 200
    ask(observed)
    assert lines(observed, tmp_path, 2)[1]["path"] == "/v1/chat/completions"


def test_a_stream_that_is_cut_is_told(observed: ScriptedServer, tmp_path: Path) -> None:
    observed.engine.delay = 0.02
    stream = observed.client("a").completions.create(model=MODEL, prompt="x", stream=True)
    next(iter(stream))
    stream.close()
    found = lines(observed, tmp_path, 1)
    assert (found[0]["finish"], found[0]["error"]) == (["cut"], "aborted")
    text = observed.get("/metrics").text
    assert 'tokentrail_gateway_requests_total{outcome="aborted"' in text


def test_a_log_that_was_moved_is_begun_anew(observed: ScriptedServer, tmp_path: Path) -> None:
    ask(observed)
    lines(observed, tmp_path, 1)
    (tmp_path / "access.jsonl").rename(tmp_path / "access.1")
    assert observed.state.gateway is not None
    observed.state.gateway.reload()
    ask(observed)
    lines(observed, tmp_path, 1)
    assert len((tmp_path / "access.1").read_text(encoding="utf-8").splitlines()) == 1
    assert (tmp_path / "access.jsonl").stat().st_mode & 0o007 == 0


def test_content_is_told_where_the_file_says_so(
    receiver: Receiver, make_server: MakeServer, tmp_path: Path
) -> None:
    text = f"""
        access_log: access.jsonl
        tracing: {{endpoint: {receiver.url}/v1/traces}}
        log_content: true
        filters: [{{name: f, words: [secret], action: mask}}]
    """
    server = make_server(deployment=deploy(tmp_path, text))
    assert server.chat(messages=[{"role": "user", "content": "a secret"}]).status_code == 200
    assert server.post("/v1/embeddings", {"model": MODEL, "input": "a vector"}).status_code == 200
    said, embedded = lines(server, tmp_path, 2)
    assert json.loads(said["prompt"])[0][-1]["content"] == "a ******"
    assert said["answer"] == [TEXT]
    assert json.loads(embedded["prompt"]) == ["a vector"]
    root = spans_of(server, receiver, f"chat {MODEL}")[f"chat {MODEL}"]
    asked = json.loads(root.facts["gen_ai.input.messages"])
    assert asked[-1] == {"role": "user", "parts": [{"type": "text", "content": "a ******"}]}
    answered = json.loads(root.facts["gen_ai.output.messages"])
    assert answered[0]["parts"][0]["content"] == TEXT
    assert answered[0]["finish_reason"] == "stop"


def test_a_receiver_that_is_away_holds_nobody_up(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(
        deployment=deploy(tmp_path, "tracing: {endpoint: 'http://127.0.0.1:9', timeout_s: 0.2}")
    )
    assert server.chat().status_code == 200
    while server.metric("tokentrail_spans_dropped_total") < 1:
        flush(server)
    assert server.chat().status_code == 200


def test_metrics_tell_routes_targets_and_tenants_apart(observed: ScriptedServer, tmp_path: Path) -> None:
    ask(observed)
    ask(observed, "a zebra")
    lines(observed, tmp_path, 2)
    text = observed.get("/metrics").text
    labels = f'route="{MODEL}",target="{MODEL}",tenant="'
    counts = [line for line in text.splitlines() if line.startswith("tokentrail_gateway_requests_total")]
    assert len(counts) == 2
    assert all(labels in line for line in counts)
    assert {line.split('outcome="')[1].split('"')[0] for line in counts} == {"ok", "refused"}
    assert f"tokentrail_gateway_request_latency_seconds_count{{{labels}" in text
    assert f"tokentrail_gateway_time_to_first_token_seconds_count{{{labels}" in text
