"""One way to say that a model file cannot be used: file, problem, remedy, in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokentrail.protocol import ModelFileError

DOWNLOAD_AGAIN = "The file is damaged or incomplete: download it again."
CONVERT_AGAIN = "Convert the model again with a current convert_hf_to_gguf.py of llama.cpp."


def file_error(path: Path, problem: str, remedy: str) -> ModelFileError:
    """Build the error; the caller raises it, so that control flow stays visible where the check is."""
    return ModelFileError(f"{path}: {problem}. {remedy}")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What the system says within (no permission, a name too long, a disk that fails) becomes a `ModelFileError`."""
    try:
        yield
    except OSError as error:
        where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else path
        shown = where if len(str(where)) < 500 else Path(f"{str(where)[:80]}…")
        problem = f"cannot be read ({error.strerror or error})"
        raise file_error(shown, problem, "Check the path and its permissions.") from None


def quoted(text: str, limit: int = 80) -> str:
    """Text from a file, safe to print: control characters escaped, long text cut."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}…"
