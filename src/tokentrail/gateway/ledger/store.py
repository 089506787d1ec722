"""The ledger's statements. All of them may be repeated: what was written before is not changed by it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from sqlalchemy import Connection, insert, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from tokentrail.gateway.database.direct import DirectConnection
from tokentrail.gateway.ledger.entry import COLUMNS, INTERRUPTED, RUNNING, Row
from tokentrail.gateway.ledger.tables import days, instances, requests

_ROWS = 100
"""In one statement, which takes the interpreter's lock twice: with a row a statement, a busy event loop would make each
of them wait its turn."""

_POSTGRES_NOW = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")

DayKey = tuple[int, str, str, str, str, str, str, str]
"""day, tenant, key, route, target, model, state, currency"""


def now(connection: Connection) -> int:
    """Microseconds since 1970, by the one clock that all who share the database go by."""
    if connection.dialect.name == "postgresql":
        return int(connection.execute(_POSTGRES_NOW).scalar_one())
    return int(time.time() * 1e6)


@cache
def _upsert(dialect: str, rows: int) -> str:
    mark = "?" if dialect == "sqlite" else "%s"
    values = ", ".join(["(" + ", ".join([mark] * len(COLUMNS)) + ")"] * rows)
    sets = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[2:])
    # What has ended stays as it is, however late something comes that was known before. An answer whose end could not
    # be told because its row was not there in time has failed, even if the row was just being written.
    return (
        f"INSERT INTO usage_requests ({', '.join(COLUMNS)}) VALUES {values} ON CONFLICT (id) DO UPDATE SET {sets} "
        f"WHERE usage_requests.state IN ('{RUNNING}', '{INTERRUPTED}') OR excluded.error = 'ledger_unavailable'"
    )


def write_rows(connection: Connection | DirectConnection, rows: Sequence[Row]) -> None:
    """Rows as they are now, new ones and such that are there already; each id once."""
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        statement = _upsert(connection.dialect.name, len(part))
        connection.exec_driver_sql(statement, tuple(value for row in part for value in row))


def add_to_days(connection: Connection, counts: Mapping[DayKey, int]) -> None:
    """Count requests that get no row: they were refused, and cost nothing."""
    if not counts:
        return
    names = [column.name for column in days.primary_key]
    made = postgresql.insert(days) if connection.dialect.name == "postgresql" else sqlite.insert(days)
    statement = made.on_conflict_do_update(
        index_elements=names, set_={"requests": days.c.requests + made.excluded.requests}
    )
    zeros = {column.name: 0 for column in days.columns if column.name not in (*names, "requests")}
    rows = [{**dict(zip(names, key, strict=True)), **zeros, "requests": n} for key, n in counts.items()]
    connection.execute(statement, rows)


# --- instances -------------------------------------------------------------------------------------


def register(connection: Connection) -> int:
    """This run of a server: its number."""
    at = now(connection)
    row = {"host": socket.gethostname()[:255], "pid": os.getpid(), "started": at, "alive": at}
    made = connection.execute(insert(instances).values(row).returning(instances.c.id)).scalar_one()
    return int(made)


def give_sign(connection: Connection, instance: int) -> None:
    connection.execute(update(instances).where(instances.c.id == instance).values(alive=now(connection)))


def leave(connection: Connection, instance: int) -> None:
    """It has ended, and all of its requests have."""
    connection.execute(update(instances).where(instances.c.id == instance).values(alive=None))


class Died(NamedTuple):
    """A request whose server died, and what it is billed for."""

    tenant: str
    id: str
    """The answer's."""
    tokens: int
    cost: int


def bill_the_dead(connection: Connection, instance: int, lease: float) -> list[Died]:
    """End the requests of instances that died: they are billed at their last checkpoint, as their rows have it.

    Dead is who has given no sign for `lease` seconds, and at once who ran on this machine and does not any more. Should
    one live after all (its machine was asleep), what it writes later still counts: a row has values, not additions.
    """
    before = now(connection) - int(lease * 1e6)
    host, own = socket.gethostname()[:255], os.getpid()
    others = connection.execute(
        select(instances.c.id, instances.c.host, instances.c.pid, instances.c.alive).where(
            instances.c.alive.is_not(None), instances.c.id != instance
        )
    ).all()
    dead = [
        one.id
        for one in others
        if one.alive < before or (one.host == host and (one.pid == own or not _runs(one.pid)))
    ]
    if not dead:
        return []
    of = requests.c
    ended = connection.execute(
        update(requests)
        .where(of.state == text(f"'{RUNNING}'"), of.instance.in_(dead))
        .values(state=INTERRUPTED, error="server_died")
        .returning(of.tenant, of.answer_id, of.prompt_tokens + of.output_tokens, of.cost)
    ).all()
    connection.execute(update(instances).where(instances.c.id.in_(dead)).values(alive=None))
    return [Died(*row) for row in ended]


def alive(connection: Connection) -> set[int]:
    return set(connection.scalars(select(instances.c.id).where(instances.c.alive.is_not(None))))


def _runs(pid: int) -> bool:
    """Whether there is a process with this number. Where that cannot be told, yes."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
