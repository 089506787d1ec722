"""Plain readable logs on stderr: time, level, room, message. Prompts, answers and keys are never logged."""

from __future__ import annotations

import logging
import sys

LOG_LEVELS = ("debug", "info", "warning", "error")

_ROOT = "tokentrail"


class _Formatter(logging.Formatter):
    """`14:03:21 warning server: message`; the logger's name is shortened to the room it belongs to."""

    def __init__(self) -> None:
        super().__init__("{asctime} {level} {room}: {message}", "%H:%M:%S", style="{")

    def format(self, record: logging.LogRecord) -> str:
        parts = record.name.split(".")
        record.room = parts[1] if parts[0] == _ROOT and len(parts) > 1 else parts[0]
        record.level = record.levelname.lower()
        return super().format(record)


def setup_logging(level: str = "info") -> None:
    """Send our logs to stderr at `level`, and those of libraries from warning on. May be repeated."""
    if level not in LOG_LEVELS:
        raise ValueError(f"log level must be one of {', '.join(LOG_LEVELS)}, not {level!r}")
    root = logging.getLogger()
    handler = next((h for h in root.handlers if isinstance(h.formatter, _Formatter)), None)
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Formatter())
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(level.upper())
