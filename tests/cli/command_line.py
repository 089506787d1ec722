"""Running the command line as a user does, or in this process (the fixture `run`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def program(
    *arguments: str, stdin: str = "", timeout: float = 60.0, environment: dict[str, str] | None = None
) -> Outcome:
    """`python -m tokentrail …` in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-m", "tokentrail", *arguments],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=timeout,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", **(environment or {})},
    )
    return Outcome(result.returncode, result.stdout, result.stderr)
