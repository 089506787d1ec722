"""Keys and tenants in the database, SQLite's and PostgreSQL's, and servers that notice what others change there."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from tokentrail.gateway.config import KeysSettings
from tokentrail.gateway.database import Database, DatabaseFailure, open_database
from tokentrail.gateway.keys import KeyRing, refreshing
from tokentrail.gateway.keys.refreshing import Refresher
from tokentrail.gateway.keys.store import Conflict, KeyStore, NotFound
from tokentrail.protocol import Unauthorized

NOW = 1_700_000_000.25


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = "sqlite:///keys.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    opened = open_database(url, tmp_path)
    yield opened
    opened.close()


def store_at(now: float = NOW) -> KeyStore:
    return KeyStore(clock=lambda: now)


def test_what_is_kept_is_what_was_made(database: Database) -> None:
    store = store_at()
    with database.write() as connection:
        made = store.create(
            connection,
            tenant="acme",
            name="the app — 应用",
            admin=True,
            models=["llama-*"],
            endpoints=["chat"],
            limits={"tokens_per_day": None},
            expires=NOW + 60,
            make_tenant=True,
        )
        plain = store.create(connection, tenant="acme")
    with database.read() as connection:
        assert store.key(connection, made.record.id) == made.record
        assert store.keys(connection) == [plain.record, made.record]
        assert plain.record.models is plain.record.endpoints is plain.record.expires is None
        (tenant,) = store.tenants(connection)
        assert (tenant.name, tenant.weight, tenant.limits, tenant.created) == ("acme", 1.0, {}, NOW)
        # Of the key there is nothing but the digest, and of its id no more than that.
        row = connection.execute(text("SELECT * FROM api_keys ORDER BY serial")).first()
        assert row is not None
        assert made.text[13:] not in repr(row)
        assert bytes(row.digest) == made.record.digest
        with pytest.raises(NotFound, match="no API key with the id 'key_x'"):
            store.key(connection, "key_x")


def test_a_tenant_is_not_made_by_a_typo(database: Database) -> None:
    store = store_at()
    with database.write() as connection:
        with pytest.raises(NotFound, match="no tenant 'acme'"):
            store.create(connection, tenant="acme")
        store.add_tenant(connection, "acme", weight=2, limits={"requests_per_minute": 3})
        with pytest.raises(Conflict, match="already"):
            store.add_tenant(connection, "acme")
        changed = store.change_tenant(connection, "acme", {"weight": 4.0, "disabled": True})
        assert (changed.weight, changed.limits, changed.disabled) == (4.0, {"requests_per_minute": 3}, True)
        key = store.create(connection, tenant="acme").record
        store.revoke(connection, key.id)
        with pytest.raises(Conflict, match="Disable it instead"):
            store.remove_tenant(connection, "acme")
        store.add_tenant(connection, "empty")
        store.remove_tenant(connection, "empty")
        with pytest.raises(NotFound):
            store.tenant(connection, "empty")


def test_pages(database: Database) -> None:
    store = store_at()
    with database.write() as connection:
        for tenant in ("a", "b"):
            store.add_tenant(connection, tenant)
        ids = [store.create(connection, tenant="ab"[n % 2]).record.id for n in range(6)]
        store.revoke(connection, ids[0])
        newest = list(reversed(ids))
        assert [key.id for key in store.keys(connection, limit=2)] == newest[:3]
        assert [key.id for key in store.keys(connection, after=newest[1], limit=2)] == newest[2:5]
        assert [key.id for key in store.keys(connection, after=newest[1])] == newest[2:]
        assert [key.id for key in store.keys(connection, tenant="a")] == newest[1::2]
        assert [key.id for key in store.keys(connection, all=False)] == newest[:-1]
        assert [one.name for one in store.tenants(connection)] == ["b", "a"]
        assert [one.name for one in store.tenants(connection, after="b", limit=5)] == ["a"]
        with pytest.raises(NotFound, match="after"):
            store.keys(connection, after="key_x")


def test_rotation_and_revocation(database: Database) -> None:
    store = store_at()
    with database.write() as connection:
        first = store.create(connection, tenant="a", make_tenant=True)
        second = store.rotate(connection, first.record.id, 60)
        assert second.text != first.text
        assert second.record.id == first.record.id
        assert (second.record.old_digest, second.record.old_until) == (first.record.digest, NOW + 60)
        third = store.rotate(connection, first.record.id, 0)
        assert (third.record.old_digest, third.record.old_until) == (None, None)
        assert store.change(connection, first.record.id, {"name": "n", "models": ("x",)}).models == ("x",)
        revoked = store.revoke(connection, first.record.id)
        assert revoked.revoked == NOW
        assert store_at(NOW + 9).revoke(connection, first.record.id) == revoked
        for change in (
            lambda: store.rotate(connection, first.record.id, 0),
            lambda: store.change(connection, first.record.id, {"name": "m"}),
        ):
            with pytest.raises(Conflict):
                change()


async def test_servers_notice_what_others_change(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refreshing, "PERIOD", 0.01)
    store = KeyStore()
    other = Database(
        database.url.render_as_string(hide_password=False), tmp_path
    )  # as another process has it
    ring = KeyRing(KeysSettings())
    refresher = Refresher(ring, store, database)
    refresher.load()
    refresher.start()
    try:
        with other.write() as connection:
            made = store.create(connection, tenant="a", make_tenant=True)
        while ring.key(made.record.id) is None:
            await asyncio.sleep(0.005)
        assert ring.find(made.text.encode()).key == made.record.id
        with other.write() as connection:
            store.revoke(connection, made.record.id)
        while ring.identity_of(made.record.id) is not None:
            await asyncio.sleep(0.005)
        with pytest.raises(Unauthorized, match="revoked"):
            ring.find(made.text.encode())
        # Of one's own changes at once.
        again = await database.run(lambda connection: store.create(connection, tenant="a"))
        await refresher.refresh()
        assert ring.find(again.text.encode()).tenant == "a"
    finally:
        await refresher.aclose()
        other.close()
    with database.read() as connection:
        assert store.key(connection, again.record.id).last_used is not None
    with database.write() as connection:
        store.note_used(connection, {again.record.id: 1.0, "key_gone": 2.0})
        assert (store.key(connection, again.record.id).last_used or 0) > 1.0


async def test_while_the_database_is_away_the_keys_of_before_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refreshing, "PERIOD", 0.001)
    caplog.set_level(logging.INFO)
    database = open_database("sqlite:///keys.db", tmp_path)
    store = KeyStore()
    with database.write() as connection:
        made = store.create(connection, tenant="a", make_tenant=True)
    ring = KeyRing(KeysSettings())
    refresher = Refresher(ring, store, database)
    refresher.load()
    away = threading.Event()
    looks = []
    real = store.version

    def version(connection: object) -> int:
        looks.append(away.is_set())
        if away.is_set():
            raise DatabaseFailure("The database is away.")
        return real(connection)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "version", version)
    away.set()
    refresher.start()
    while looks.count(True) < 3:
        await asyncio.sleep(0.001)
    assert ring.find(made.text.encode()).tenant == "a"
    away.clear()
    while "can be looked up again" not in caplog.text:
        await asyncio.sleep(0.001)
    await refresher.aclose()
    database.close()
    assert caplog.text.count("those of before hold: The database is away.") == 1
