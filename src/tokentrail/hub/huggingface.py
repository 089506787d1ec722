"""Hugging Face's hub, through `huggingface_hub` and its cache (HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN …)."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokentrail.hub.source import Listing, Unreachable
from tokentrail.protocol import ModelFileError

_SECONDS = 15.0
"""Until a hub that does not answer counts as unreachable."""


class HuggingFace:
    """See `source.Hub`."""

    title = "Hugging Face"

    def list(self, repository: str, revision: str | None) -> Listing:
        from huggingface_hub import HfApi, constants, errors

        if constants.HF_HUB_OFFLINE:
            raise Unreachable("HF_HUB_OFFLINE is set", "Unset it to download the model")
        try:
            info = HfApi(library_name="tokentrail").model_info(
                repository, revision=revision, files_metadata=True, timeout=_SECONDS
            )
        except Exception as error:  # of whatever HTTP library the client uses
            raise self._translated(error, errors, repository, revision) from None
        sizes = {file.rfilename: file.size for file in info.siblings or ()}
        return Listing(sizes, info.sha)

    def missing(self, repository: str, revision: str | None, files: Sequence[str]) -> Sequence[str]:
        from huggingface_hub import try_to_load_from_cache

        return [
            file
            for file in files
            if not isinstance(try_to_load_from_cache(repository, file, revision=revision), str)
        ]

    def download(
        self, repository: str, revision: str | None, files: Sequence[str], *, progress: bool
    ) -> Path:
        from huggingface_hub import errors, snapshot_download, utils

        bars: Any = utils
        silent = not progress and not bars.are_progress_bars_disabled()
        if silent:
            bars.disable_progress_bars()
        try:
            folder = snapshot_download(
                repository,
                revision=revision,
                allow_patterns=[glob.escape(file) for file in files],
                library_name="tokentrail",
            )
        except OSError as error:
            if error.errno is not None and not isinstance(error, ConnectionError):
                raise  # the disk's
            raise self._translated(error, errors, repository, revision) from None
        except Exception as error:
            raise self._translated(error, errors, repository, revision) from None
        finally:
            if silent:
                bars.enable_progress_bars()
        return Path(folder)

    def cached(self, repository: str, revision: str | None) -> Path | None:
        folder = self.folder() / f"models--{repository.replace('/', '--')}"
        name = revision or "main"
        try:
            commit = (folder / "refs" / name).read_text(encoding="utf-8").strip()
        except OSError:
            commit = name
        snapshot = folder / "snapshots" / commit
        return snapshot if snapshot.is_dir() else None

    def folder(self) -> Path:
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE)

    def _translated(
        self, error: Exception, errors: object, repository: str, revision: str | None
    ) -> ModelFileError | Unreachable:
        """What the client raises, as what a user can act on."""
        from huggingface_hub import constants

        def is_a(name: str) -> bool:
            kind = getattr(errors, name, None)
            return kind is not None and isinstance(error, kind)

        page = f"{constants.ENDPOINT}/{repository}"
        login = "log in with `hf auth login`, or set HF_TOKEN to a token of yours"
        if is_a("GatedRepoError"):
            return ModelFileError(
                f"{repository}: is gated: its owners let in who asks. Ask at {page}, then {login}."
            )
        if is_a("RevisionNotFoundError"):
            return ModelFileError(
                f"{repository}: has no revision {revision!r}. Give a branch, tag or commit that {page} shows."
            )
        if is_a("RepositoryNotFoundError"):
            return ModelFileError(
                f"{repository}: is neither a file or folder here, nor a model on {self.title} that you may see. Check "
                f"the name; if it is private, {login}."
            )
        if is_a("HFValidationError"):
            return ModelFileError(
                f"{repository}: is neither a file or folder here, nor a name on {self.title}."
            )
        if is_a("LocalEntryNotFoundError") and error.__cause__ is not None:
            return Unreachable(_one_line(error.__cause__))
        return Unreachable(_one_line(error))


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__
