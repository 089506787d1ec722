"""Memory maps of model files, opened without trust."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from pathlib import Path

from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN, file_error


def map_file(path: Path, kind: str) -> mmap.mmap:
    """Map a file that is not empty for reading. `kind` is what it should be, for errors: `a .gguf file`.

    Raises `ModelFileError`.
    """
    if sys.byteorder != "little":
        raise file_error(
            path, "model files are read on little-endian machines only", "Run on x86-64 or arm64."
        )
    try:
        # Non-blocking, so that a FIFO in place of a file cannot hang us before its kind is known.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise file_error(
            path, f"cannot be opened ({reason})", "Check the path and its permissions."
        ) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise file_error(path, "is not a regular file", f"Give the path of {kind}.")
        if status.st_size == 0:
            raise file_error(path, "is empty", DOWNLOAD_AGAIN)
        try:
            return mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        except (OSError, ValueError, OverflowError) as error:
            raise file_error(
                path, f"cannot be mapped into memory ({error})", "Copy it to a local file system."
            ) from None
    finally:
        os.close(descriptor)


def release_pages(mapping: mmap.mmap, offset: int, nbytes: int) -> None:
    """Let go of the memory behind a part of a file. It can still be read: it comes from the file again.

    Else a process would hold, besides what it makes of them, all pages of the file that it ever looked at.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        # Whole pages, with the neighbours' share of the first and the last.
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapping.madvise(mmap.MADV_DONTNEED, start, offset + nbytes - start)
