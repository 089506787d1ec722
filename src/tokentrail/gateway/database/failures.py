"""What a database says when it cannot, in words that say what to do."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tokentrail.protocol import TokentrailError


class DatabaseFailure(TokentrailError):
    """The database cannot be used now."""

    status = 503
    type = "server_error"
    code = "database_unavailable"


_SQLITE = (
    ("database or disk is full", "the disk is full. Free some of it"),
    ("disk i/o error", "the disk cannot be read or written. Is it full, or damaged?"),
    ("readonly database", "the file cannot be written. Who runs the server must own it and its folder"),
    ("file is not a database", "the file is something else. Name another one"),
    ("malformed", "the file is damaged. Restore a copy, or recover it with: sqlite3 FILE .recover"),
    ("database is locked", "another program holds it. On network disks use PostgreSQL"),
)
_POSTGRES = (
    ("password authentication failed", "user or password is wrong"),
    ("no password supplied", "it wants a password"),
    ("permission denied", "the user may not do that. Make it the owner of the database"),
    ("no space left", "the server's disk is full"),
)


def explain(error: SQLAlchemyError, url: URL) -> DatabaseFailure:
    """In one line, without passwords and without the values of a statement."""
    said = " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
    where = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite":
        file = Path(url.database or "")
        if "unable to open database file" in said:
            folder = file.parent
            what = (
                f"the folder {folder} is not there. Make it"
                if not folder.is_dir()
                else f"it cannot be opened. Who runs the server must be able to write {folder}"
            )
        else:
            what = _known(_SQLITE, said)
        return DatabaseFailure(f"The database {file}: {what}.")
    return DatabaseFailure(f"The database {where}: {_known(_POSTGRES, said)}.")


def _known(words: tuple[tuple[str, str], ...], said: str) -> str:
    for sign, what in words:
        if sign in said.lower():
            return what
    # Statements and their values may follow.
    return said.split("[SQL:", maxsplit=1)[0].strip().rstrip(".")[:300]
