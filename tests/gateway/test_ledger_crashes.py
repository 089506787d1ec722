"""A ledger whose process is killed anywhere: nothing that a client was told is lost, doubled, or billed above what it
was sent. With real databases; clients are at the other end of a pipe.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_child import PROMPT, Plan, child, ledger_of
from sqlalchemy import select

from tokentrail.gateway.database import Database, open_database
from tokentrail.gateway.ledger.reports import UsageQuestion, usage
from tokentrail.gateway.ledger.tables import requests

PLANS = st.lists(
    st.builds(
        Plan,
        tokens=st.integers(1, 30),
        streamed=st.booleans(),
        leaves_after=st.none() | st.integers(1, 20),
        refused=st.integers(0, 9).map(lambda n: n == 0),
    ),
    min_size=1,
    max_size=8,
)


def run(url: str, folder: Path, plans: dict[str, Plan], events: int | None) -> list[tuple[str, str]]:
    """What clients have got. `events`: the process is killed when so much has come of it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(url, folder, plans, write)
    os.close(write)
    data = b""
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while part := pipe.read(4096):
            data += part
            if events is not None and data.count(b"\n") >= events:
                os.kill(pid, signal.SIGKILL)
                events = None
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    lines = data.decode().splitlines()
    return [(line.split()[0], line.split()[1]) for line in lines]


def rows_of(database: Database) -> dict[str, Any]:
    with database.read() as connection:
        rows = connection.execute(select(requests)).mappings().all()
    found = {row["answer_id"]: row for row in rows}
    assert len(found) == len(rows), "a request has two rows"
    return found


def check(database: Database, plans: dict[str, Plan], got: list[tuple[str, str]]) -> None:
    rows = rows_of(database)
    for name, plan in plans.items():
        words = [word for one, word in got if one == name]
        tokens = sum(int(word) for word in words if word != "end")
        row = rows.get(name)
        if not words and row is None:
            continue  # nobody was told anything
        assert row is not None, f"{name}: {words} was sent, and nothing is written"
        billed = row["output_tokens"]
        if plan.refused:
            assert (row["state"], billed, row["prompt_tokens"]) == ("refused", 0, 0)
        elif "end" in words:
            assert (row["state"], billed, row["prompt_tokens"]) == ("done", plan.tokens, PROMPT)
            assert tokens == plan.tokens
        elif row["state"] == "done":
            # Killed between its last row and its last word.
            assert billed == plan.tokens
        elif row["state"] == "aborted":
            assert billed == tokens
        else:
            assert row["state"] == "interrupted"
            assert billed <= tokens, "billed above what was sent"
            assert (row["prompt_tokens"] > 0) == (billed > 0)
    with database.read() as connection:
        (line,) = usage(connection, UsageQuestion(by=())) or [None]
    if line is not None:
        assert line.output_tokens == sum(row["output_tokens"] for row in rows.values())
        assert line.requests == len(rows)
        assert line.running == 0


def crashes(url: str, folder: Path, rounds: list[tuple[list[Plan], int | None]]) -> None:
    database = open_database(url, folder)
    plans: dict[str, Plan] = {}
    got: list[tuple[str, str]] = []
    for number, (some, events) in enumerate(rounds):
        named = {f"{number}-{at}": plan for at, plan in enumerate(some)}
        plans |= named
        got += run(url, folder, named, events)
    for _ in range(2):  # the second start finds nothing to do
        ledger = ledger_of(url, folder)
        ledger.open()
        before = rows_of(database)
        check(database, plans, got)
        ledger.close()
    assert rows_of(database) == before
    database.close()


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(rounds=st.lists(st.tuples(PLANS, st.none() | st.integers(1, 40)), min_size=1, max_size=3))
def test_killed_anywhere(tmp_path_factory: pytest.TempPathFactory, rounds: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    crashes(f"sqlite:///{folder / 'l.db'}", folder, rounds)


def test_killed_anywhere_with_postgresql(postgres_url: str, tmp_path: Path) -> None:
    plans = [Plan(20, streamed, leaves) for streamed in (True, False) for leaves in (None, 3, 12)] * 3
    crashes(postgres_url, tmp_path, [(plans, 1), (plans, 25), (plans, 60), (plans, None)])
