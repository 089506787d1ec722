"""The database: where it is, its tables' versions, several that start at once, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text
from typer.testing import CliRunner

from postgres_server import PostgresServer
from tokentrail.cli.app import app
from tokentrail.gateway import ConfigError
from tokentrail.gateway.config import parse
from tokentrail.gateway.database import Database, DatabaseFailure, metadata, open_database
from tokentrail.gateway.database.migrating import head
from tokentrail.gateway.database.schema import import_tables


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database that is empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'some.db'}"
    made: str = request.getfixturevalue("postgres_url")
    return made


def test_paths_begin_at_the_deployment_files_folder(tmp_path: Path) -> None:
    assert Database("sqlite:///a/b.db", tmp_path).name == str(tmp_path / "a/b.db")
    assert Database(f"sqlite:///{tmp_path}/c.db", Path("/elsewhere")).name == str(tmp_path / "c.db")


def test_commits_are_on_the_disk_and_readers_do_not_wait(tmp_path: Path) -> None:
    database = open_database(None, tmp_path)
    assert (tmp_path / "tokentrail.db").is_file()
    with database.write() as writer:
        wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
        assert {name: writer.scalar(text(f"PRAGMA {name}")) for name in wanted} == wanted
        writer.execute(text("CREATE TABLE t (x INTEGER)"))
        with database.read() as reader:
            assert reader.scalar(text("SELECT count(*) FROM sqlite_master WHERE name = 't'")) == 0
    database.close()


def test_an_error_undoes_a_transaction(url: str) -> None:
    database = open_database(url, Path())

    def fail() -> None:
        with database.write() as connection:
            row = "INSERT INTO gateway_instances (id, host, pid, started) VALUES (7, 'h', 1, 1)"
            connection.execute(text(row))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.read() as connection:
        assert connection.scalar(text("SELECT count(*) FROM gateway_instances")) == 0
    database.close()


def test_who_writes_often_has_a_way_of_its_own(url: str) -> None:
    database = open_database(url, Path())
    database.prepare_writing_often()
    row = "INSERT INTO gateway_instances (id, host, pid, started) VALUES ({}, 'h', 1, 1)"

    def write(statement: str, *, fail: bool = False) -> None:
        with database.write_often() as connection:
            connection.exec_driver_sql(statement)
            if fail:
                raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            write(row.format(7), fail=True)
        with pytest.raises(DatabaseFailure) as caught:
            write("INSERT INTO nowhere VALUES (1)")
        assert isinstance(caught.value.__cause__, sqlalchemy.exc.SQLAlchemyError)
    write(row.format(8))
    with pytest.raises(DatabaseFailure) as caught:
        write(row.format(8))
    assert isinstance(caught.value.__cause__, sqlalchemy.exc.IntegrityError)
    with database.read() as reader:
        assert list(reader.scalars(text("SELECT id FROM gateway_instances"))) == [8]
    database.close()


def test_the_log_is_as_long_as_it_gets_before_it_is_used(tmp_path: Path) -> None:
    database = open_database(None, tmp_path)
    file, log = tmp_path / "tokentrail.db", tmp_path / "tokentrail.db-wal"
    database.prepare_writing_often()
    with database.read() as reader:
        tables = set(reader.scalars(text("SELECT name FROM sqlite_master")))
        assert reader.scalar(text("PRAGMA integrity_check")) == "ok"
    assert "usage_requests" in tables
    assert not [name for name in tables if "filler" in name]
    before = log.stat().st_size, file.stat().st_size
    assert before[0] > 1000 * 4096 > before[1]
    for number in range(600):
        with database.write_often() as connection:
            row = "INSERT INTO gateway_instances (host, pid, started) VALUES (?, 1, 1)"
            connection.exec_driver_sql(row, (f"{number}" * 500,))
    assert log.stat().st_size == before[0]
    with database.read() as reader:
        assert reader.scalar(text("SELECT count(*) FROM gateway_instances")) == 600
    database.close()


def test_migrations_make_what_the_tables_say(url: str) -> None:
    database = open_database(url, Path())
    import_tables()
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    assert database.migrate() == (head(), head())
    database.close()


def test_several_start_at_once(url: str) -> None:
    gate, told = threading.Barrier(4), []

    def start() -> None:
        database = Database(url)
        gate.wait(20)
        told.append(database.migrate()[0])
        database.close()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(told, key=str) == sorted([None, *[head()] * 3], key=str)


def test_a_newer_schema_is_left_alone(url: str) -> None:
    database = open_database(url, Path())
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(
        DatabaseFailure, match=r"made by a newer version of Tokentrail .*9999.*Update Tokentrail"
    ):
        database.migrate()
    with database.read() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "9999"
    database.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///nowhere/some.db", r"the folder .*/nowhere is not there\. Make it\."),
        ("sqlite:///folder", r"it cannot be opened\. Who runs the server must be able to write"),
        ("sqlite:///text.db", r"text\.db: the file is something else\. Name another one\."),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite://", "names no file"),
        ("postgresql://me:secret@127.0.0.1:1/x", r"me:\*\*\*@127\.0\.0\.1:1/x: .*refused"),
        ("postgresql://me:sec@ret@x:y/z", "cannot be read"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, url: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.db").write_text("words " * 1000)
    with pytest.raises(DatabaseFailure, match=said) as caught:
        open_database(url, tmp_path)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.status == 503


def test_a_postgresql_without_the_database(shared_postgres: PostgresServer) -> None:
    with pytest.raises(DatabaseFailure, match='database "none" does not exist'):
        open_database(shared_postgres.url("none"), Path())


def test_a_full_disk(tmp_path: Path) -> None:
    database = open_database(None, tmp_path)

    def fill() -> None:
        with database.write() as connection:
            connection.execute(text("CREATE TABLE t (x)"))
            pages = connection.scalar(text("PRAGMA page_count"))
            connection.execute(text(f"PRAGMA max_page_count = {pages}"))
            connection.execute(text("INSERT INTO t VALUES (zeroblob(1000000))"))

    with pytest.raises(DatabaseFailure, match=r"the disk is full\. Free some of it\."):
        fill()
    database.close()


async def test_the_event_loop_is_free_meanwhile(tmp_path: Path) -> None:
    database = open_database(None, tmp_path)
    held, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(connection: sqlalchemy.Connection) -> int:
        loop.call_soon_threadsafe(held.set)
        assert go.wait(20)
        return int(connection.execute(text("SELECT 41 + 1")).scalar_one())

    working = asyncio.ensure_future(database.run(slow))
    await held.wait()  # the loop runs while a thread has the transaction
    go.set()
    assert await working == 42
    await loop.run_in_executor(None, database.close)


def test_the_command_migrates(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text("database: sqlite:///usage.db")
    for said in (f"empty → {head()}", f"is of revision {head()}"):
        result = CliRunner().invoke(app, ["config", "migrate", str(file)])
        assert result.output == f"{tmp_path / 'usage.db'}: {said}\n"
    result = CliRunner().invoke(app, ["config", "check", str(file)])
    assert f"  database: {tmp_path / 'usage.db'}" in result.output


def test_a_url_that_cannot_be_is_told_with_its_line() -> None:
    with pytest.raises(
        ConfigError, match=r"^deploy\.yaml:2: database: must begin with sqlite:/// \(.*$"
    ) as caught:
        parse("\ndatabase: mysql://me:secret@host/x")
    assert "secret" not in str(caught.value)
