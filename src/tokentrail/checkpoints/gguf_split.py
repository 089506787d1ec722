"""Models in several GGUF files, as llama-gguf-split writes them: `NAME-00001-of-00003.gguf` and so on.

Each part is a GGUF file with `split.no` (from 0), `split.count` and `split.tensors.count` (of all parts together); the
first has all other metadata.
"""

from __future__ import annotations

import re
from pathlib import Path

from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN, file_error, quoted
from tokentrail.checkpoints.gguf import GGUFFile, read_gguf
from tokentrail.checkpoints.metadata import Metadata

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_OWN_NAMES = "Give the parts the names that llama-gguf-split gave them: NAME-00001-of-00002.gguf and so on."


def gguf_part_names(name: str) -> list[str]:
    """Names of all parts of the model that a file of this name is a part of; only itself if it is none."""
    match = _PART.fullmatch(name)
    count = int(match[3]) if match else 0
    if match is None or not 1 <= int(match[2]) <= count:
        return [name]
    return [f"{match[1]}-{part:05}-of-{match[3]}.gguf" for part in range(1, count + 1)]


def read_gguf_parts(path: Path) -> list[GGUFFile]:
    """Open a GGUF file, and all other parts where it is one of several; the part with the metadata first.

    Raises `ModelFileError`, naming the parts that are missing, or one that belongs to something else.
    """
    file = read_gguf(path)
    count = _number(file, "split.count")
    if count < 2:
        return [file]
    names = gguf_part_names(path.name)
    if len(names) != count:
        raise file_error(path, f"is one of {count} parts of a model, but is not named like one", _OWN_NAMES)
    missing = [name for name in names if not (path.parent / name).exists()]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        problem = f"{len(missing)} of {count} parts of the model are missing: {shown}"
        raise file_error(path, problem, "Download them into the same folder.")
    files = [file if name == path.name else read_gguf(path.parent / name) for name in names]
    seen: dict[str, Path] = {}
    for number, part in enumerate(files):
        if (_number(part, "split.count"), _number(part, "split.no")) != (count, number):
            problem = f"is not part {number + 1} of {count}, as its name says"
            raise file_error(part.path, problem, _OWN_NAMES)
        for name in part.tensors:
            if name in seen:
                problem = f"tensor {quoted(name)} is in {seen[name].name} as well"
                raise file_error(part.path, problem, DOWNLOAD_AGAIN)
            seen[name] = part.path
    total = _number(files[0], "split.tensors.count") or len(seen)
    if total != len(seen):
        problem = f"the parts hold {len(seen)} tensors together, but {total} are announced"
        raise file_error(files[0].path, problem, DOWNLOAD_AGAIN)
    return files


def _number(file: GGUFFile, key: str) -> int:
    return Metadata(file.path, file.metadata).integer(key, low=0, high=1 << 31, default=0)
