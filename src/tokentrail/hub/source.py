"""What a hub has to be able to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Unreachable(Exception):
    """The hub does not answer, or must not be asked; the text says why."""

    def __init__(self, reason: str, remedy: str = "Check the connection") -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True)
class Listing:
    """A repository at one revision."""

    sizes: Mapping[str, int | None]
    """Files by path, with their bytes where the hub tells them."""
    revision: str | None
    """The commit that was listed, where the hub tells it."""


class Hub(Protocol):
    """A hub, through its own client and into its own cache."""

    title: str

    def list(self, repository: str, revision: str | None) -> Listing:
        """Raises `Unreachable`, and `ModelFileError` for a repository that is not there or closed to us."""
        ...

    def missing(self, repository: str, revision: str | None, files: Sequence[str]) -> Sequence[str]:
        """Those of `files` that are not in the cache yet. `revision` is a `Listing`'s."""
        ...

    def download(
        self, repository: str, revision: str | None, files: Sequence[str], *, progress: bool
    ) -> Path:
        """Get `files` into the cache, and return the folder that holds them. What was begun before is gone on with.

        Raises `Unreachable`, `ModelFileError`, and `OSError` for a disk that does not take them.
        """
        ...

    def cached(self, repository: str, revision: str | None) -> Path | None:
        """The folder of what the cache has of the repository; no network is used."""
        ...

    def folder(self) -> Path:
        """Where the cache is."""
        ...
