"""A model as the files of its folder, in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ModelFiles:
    """A model that opens and runs as it is."""

    name: str
    files: dict[str, bytes]
    """By name in its folder; adapters lie in folders within."""
    opened: str = ""
    """The file that is given as the model's path; empty: the folder."""
    damaged: tuple[str, ...] = ()
    """Files that may be damaged; none named: all."""
    engine: dict[str, Any] = field(default_factory=dict)
    """Further fields of `EngineConfig`; a `lora` names folders within this one."""
    text_only: bool = False
    """Only what it says about text matters: its weights need not run each time."""

    def write(self, folder: Path) -> Path:
        """Returns the path to open."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / self.opened if self.opened else folder

    def changed(self, files: dict[str, bytes]) -> ModelFiles:
        return replace(self, files=files)


def read_files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
