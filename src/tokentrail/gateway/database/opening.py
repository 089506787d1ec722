"""The database that a deployment file names, opened and brought to this version's form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokentrail.gateway.config.database import DEFAULT_DATABASE
from tokentrail.gateway.libraries import library

if TYPE_CHECKING:
    from tokentrail.gateway.database.database import Database


def open_database(url: str | None, folder: Path) -> Database:
    """`url` None: the default. `folder`: the deployment file's. Blocks. Raises a `TokentrailError`."""
    database = connect(url, folder)
    try:
        database.migrate()
    except BaseException:
        database.close()
        raise
    return database


def connect(url: str | None, folder: Path) -> Database:
    """The same, without looking whether it is there."""
    for name in ("sqlalchemy", "alembic"):
        library(name)
    if (url or "").startswith("postgres"):
        library("psycopg")
    from tokentrail.gateway.database.database import Database

    return Database(url or DEFAULT_DATABASE, folder)


def look(url: str | None, folder: Path) -> Database:
    """The database as it is, for who only reads: it is neither made nor changed. Raises a `TokentrailError`."""
    database = connect(url, folder)
    try:
        database.check()
    except BaseException:
        database.close()
        raise
    return database
