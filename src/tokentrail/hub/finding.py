"""From what a user types to a path: what lies here goes first, then the hub."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokentrail.protocol import InvalidRequest, ModelFileError

if TYPE_CHECKING:
    from tokentrail.hub.selection import Selection
    from tokentrail.hub.source import Hub, Listing, Unreachable

log = logging.getLogger(__name__)

HUBS = ("huggingface", "modelscope")
HUB_VARIABLE = "TOKENTRAIL_HUB"

_SITES = re.compile(
    r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co|modelscope\.cn/models)/", re.IGNORECASE
)
_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", re.ASCII)
_RESERVE = 64 << 20
"""Bytes of a disk that a download leaves free."""


@dataclass(frozen=True)
class FoundModel:
    """A model on this machine."""

    path: Path
    name: str | None = None
    """What it was asked for by, on a hub; None: it was a path."""


_LONGEST = 200
"""Characters of a repository's name, or of a revision; hubs have at most half as many."""


def find_model(
    model: str,
    *,
    revision: str | None = None,
    hub: str | None = None,
    progress: bool | None = None,
    tell: Callable[[str], None] = log.warning,
) -> FoundModel:
    """The path of a model: of a file or folder, or of a hub's `org/name`, or `org/name:FORMAT` for a GGUF file there.

    `hub`: one of `HUBS`; None: `$TOKENTRAIL_HUB`, or Hugging Face. `progress`: show bars; None: on a terminal.
    `tell`: takes what the user should know, that something is downloaded, or that the hub does not answer. Raises
    `ModelFileError` saying why there is none and what would help; a path that is not there is returned as it is.
    """
    if not model.strip():
        raise InvalidRequest("The model's name is empty. Give a path, or a name on a hub.", param="model")
    if revision is not None and not (revision.isprintable() and 0 < len(revision) <= _LONGEST):
        raise InvalidRequest(
            f"--revision must be a branch, a tag or a commit, not {revision[:80]!r}.", param="revision"
        )
    path = _expanded(model)
    if os.path.lexists(path):
        if revision is not None:
            raise InvalidRequest(
                f"--revision {revision} is for models on a hub, but {model} is here. Leave it out, or rename one.",
                param="revision",
            )
        return FoundModel(path)
    repository, separator, selector = _SITES.sub("", model, count=1).rstrip("/").partition(":")
    if (
        not _NAME.fullmatch(repository)
        or len(repository) > _LONGEST
        or repository.lower().endswith(".gguf")
        or (separator and not selector)
    ):
        return FoundModel(path)  # opening it says what is wrong
    source = _hub(hub)
    if progress is None:
        progress = sys.stderr.isatty()
    return _on_hub(source, repository, revision, selector or None, model, progress, tell)


def _expanded(model: str) -> Path:
    path = Path(model)
    try:
        return path.expanduser()
    except RuntimeError:  # ~somebody whom this machine does not know
        return path


def _hub(name: str | None) -> Hub:
    named = f"--hub {name}" if name else f"{HUB_VARIABLE}={os.environ.get(HUB_VARIABLE)}"
    name = name or os.environ.get(HUB_VARIABLE) or HUBS[0]
    if name == "huggingface":
        from tokentrail.hub.huggingface import HuggingFace

        return HuggingFace()
    if name == "modelscope":
        from tokentrail.hub.modelscope import ModelScope

        return ModelScope()
    raise InvalidRequest(f"{named}: a hub is {' or '.join(HUBS)}.", param="hub")


def _on_hub(
    hub: Hub,
    repository: str,
    revision: str | None,
    selector: str | None,
    model: str,
    progress: bool,
    tell: Callable[[str], None],
) -> FoundModel:
    from tokentrail.hub.selection import select
    from tokentrail.hub.source import Unreachable

    try:
        listing = hub.list(repository, revision)
    except Unreachable as error:
        return _from_cache(hub, repository, revision, selector, model, error, tell)
    selection = select(repository, listing.sizes, selector)
    try:
        missing = hub.missing(repository, listing.revision, selection.files)
        if missing:
            size = sum(listing.sizes[file] or 0 for file in missing)
            _check_disk(hub, repository, size)
            tell(f"downloading {repository} from {hub.title}: {len(missing)} files, {_size(size)}")
        cached = None if missing else hub.cached(repository, listing.revision)
        folder = cached or hub.download(
            repository, _pinned(revision, listing), selection.files, progress=progress
        )
    except Unreachable as error:
        raise ModelFileError(
            f"{repository}: the download broke off: {error}. Begin again: it goes on where it stopped."
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelFileError(_full(hub, repository)) from None
        raise ModelFileError(
            f"{repository}: cannot be saved in {hub.folder()}: {error.strerror or error}."
        ) from None
    return FoundModel(_opened(folder, selection), model)


def _pinned(revision: str | None, listing: Listing) -> str | None:
    """The commit where one was asked for; else the branch, so that the cache knows what it stands for."""
    return listing.revision if revision is not None and revision == listing.revision else revision


def _from_cache(
    hub: Hub,
    repository: str,
    revision: str | None,
    selector: str | None,
    model: str,
    reason: Unreachable,
    tell: Callable[[str], None],
) -> FoundModel:
    """The model as it was downloaded before, since the hub cannot be asked."""
    from tokentrail.hub.selection import select

    folder = hub.cached(repository, revision)
    files = (
        []
        if folder is None
        else [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    )
    if folder is None or not files:
        at = "" if revision is None else f" (revision {revision})"
        raise ModelFileError(
            f"{repository}{at}: is not on this machine, and {hub.title} cannot be asked for it: {reason}. "
            f"{reason.remedy}, or give a local path."
        )
    try:
        selection = select(repository, files, selector)
    except ModelFileError as error:
        raise ModelFileError(
            f"{hub.title} cannot be asked ({reason}), and what was downloaded before does not do: {error}"
        ) from None
    tell(f"{hub.title} cannot be asked ({reason}); using what was downloaded before: {folder}")
    return FoundModel(_opened(folder, selection), model)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.1f} MB"


def _opened(folder: Path, selection: Selection) -> Path:
    return folder if selection.main is None else folder / selection.main


def _check_disk(hub: Hub, repository: str, size: int) -> None:
    """Refuse before a download that the disk does not hold."""
    folder = hub.folder()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return
    if size + _RESERVE > free:
        raise ModelFileError(_full(hub, repository, size, free))


def _full(hub: Hub, repository: str, needed: int | None = None, free: int | None = None) -> str:
    variable = "MODELSCOPE_CACHE" if hub.title == "ModelScope" else "HF_HOME"
    if needed is None or free is None:
        problem = f"the disk of {hub.folder()} is full"
    else:
        problem = f"needs {_size(needed)} on disk, but {hub.folder()} has {_size(free)} free"
    return f"{repository}: {problem}. Make room, or set {variable} to a folder on another disk."
