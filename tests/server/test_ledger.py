"""The ledger behind a server: what clients got is what is written, before they know that it was all."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_server import MODEL, MakeServer, ScriptedServer

from tokentrail.protocol import EngineDead

CONFIG = """
ledger: {{checkpoint_s: 0.02, patience_s: {patience}}}
prices:
  models:
    demo: {{input: 1.5, cached_input: 0.25, output: 4}}
filters: [{{name: secrets, words: [forbidden], action: block}}]
"""

MakeLedgered = Callable[..., "Ledgered"]


class Ledgered:
    """A server with a ledger, and its rows."""

    def __init__(self, server: ScriptedServer, folder: Path) -> None:
        self.server, self.folder = server, folder

    def rows(self, where: str = "1") -> list[sqlite3.Row]:
        with contextlib.closing(sqlite3.connect(self.folder / "tokentrail.db")) as connection:
            connection.row_factory = sqlite3.Row
            return list(connection.execute(f"SELECT * FROM usage_requests WHERE {where} ORDER BY id"))

    def ended(self, count: int = 1) -> list[sqlite3.Row]:
        """Once there are so many of them."""
        for _ in range(2000):
            rows = self.rows("state != 'running'")
            if len(rows) >= count:
                return rows
            time.sleep(0.01)
        raise AssertionError([tuple(row) for row in self.rows()])


@pytest.fixture
def ledgered(make_server: MakeServer, tmp_path: Path) -> MakeLedgered:
    def make(*, patience: float = 20, **options: Any) -> Ledgered:
        file = tmp_path / "deploy.yaml"
        file.write_text(CONFIG.format(patience=patience))
        return Ledgered(make_server(deployment=str(file), **options), tmp_path)

    return make


def test_a_whole_answer(ledgered: MakeLedgered) -> None:
    one = ledgered(api_keys=("k1",))
    before = time.time()
    headers = {"authorization": "Bearer k1", "x-request-id": "mine"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    answer = one.server.post("/v1/chat/completions", body, **headers).json()
    (row,) = one.rows()  # it was there before the answer was
    usage = answer["usage"]
    assert (row["state"], row["status"], row["finish"], row["error"]) == ("done", 200, "length", None)
    assert (row["answer_id"], row["request_id"]) == (answer["id"], "mine")
    assert (row["model"], row["endpoint"], row["streamed"]) == (MODEL, "/v1/chat/completions", 0)
    assert row["prompt_tokens"] == usage["prompt_tokens"]
    assert row["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert row["output_tokens"] == usage["completion_tokens"] == 5
    fresh = row["prompt_tokens"] - row["cached_tokens"]
    assert row["cost"] == 1500 * fresh + 250 * row["cached_tokens"] + 4000 * 5  # billionths
    assert row["currency"] == "USD"
    assert before <= row["received"] / 1e6 <= time.time()
    assert 0 < row["first_token"] <= row["duration"]
    assert len(row["tenant"]) == 32


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_ends_when_its_row_is_there(ledgered: MakeLedgered, n: int) -> None:
    one = ledgered()
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 7, "stream": True, "n": n}
    with one.server.http.stream("POST", f"{one.server.url}/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data:"):
                states = {row["state"] for row in one.rows()}
                assert states, "something was sent that has no row"
                assert states == {"done"} or "[DONE]" not in line
    (row,) = one.rows()
    assert (row["output_tokens"], row["streamed"], row["finish"]) == (7 * n, 1, "length")


def test_a_client_that_leaves_pays_what_it_was_sent(ledgered: MakeLedgered) -> None:
    one = ledgered(engine={"delay": 0.01})
    got = 0
    body = {"model": MODEL, "prompt": "Hi", "stream": True, "ignore_eos": True}
    with one.server.http.stream("POST", f"{one.server.url}/v1/completions", json=body) as response:
        for line in response.iter_lines():
            got += line.startswith("data:")
            if got == 4:
                break
    (row,) = one.ended()
    assert (row["state"], row["status"], row["error"]) == ("aborted", 499, "client_gone")
    assert 4 <= row["output_tokens"] <= one.server.engine.deltas_taken
    assert row["prompt_tokens"] > 0
    assert row["cost"] > 0


def test_what_fails(ledgered: MakeLedgered) -> None:
    one = ledgered(engine={"error": EngineDead("gone"), "error_after": 3})
    assert one.server.complete().status_code == 503
    text = one.server.complete(stream=True).text
    assert text.count('"text"') == 3
    whole, stream = one.ended(2)
    assert (whole["state"], whole["output_tokens"], whole["prompt_tokens"], whole["cost"]) == (
        "failed",
        0,
        0,
        0,
    )
    assert (stream["state"], stream["output_tokens"], stream["error"]) == ("failed", 3, "engine_dead")


def test_what_is_refused(ledgered: MakeLedgered) -> None:
    one = ledgered()
    assert one.server.complete(max_tokens=100_000).status_code == 400
    assert one.server.complete(prompt="this is forbidden here").status_code == 400
    long, blocked = one.ended(2)
    assert (long["state"], long["status"], long["error"]) == ("refused", 400, "context_length_exceeded")
    assert (blocked["state"], blocked["error"], blocked["prompt_tokens"]) == ("refused", "content_filter", 0)


KEYED = """
keys:
  stored: false
  listed:
    - {name: app, tenant: acme, key: sk-app-0123456789abc, endpoints: [chat], models: [demo]}
"""
APP = {"authorization": "Bearer sk-app-0123456789abc"}


def test_what_no_model_was_asked_is_written_down_of_those_who_are_let_in(
    make_server: MakeServer, tmp_path: Path
) -> None:
    (tmp_path / "deploy.yaml").write_text(f"ledger: {{}}\n{KEYED}")
    one = Ledgered(make_server(deployment=str(tmp_path / "deploy.yaml")), tmp_path)
    url, http = one.server.url, one.server.http
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    told = [
        http.post(f"{url}/v1/chat/completions", content=b"{no json", headers=APP),
        http.post(f"{url}/v1/chat/completions", json={**chat, "model": "the secret"}, headers=APP),
        http.post(f"{url}/v1/chat/completions", json={**chat, "temperature": 9}, headers=APP),
        http.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": "Hi"}, headers=APP),
        http.post(f"{url}/v1/messages", json={"model": MODEL}, headers={**APP, "x-request-id": "mine"}),
        http.post(f"{url}/v1/embeddings", content=b"x" * 100, headers=APP),
    ]
    rows = one.ended(len(told))
    assert (
        [row["status"] for row in rows]
        == [reply.status_code for reply in told]
        == [400, 404, 400, 403, 400, 403]
    )
    ids = [row["request_id"] or row["answer_id"] for row in rows]
    assert ids == [reply.headers["x-request-id"] for reply in told]
    assert rows[4]["request_id"] == "mine"
    assert [row["error"] for row in rows[:4]] == [
        "invalid_request_error",
        "model_not_found",
        "invalid_request_error",
        "missing_scope",
    ]
    for row in rows:
        assert (row["state"], row["tenant"], row["key"]) == ("refused", "acme", "app")
        assert row["prompt_tokens"] == row["output_tokens"] == row["cost"] == 0
        assert row["duration"] is not None
    # A name that nobody has may be anything.
    assert not any("secret" in str(value) for row in rows for value in tuple(row))
    assert [row["endpoint"] for row in rows] == [reply.request.url.path for reply in told]
    # Strangers, and what asks no model, have none.
    for path, headers in (("/v1/chat/completions", {}), ("/v1/chat/completions", {"authorization": "Bearer no"}),
                          ("/v1/no/such/path", APP), ("/tokenize", APP), ("/v1/files", APP)):  # fmt: skip
        assert http.post(url + path, content=b"{}", headers=headers).status_code >= 400
    assert http.get(f"{url}/v1/responses/none", headers=APP).status_code >= 400
    assert (
        http.post(f"{url}/v1/chat/completions", json={**chat, "max_tokens": 3}, headers=APP).status_code
        == 200
    )
    assert len(one.rows()) == len(told) + 1


def test_a_flood_of_refusals_does_not_fill_the_disk(make_server: MakeServer, tmp_path: Path) -> None:
    (tmp_path / "deploy.yaml").write_text(f"ledger: {{refused_rows_per_day: 5}}\n{KEYED}")
    one = Ledgered(make_server(deployment=str(tmp_path / "deploy.yaml")), tmp_path)
    for number in range(40):
        body = {"model": f"nobody-{number}", "messages": []}
        assert one.server.post("/v1/chat/completions", body, **APP).status_code in (400, 404)
    for _ in range(1000):
        (line,) = one.server.get("/v1/usage", headers={"authorization": APP["authorization"]}).json()[
            "data"
        ] or [{}]
        if line.get("requests") == 40:
            break
        time.sleep(0.01)
    assert (line["requests"], line["refused"], len(one.rows())) == (40, 40, 5)
    with contextlib.closing(sqlite3.connect(tmp_path / "tokentrail.db")) as connection:
        assert connection.execute("SELECT count(*), sum(requests) FROM usage_days").fetchone() == (1, 35)


def test_embeddings(ledgered: MakeLedgered) -> None:
    one = ledgered()
    usage = one.server.post("/v1/embeddings", {"model": MODEL, "input": ["one two", "three"]}).json()["usage"]
    (row,) = one.rows()
    assert (
        one.server.metric("tokentrail_ledger_failing")
        == one.server.metric("tokentrail_ledger_waiting_rows")
        == 0
    )
    assert (
        one.server.metric("tokentrail_ledger_rows_total")
        >= one.server.metric("tokentrail_ledger_commits_total")
        > 0
    )
    assert (row["state"], row["endpoint"], row["output_tokens"]) == ("done", "/v1/embeddings", 0)
    assert row["prompt_tokens"] == usage["prompt_tokens"] > 0


def test_tenants_see_their_own_usage(make_server: MakeServer, tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(
        "ledger: {}\nprices: {models: {demo: {input: 1, output: 1}}}\n"
        "keys: {listed: [{name: a, tenant: one, key: ka ka ka ka ka ka}, "
        "{name: b, tenant: two, key: kb kb kb kb kb kb, endpoints: [completions]}, "
        "{name: root, tenant: ops, key: kr kr kr kr kr kr, admin: true}]}\n"
    )
    server = make_server(deployment=str(file))

    def get(path: str, key: str) -> httpx.Response:
        return server.get(path, headers={"authorization": "Bearer " + " ".join([key] * 6)})

    for key, tokens in (("ka", 3), ("ka", 4), ("kb", 5)):
        body = {"model": MODEL, "prompt": "Hi", "max_tokens": tokens}
        assert (
            server.post("/v1/completions", body, authorization="Bearer " + " ".join([key] * 6)).status_code
            == 200
        )
    (line,) = get("/v1/usage?by=model", "ka").json()["data"]
    assert (line["model"], line["requests"], line["output_tokens"]) == (MODEL, 2, 7)
    assert "tenant" not in line
    (line,) = get("/v1/usage?by=tenant,key&tenant=one", "kb").json()["data"]
    assert (line["tenant"], line["key"], line["output_tokens"]) == ("two", "b", 5)
    lines = get("/admin/v1/usage?by=tenant", "kr").json()["data"]
    assert [(line["tenant"], line["requests"]) for line in lines] == [("one", 2), ("two", 1)]
    assert float(lines[0]["cost"]) == (lines[0]["prompt_tokens"] + 7) / 1e6
    assert (
        len(get("/admin/v1/usage?by=tenant&tenant=two&from=2020-01-01&to=2100-01-01", "kr").json()["data"])
        == 1
    )
    assert get("/admin/v1/usage", "ka").status_code == 403
    for query, param in (("by=text", "by"), ("from=now", "from"), ("fro=2026-01-01", "fro"),
                         ("from=2026-01-02&to=2026-01-01", "to")):  # fmt: skip
        answer = get(f"/v1/usage?{query}", "ka")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
