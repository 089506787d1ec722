"""Which servers of this user run with a deployment file: they say so in small files, which they keep locked."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def _folder() -> Path:
    """Of this user alone."""
    own = os.environ.get("XDG_RUNTIME_DIR")
    if own and os.path.isdir(own):
        return Path(own) / "tokentrail"
    return Path(tempfile.gettempdir()) / f"tokentrail-{os.getuid()}"


def _prefix(file: str | Path) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(file))).hexdigest()[:24]


@contextlib.contextmanager
def announced(file: str | Path) -> Iterator[None]:
    """While this process serves with `file`. Where that cannot be noted (a file system that is read-only, Windows),
    `tokentrail config reload` does not find it, and that is all.
    """
    note: IO[str] | None = None
    path: Path | None = None
    try:
        import fcntl

        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            path = folder / f"{_prefix(file)}.{os.getpid()}"
            note = path.open("w")
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, ImportError, AttributeError):
        path = None
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
        if note is not None:
            note.close()


def servers_of(file: str | Path) -> list[int]:
    """Process ids of servers that were started with `file`. Notes of those that were killed are swept away."""
    try:
        import fcntl
    except ImportError:
        return []
    folder = _folder()
    found: list[int] = []
    try:
        notes = sorted(folder.glob(f"{_prefix(file)}.*"))
        if notes and folder.stat().st_uid != os.getuid():
            return []
    except OSError:
        return []
    for path in notes:
        try:
            with path.open() as note:
                fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)  # nobody holds it: its server is gone
        except BlockingIOError:
            found.append(int(path.suffix[1:]))
        except OSError:
            continue
    return found
