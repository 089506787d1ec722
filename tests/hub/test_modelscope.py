"""Models by name from ModelScope, through its own client, from a hub on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_folders import write_folder
from hub_server import HubServer, Repository, hub_server
from tokentrail.checkpoints import open_checkpoint
from tokentrail.hub import find_model
from tokentrail.protocol import ModelFileError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    pytest.importorskip("modelscope_hub")
    with hub_server() as server:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", server.url)
        monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("MODELSCOPE_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("MODELSCOPE_API_TOKEN", raising=False)
        monkeypatch.setenv("TOKENTRAIL_HUB", "modelscope")
        monkeypatch.chdir(tmp_path)
        yield server


def test_a_model(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "made", shards=2, files={"README.md": "hello"})
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.repositories["org/Tiny-1.5B"] = Repository(files)
    found = find_model("org/Tiny-1.5B")
    assert found.name == "org/Tiny-1.5B"
    assert open_checkpoint(found.path).config.hidden_size == 32
    assert hub.downloaded() == {
        "config.json",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    hub.requests.clear()
    assert find_model("org/Tiny-1.5B").path == found.path
    assert hub.downloaded() == set()
    hub.status = 500
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client tries again and again
    told: list[str] = []
    again = find_model("https://modelscope.cn/models/org/Tiny-1.5B", tell=told.append)
    assert again.path == found.path
    assert "using what was downloaded before" in told[0]


def test_no_such_model(hub: HubServer) -> None:
    with pytest.raises(ModelFileError, match=r"org/Nothing: .* nor a model on ModelScope"):
        find_model("org/Nothing")


def test_a_client_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "modelscope_hub", None)
    with pytest.raises(ModelFileError, match=r"pip install 'tokentrail\[modelscope\]'"):
        find_model("org/Tiny", hub="modelscope")
