"""Batches count against their keys' limits and quotas, stand in the ledger, and hold up nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import openai
from scripted_server import MODEL, MakeServer, ScriptedServer

SLOW, QUICK = "sk-slow-0123456789abc", "sk-quick-0123456789ab"


def served(make_server: MakeServer, folder: Path, limits: str, **options: Any) -> ScriptedServer:
    (folder / "deploy.yaml").write_text(
        "ledger: {}\nprices: {models: {'*': {input: 1000, output: 1000}}}\n"
        f"keys:\n  stored: false\n  listed:\n"
        f"    - {{name: slow, tenant: slow, key: {SLOW}, limits: {limits}}}\n"
        f"    - {{name: quick, tenant: quick, key: {QUICK}}}\n"
    )
    return make_server(deployment=str(folder / "deploy.yaml"), files_dir=str(folder / "files"), **options)


def start(client: openai.OpenAI, count: int, **body: Any) -> str:
    lines = "".join(
        json.dumps(
            {
                "custom_id": str(number),
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": MODEL, "prompt": "Hi", "max_tokens": 5, **body},
            }
        )
        + "\n"
        for number in range(count)
    )
    file = client.files.create(file=("in.jsonl", lines.encode()), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    ).id


def ended(client: openai.OpenAI, id: str) -> Any:
    while (batch := client.batches.retrieve(id)).status not in (
        "completed",
        "failed",
        "expired",
        "cancelled",
    ):
        time.sleep(0.02)
    return batch


def results(client: openai.OpenAI, file: str | None) -> list[Any]:
    return [] if file is None else [json.loads(one) for one in client.files.content(file).text.splitlines()]


def rows(folder: Path, where: str) -> list[sqlite3.Row]:
    with contextlib.closing(sqlite3.connect(folder / "tokentrail.db")) as connection:
        connection.row_factory = sqlite3.Row
        return list(connection.execute(f"SELECT * FROM usage_requests WHERE {where}"))


def test_a_batch_is_held_to_its_key_and_written_down(make_server: MakeServer, tmp_path: Path) -> None:
    limits = "{concurrent_requests: 2, tokens_per_day: 1000, money_per_day: 100}"
    server = served(make_server, tmp_path, limits, engine={"delay": 0.005})
    most = 0
    submit = server.engine.submit

    def watched(asked: Any, sink: Any) -> Any:
        nonlocal most
        most = max(most, len(server.engine.running) + 1)
        return submit(asked, sink)

    server.engine.submit = watched  # type: ignore[method-assign]
    client = server.client(SLOW)
    batch = ended(client, start(client, 12))
    assert (batch.status, batch.request_counts.completed) == ("completed", 12)
    assert most <= 2
    told = sum(
        one["response"]["body"]["usage"]["total_tokens"] for one in results(client, batch.output_file_id)
    )
    done = rows(tmp_path, "state = 'done'")
    assert len({row["request_id"] for row in done}) == len(done) == 12
    assert {(row["tenant"], row["key"], row["endpoint"]) for row in done} == {
        ("slow", "slow", "/v1/completions")
    }
    assert sum(row["prompt_tokens"] + row["output_tokens"] for row in done) == told
    # What the batch has used is gone for whoever asks directly.
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 1}
    asked = server.post("/v1/completions", body, authorization=f"Bearer {SLOW}")
    own = asked.json()["usage"]["total_tokens"]
    assert asked.headers["x-ratelimit-remaining-tokens-per-day"] == str(1000 - told - own)
    assert float(asked.headers["x-ratelimit-remaining-money-per-day"]) == (100_000 - told - own) / 1000


def test_who_is_over_its_quota_does_not_hold_up_others(make_server: MakeServer, tmp_path: Path) -> None:
    server = served(make_server, tmp_path, "{tokens_per_day: 30}", batch_concurrency=2)
    slow, quick = server.client(SLOW), server.client(QUICK)
    waiting = start(slow, 40)
    server.call(refused(server))
    other = ended(quick, start(quick, 20))
    assert (other.status, other.request_counts.completed) == ("completed", 20)
    held = slow.batches.retrieve(waiting)
    assert held.status == "in_progress"
    assert held.request_counts.failed == 0
    assert sum(row["prompt_tokens"] + row["output_tokens"] for row in rows(tmp_path, "key = 'slow'")) <= 30
    slow.batches.cancel(waiting)
    cut = ended(slow, waiting)
    assert cut.status == "cancelled"
    assert len(results(slow, cut.output_file_id)) + len(results(slow, cut.error_file_id)) == 40


async def refused(server: ScriptedServer) -> None:
    """Twice as much is refused as may be asked at once."""
    while sum(server.state.metrics.limited.values()) < 2:
        await asyncio.sleep(0.01)
