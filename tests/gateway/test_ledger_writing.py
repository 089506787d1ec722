"""The ledger's own parts: prices, group commits, databases that fail, sums of days, reports."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_child import FakeBackend, Plan, request_of
from sqlalchemy import func, select, text, update
from typer.testing import CliRunner

from tokentrail.answer import Usage
from tokentrail.cli.app import app
from tokentrail.gateway.config import ConfigError, LedgerSettings, parse
from tokentrail.gateway.database import Database
from tokentrail.gateway.ledger import store
from tokentrail.gateway.ledger.backend import LedgerAnswer, LedgerBackend
from tokentrail.gateway.ledger.entry import Entry
from tokentrail.gateway.ledger.ledger import Ledger, LedgerUnavailable
from tokentrail.gateway.ledger.prices import FREE, Price, PriceList, written
from tokentrail.gateway.ledger.reports import UsageLine, UsageQuestion, usage
from tokentrail.gateway.ledger.retention import DAY, sweep
from tokentrail.gateway.ledger.tables import days, instances, requests
from tokentrail.protocol import Overloaded

PRICES = """
prices:
  currency: CNY
  models:
    small: {input: 0.15, cached_input: 0.0375, output: 0.6}
    big: {input: 2, output: 8}
    "*": {input: 1}
"""


# --- prices ----------------------------------------------------------------------------------------


def test_prices_are_exact() -> None:
    prices = PriceList(parse(PRICES).prices)
    assert prices.of("small", "x") == Price(150_000, 37_500, 600_000)
    assert prices.of("", "big") == Price(2_000_000, 2_000_000, 8_000_000)
    assert prices.of("other", "other") == Price(1_000_000, 1_000_000, 0)
    assert PriceList(None).of("small", "small") == FREE
    # 3 × 0.15 + 7 × 0.0375 + 5 × 0.6 = 3.7125 of a millionth
    assert prices.of("small", "").of(10, 7, 5) == 3713
    assert prices.of("big", "").of(1_000_000, 0, 1_000_000) == 10_000_000_000


@given(st.integers(-(10**18), 10**18))
def test_amounts_are_written_with_all_their_digits(amount: int) -> None:
    from decimal import Decimal

    assert Decimal(written(amount)) * 10**9 == amount


@pytest.mark.parametrize("price", ["-1", "0.1234567", "1e9", "x"])
def test_prices_that_are_none(price: str) -> None:
    with pytest.raises(ConfigError, match=r"deploy\.yaml:3: prices\.models\.m\.input: (must|Decimal)"):
        parse(f"prices:\n  models:\n    m: {{input: {price}}}")


# --- writing ---------------------------------------------------------------------------------------


class Opened:
    """A ledger on a database that waits for nobody."""

    def __init__(self, folder: Path, url: str | None = None, **settings: Any) -> None:
        self.folder = folder
        self.database = Database(url or f"sqlite:///{folder / 'l.db'}", wait=0.02)
        self.database.migrate()
        self.settings = LedgerSettings(**settings)
        self.ledger = Ledger(self.database, self.settings, PriceList(parse(PRICES).prices), folder)
        self.ledger.open()

    def begin(self, name: str, tokens: int = 0) -> Entry:
        entry = self.ledger.begin(request_of(name, Plan(tokens, False, None)))
        entry.billed = Usage(prompt_tokens=10, completion_tokens=tokens)
        return entry

    async def done(self, name: str, tokens: int = 5) -> None:
        entry = self.begin(name, tokens)
        self.ledger.end(entry, "done", status=200)
        await self.ledger.written(entry)

    def rows(self) -> dict[str, Any]:
        with self.database.read() as connection:
            rows = connection.execute(select(requests)).mappings().all()
        return {row["answer_id"]: row for row in rows}

    def close(self) -> None:
        self.ledger.close()
        self.database.close()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else can write."""
    with contextlib.closing(sqlite3.connect(folder / "l.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


async def until(true: Any) -> None:
    for _ in range(5000):
        if true():
            return
        await asyncio.sleep(0.002)
    raise AssertionError


async def test_requests_of_a_moment_share_a_transaction(tmp_path: Path) -> None:
    one = Opened(tmp_path)
    started, gate = threading.Event(), threading.Event()
    write = store.write_rows

    def slow(connection: Any, rows: Any) -> None:
        started.set()
        assert gate.wait(20)
        write(connection, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "write_rows", slow)
        first = asyncio.ensure_future(one.done("first"))
        await asyncio.get_running_loop().run_in_executor(None, started.wait)
        others = [asyncio.ensure_future(one.done(f"{n}")) for n in range(250)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *others)
    assert one.ledger.writer.commits <= 4
    assert len(one.rows()) == 251
    one.close()


async def test_refusing_while_the_database_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = Opened(tmp_path, patience_s=0.2)
    await one.done("before")
    caught = one.begin("caught", 7)
    with locked(tmp_path):
        one.ledger.end(caught, "done", status=200)
        with pytest.raises(LedgerUnavailable):
            await one.ledger.written(caught)
        with pytest.raises(LedgerUnavailable, match="cannot be recorded at the moment"):
            one.ledger.check()
        for _ in range(100):
            one.ledger.refused(request_of("no", Plan(0, False, None)), LedgerUnavailable())
        one.ledger.end(caught, "failed", status=503, error="ledger_unavailable")
    await until(lambda: not one.ledger.writer.failing)
    one.ledger.check()
    await one.done("after")
    rows = one.rows()
    assert {name: row["state"] for name, row in rows.items()} == {
        "before": "done",
        "caught": "failed",
        "after": "done",
    }
    await until(lambda: counted(one.database) == 100)
    assert [record.getMessage().split(":")[0] for record in caplog.records if "ledger" in record.name] == [
        "the ledger cannot be written", "the ledger is written again",
    ]  # fmt: skip
    one.close()


def counted(database: Database) -> int:
    with database.read() as connection:
        return int(connection.scalar(select(func.sum(days.c.requests))) or 0)


async def test_spooling_while_the_database_fails(tmp_path: Path) -> None:
    one = Opened(tmp_path, on_failure="spool")
    open_before = one.begin("open before")
    with locked(tmp_path):
        for n in range(20):
            await asyncio.wait_for(one.done(f"{n}", n), 20)
        (file,) = tmp_path.glob("*.spool")
        assert file.stat().st_mode & 0o777 == 0o600
        one.ledger.check()
    await until(lambda: not one.ledger.writer.failing)
    assert not file.exists()
    rows = one.rows()
    assert [rows[f"{n}"]["output_tokens"] for n in range(20)] == list(range(20))
    one.ledger.end(open_before, "done", status=200)
    await one.ledger.written(open_before)
    one.close()
    assert one.rows()["open before"]["state"] == "done"


@pytest.mark.parametrize("policy", ["refuse", "spool"])
async def test_ending_while_the_database_fails(tmp_path: Path, policy: str) -> None:
    one = Opened(tmp_path, on_failure=policy, lease_s=5)
    entry, running = one.begin("one", 9), one.begin("running", 3)
    with locked(tmp_path):
        one.ledger.end(entry, "done", status=200)
        await asyncio.get_running_loop().run_in_executor(None, one.close)
        assert list(tmp_path.glob("*.spool"))
    assert running.state == "running"
    again = Opened(tmp_path)
    rows = again.rows()
    assert (rows["one"]["state"], rows["one"]["output_tokens"]) == ("done", 9)
    assert (rows["running"]["state"], rows["running"]["error"]) == ("interrupted", "server_died")
    assert not list(tmp_path.glob("*.spool"))
    again.close()


async def test_a_row_that_the_database_refuses_keeps_no_other_out(tmp_path: Path) -> None:
    one = Opened(tmp_path)
    with one.database.write() as connection:
        connection.execute(text("CREATE TRIGGER t BEFORE INSERT ON usage_requests WHEN NEW.answer_id = 'bad' "
                                "BEGIN SELECT RAISE(ABORT, 'no'); END"))  # fmt: skip
    await asyncio.gather(*(one.done(name) for name in ("a", "bad", "b")))
    assert sorted(one.rows()) == ["a", "b"]
    assert b'"bad"' in (tmp_path / f"ledger-{one.ledger.instance}.refused").read_bytes()
    one.close()


async def test_what_has_ended_stays_as_it_is(tmp_path: Path) -> None:
    one = Opened(tmp_path)

    async def write(state: str, tokens: int, error: str | None = None) -> tuple[str, int]:
        entry.billed = Usage(completion_tokens=tokens)
        entry.state, entry.error = state, error
        await one.ledger.writer.wait(one.ledger.writer.put(entry.row(), 0))
        (row,) = one.rows().values()
        return row["state"], row["output_tokens"]

    entry = one.begin("one")
    assert await write("running", 3) == ("running", 3)
    assert await write("interrupted", 2) == ("interrupted", 2)
    assert await write("running", 4) == ("running", 4), "it was not dead"
    assert await write("done", 5) == ("done", 5)
    assert await write("running", 4) == ("done", 5)
    assert await write("interrupted", 4) == ("done", 5)
    assert await write("failed", 0, "ledger_unavailable") == ("failed", 0), "its client was told so"
    one.close()


async def test_a_checkpoint_counts_what_was_sent_alone(tmp_path: Path) -> None:
    one = Opened(tmp_path)
    plan = Plan(12, True, None)
    answer = await LedgerBackend(FakeBackend({"one": plan}), one.ledger).open(request_of("one", plan))  # type: ignore[arg-type]
    assert isinstance(answer, LedgerAnswer)
    got = 0
    async for chunks in answer:
        answer._checkpoint()
        assert answer._entry.billed.completion_tokens == got, "these have not been sent yet"
        got += sum(len(chunk.token_ids) for chunk in chunks)
    assert answer._entry.billed.completion_tokens == got == 12
    one.close()


async def test_a_flood_of_refusals_is_counted(tmp_path: Path) -> None:
    one = Opened(tmp_path, refused_rows_per_s=3)
    for n in range(5000):
        one.ledger.refused(request_of(f"{n}", Plan(0, False, None)), Overloaded("full", retry_after=1))
    await until(lambda: counted(one.database) + len(one.rows()) == 5000)
    assert 3 <= len(one.rows()) < 200
    with one.database.read() as connection:
        (line,) = usage(connection, UsageQuestion(by=("state",)))
    assert (line.requests, line.refused, line.cost) == (5000, 5000, "0.00")
    one.close()


async def test_two_gateways_and_one_that_falls_silent(tmp_path: Path, postgres_url: str) -> None:
    one, two = Opened(tmp_path, postgres_url), Opened(tmp_path, postgres_url)
    await asyncio.gather(
        *(gateway.done(f"{gateway.ledger.instance}-{n}") for n in range(30) for gateway in (one, two))
    )
    silent = one.begin("silent", 4)
    one.ledger._write(silent, 0)
    await one.ledger.written(silent)

    def wake(seconds: float) -> int:
        with two.database.write() as connection:
            before = store.now(connection) - int(seconds * 1e6)
            connection.execute(
                update(instances)
                .where(instances.c.id == one.ledger.instance)
                .values(alive=before, host="elsewhere")
            )
            return len(store.bill_the_dead(connection, two.ledger.instance, 30))

    assert wake(29) == 0
    assert (wake(31), wake(31)) == (1, 0)
    assert two.rows()["silent"]["state"] == "interrupted"
    # It was asleep, and tells the truth now.
    one.ledger.end(silent, "done", status=200)
    await one.ledger.written(silent)
    rows = two.rows()
    assert (len(rows), rows["silent"]["state"], rows["silent"]["output_tokens"]) == (61, "done", 4)
    one.close()
    two.close()


# --- sums and reports ------------------------------------------------------------------------------

TODAY = int(time.time() * 1e6) // DAY


def fill(database: Database) -> list[dict[str, Any]]:
    """Requests of several days, some of which still run."""
    rows = []
    for n in range(400):
        day = TODAY - n % 8
        state = ("done", "aborted", "refused", "running")[n % 5 % 4]
        rows.append(
            {
                "id": n, "instance": 1, "state": state, "received": day * DAY + n * 1000, "answer_id": f"{n}",
                "tenant": f"t{n % 2}", "key": f"k{n % 3}", "route": "", "target": "", "model": f"m{n % 4}",
                "endpoint": "", "streamed": True, "degraded": False, "attempts": 0, "prompt_tokens": n,
                "cached_tokens": n // 2, "output_tokens": 2 * n, "reasoning_tokens": 1, "cost": 10**15 + n,
                "currency": "USD",
            }
        )  # fmt: skip
    with database.write() as connection:
        connection.execute(instances.insert().values(id=1, host="h", pid=1, started=1, alive=2**60))
        connection.execute(requests.insert(), rows)
    return rows


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path / 'tokentrail.db'}" if request.param == "sqlite" else ""
    made = Database(url or request.getfixturevalue("postgres_url"))
    made.migrate()
    yield made
    made.close()


def test_days_keep_the_sums_of_rows_that_are_dropped(database: Database) -> None:
    rows = fill(database)

    def report(*by: str, **options: Any) -> list[UsageLine]:
        with database.read() as connection:
            return usage(connection, UsageQuestion(by=by, **options))

    questions: list[dict[str, Any]] = [
        {}, {"tenant": "t1"}, {"key": "k2", "model": "m1"},
        {"since": datetime.date(1970, 1, 1) + datetime.timedelta(days=TODAY - 3)},
        {"until": datetime.date(1970, 1, 1) + datetime.timedelta(days=TODAY - 3)},
    ]  # fmt: skip
    before = [
        report(*by, **options) for options in questions for by in ((), ("day",), ("state", "model", "day"))
    ]
    (line,) = before[0]
    assert line.requests == 400
    assert line.output_tokens == sum(row["output_tokens"] for row in rows)
    assert line.cost == written(sum(row["cost"] for row in rows))
    assert len(before[1]) == 8
    # Two gateways at once, a little at a time.
    threads = [
        threading.Thread(target=lambda: [sweep(database, 2, rows=17) for _ in range(20)]) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    while sweep(database, 2, rows=17):
        pass
    with database.read() as connection:
        left = connection.execute(select(requests.c.received, requests.c.state)).all()
    assert all(one.received >= (TODAY - 2) * DAY or one.state == "running" for one in left)
    assert len(left) < 250
    after = [
        report(*by, **options) for options in questions for by in ((), ("day",), ("state", "model", "day"))
    ]
    assert after == before


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text("ledger: {}")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["usage", "--config", str(file), *arguments])

    assert "no server has made it yet" in str(run().exception)
    database = Database("sqlite:///tokentrail.db", tmp_path)
    database.migrate()
    assert run().output == "Nothing was used.\n"
    fill(database)
    lines = json.loads(run("--by", "tenant", "--by", "model", "--format", "json").output)
    assert [(line["tenant"], line["model"]) for line in lines] == [
        ("t0", "m0"), ("t0", "m2"), ("t1", "m1"), ("t1", "m3"),
    ]  # fmt: skip
    assert sum(line["prompt_tokens"] for line in lines) == sum(range(400))
    table = run("--tenant", "t1", "--by", "key").output.splitlines()
    assert table[0].split()[:3] == ["key", "requests", "refused"]
    assert [line.split()[0] for line in table[1:]] == ["k0", "k1", "k2"]
    sheet = run("--format", "csv", "--from", "2030-01-01").output.splitlines()
    assert sheet == [
        "day,requests,refused,prompt_tokens,cached_tokens,output_tokens,reasoning_tokens,cost,currency"
    ]
    assert (
        str(run("--from", "yesterday").exception)
        == "--from must be a day such as 2026-12-31, not 'yesterday'."
    )
    assert "is before from" in str(run("--from", "2026-12-02", "--to", "2026-12-01").exception)
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    assert "tokentrail config migrate FILE" in str(run().exception)
    database.close()
