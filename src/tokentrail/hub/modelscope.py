"""ModelScope, through its own client `modelscope-hub` and its cache (MODELSCOPE_CACHE, MODELSCOPE_API_TOKEN …)."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokentrail.hub.source import Listing, Unreachable
from tokentrail.protocol import ModelFileError

INSTALL = "pip install 'tokentrail[modelscope]'"


class ModelScope:
    """See `source.Hub`."""

    title = "ModelScope"

    def __init__(self) -> None:
        """Raises `ModelFileError` where the client is not installed."""
        try:
            import modelscope_hub
        except ImportError:
            raise ModelFileError(
                f"ModelScope's client is not installed. Install it with: {INSTALL}"
            ) from None
        self._errors: Any = modelscope_hub
        self._config: Any = modelscope_hub.HubConfig()  # from the environment
        self._api: Any = modelscope_hub.HubApi(config=self._config)

    def list(self, repository: str, revision: str | None) -> Listing:
        try:
            files = self._api.list_repo_files(repository, "model", revision=revision)
        except Exception as error:  # of whatever HTTP library the client uses
            raise self._translated(error, repository, revision) from None
        return Listing({file.path: file.size for file in files if not file.is_dir}, revision)

    def missing(self, repository: str, revision: str | None, files: Sequence[str]) -> Sequence[str]:
        folder = self.cached(repository, revision)
        return [file for file in files if folder is None or not (folder / file).is_file()]

    def download(
        self, repository: str, revision: str | None, files: Sequence[str], *, progress: bool
    ) -> Path:
        try:
            folder = self._api.download_repo(
                repository,
                "model",
                revision=revision,
                allow_patterns=[glob.escape(file) for file in files],
                progress_callbacks=None if progress else [],
            )
        except OSError as error:
            if error.errno is not None and not isinstance(error, ConnectionError):
                raise  # the disk's
            raise self._translated(error, repository, revision) from None
        except Exception as error:
            raise self._translated(error, repository, revision) from None
        return Path(folder)

    def cached(self, repository: str, revision: str | None) -> Path | None:
        try:
            folder = self._api.download_repo(repository, "model", revision=revision, local_files_only=True)
        except Exception:  # it has nothing
            return None
        return Path(folder) if Path(folder).is_dir() else None

    def folder(self) -> Path:
        return Path(self._config.cache_dir)

    def _translated(
        self, error: Exception, repository: str, revision: str | None
    ) -> ModelFileError | Unreachable:
        """What the client raises, as what a user can act on."""
        kinds = self._errors
        if isinstance(error, (kinds.AuthenticationError, kinds.PermissionDeniedError)):
            return ModelFileError(
                f"{repository}: ModelScope does not let you see it. Log in with `modelscope login`, or set "
                "MODELSCOPE_API_TOKEN to a token of yours; a gated model's page says how to ask for access."
            )
        if isinstance(error, kinds.NotFoundError):
            at = "" if revision is None else f" with a revision {revision!r}"
            return ModelFileError(
                f"{repository}: is neither a file or folder here, nor a model{at} on ModelScope. Check the name."
            )
        return Unreachable(" ".join(f"{type(error).__name__}: {error}".split())[:200])
