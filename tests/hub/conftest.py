from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_server import HubServer, hub_server


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub that `huggingface_hub` takes for Hugging Face's, and an empty cache."""
    from huggingface_hub import constants, file_download

    with hub_server() as server:
        # The library has read these from the environment (HF_ENDPOINT, HF_HUB_CACHE, HF_TOKEN …) when it was imported.
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        for module in (constants, file_download):  # older versions have a copy
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("TOKENTRAIL_HUB", raising=False)
        monkeypatch.chdir(tmp_path)
        yield server
