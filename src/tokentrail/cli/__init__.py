"""The command line: serve, chat, generate, bench, inspect. One module per command, light to import; what a
command needs to do its work it imports when it runs, so that `--help` and errors are quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program with `arguments` (default: those of this process) and exit."""
    from tokentrail.cli.app import run

    run(arguments)
