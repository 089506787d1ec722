"""Rows that are no longer kept leave their day's sums."""

from __future__ import annotations

import time

from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects import postgresql, sqlite

from tokentrail.gateway.database import Database
from tokentrail.gateway.ledger.entry import RUNNING
from tokentrail.gateway.ledger.tables import days, requests

PAUSE = 600.0
"""Seconds between looks for rows that are too old."""
DAY = 86_400_000_000
_ROWS = 1000
_LOCK = 0x746F6B656E6B6565
"""Of PostgreSQL's advisory locks: who sums up."""


def sweep(database: Database, keep_days: int, *, rows: int = _ROWS) -> bool:
    """Sum up and drop some of the rows of days that ended more than `keep_days` ago. In one transaction, so that each
    counts once. Whether there may be more.
    """
    before = (int(time.time() * 1e6) // DAY - keep_days) * DAY
    old = (requests.c.received < before, requests.c.state != RUNNING)
    with database.write() as connection:
        if connection.dialect.name == "postgresql" and not connection.scalar(
            text(f"SELECT pg_try_advisory_xact_lock({_LOCK})")
        ):
            return False  # another gateway does it
        last = connection.execute(
            select(requests.c.received).where(*old).order_by(requests.c.received).limit(1).offset(rows - 1)
        ).scalar()
        some = old if last is None else (*old, requests.c.received <= last)
        names = [column.name for column in days.primary_key]
        sums = [column.name for column in days.columns if column.name not in names]
        group = [
            (requests.c.received // DAY if name == "day" else requests.c[name]).label(name) for name in names
        ]
        totals = [
            (func.count() if name == "requests" else func.sum(requests.c[name])).label(name) for name in sums
        ]
        source = select(*group, *totals).where(*some).group_by(*(text(str(n + 1)) for n in range(len(group))))
        made = postgresql.insert(days) if connection.dialect.name == "postgresql" else sqlite.insert(days)
        insert = made.from_select([*names, *sums], source)
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=names, set_={name: days.c[name] + insert.excluded[name] for name in sums}
            )
        )
        connection.execute(delete(requests).where(*some))
    return last is not None
