"""Models by name, through the real client library from a hub on this machine."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gguf_files import write_model
from hf_folders import llama_tensors, write_folder
from hub_server import HubServer, Repository
from tokentrail.checkpoints import open_checkpoint
from tokentrail.hub import find_model
from tokentrail.hub import huggingface as huggingface_module
from tokentrail.protocol import InvalidRequest, ModelFileError


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def model(tmp_path: Path) -> Repository:
    folder = write_folder(
        tmp_path / "made", shards=2, files={"README.md": "hello", "generation_config.json": {}}
    )
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    return Repository(contents(folder))


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(ModelFileError) as caught:
        find_model(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_folder_is_downloaded_once(hub: HubServer, model: Repository) -> None:
    hub.repositories["org/Tiny-1.5B"] = model
    told: list[str] = []
    found = find_model("org/Tiny-1.5B", tell=told.append)
    assert found.name == "org/Tiny-1.5B"
    assert len(told) == 1
    assert told[0].startswith("downloading org/Tiny-1.5B from Hugging Face: 5 files, ")
    assert open_checkpoint(found.path).config.hidden_size == 32
    assert hub.downloaded() == {
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    assert not (found.path / "pytorch_model.bin").exists()
    hub.requests.clear()
    assert find_model("org/Tiny-1.5B", tell=told.append) == found
    assert len(told) == 1
    assert len(hub.requests) == 1  # what there is; nothing is downloaded again


def test_other_ways_to_write_a_name(hub: HubServer, model: Repository) -> None:
    hub.repositories["org/Tiny"] = hub.repositories["gpt2"] = model
    path = find_model("org/Tiny").path
    for name in ("hf.co/org/Tiny", "https://huggingface.co/org/Tiny", "https://huggingface.co/org/Tiny/"):
        assert find_model(name).path == path
    assert find_model("gpt2").path.is_dir()


def test_gguf_files(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    tokens = ["<|endoftext|>", *"abc"]
    write_model(tmp_path / "made" / "Tiny-Q8_0.gguf", tokens=tokens)
    write_model(tmp_path / "made" / "Tiny-Q4_K_M.gguf", tokens=tokens, split_tensors=4)
    hub.repositories["org/Tiny-GGUF"] = Repository(contents(tmp_path / "made"))
    found = find_model("org/Tiny-GGUF:q8_0")
    assert found.path.name == "Tiny-Q8_0.gguf"
    assert hub.downloaded() == {"Tiny-Q8_0.gguf"}
    found = find_model("org/Tiny-GGUF:Q4_K_M")
    assert found.path.name == "Tiny-Q4_K_M-00001-of-00003.gguf"
    assert len(open_checkpoint(found.path).tensors) == 11
    assert "holds 2 GGUF files: Q4_K_M, Q8_0" in refusal("org/Tiny-GGUF")
    assert "no GGUF file is Q2_K. There are: Q4_K_M, Q8_0" in refusal("org/Tiny-GGUF:Q2_K")


def test_what_lies_here_goes_first(hub: HubServer, model: Repository, tmp_path: Path) -> None:
    hub.repositories["org/Tiny"] = model
    (tmp_path / "org" / "Tiny").mkdir(parents=True)
    assert find_model("org/Tiny").path == Path("org/Tiny")
    assert find_model("org/Tiny").name is None
    (tmp_path / "a:b").write_text("")
    assert find_model("a:b").path == Path("a:b")
    assert hub.requests == []
    with pytest.raises(InvalidRequest, match="--revision v1 is for models on a hub"):
        find_model("org/Tiny", revision="v1")


@pytest.mark.parametrize(
    "name",
    [
        "model.gguf",
        "models/model.gguf",
        "/no/such/folder",
        "./folder",
        "a/b/c",
        "~/x/y",
        "a b",
        "org/x:",
        ":Q4_0",
        "x" * 300 + "é",
    ],
)
def test_what_is_no_name_is_a_path(hub: HubServer, name: str) -> None:
    assert find_model(name).path == Path(name).expanduser()
    assert hub.requests == []


def test_revisions(hub: HubServer, model: Repository, tmp_path: Path) -> None:
    older = contents(write_folder(tmp_path / "older", tensors=llama_tensors(seed=5)))
    hub.repositories["org/Tiny"] = model
    model.older = older
    path = find_model("org/Tiny", revision="v1").path
    assert (path / "model.safetensors").read_bytes() == older["model.safetensors"]
    hub.requests.clear()
    assert find_model("org/Tiny", revision="v1").path == path
    assert len(hub.requests) == 1
    assert find_model("org/Tiny").path != path
    assert "org/Tiny: has no revision 'v9'" in refusal("org/Tiny", revision="v9")


def test_a_download_that_broke_off_is_gone_on_with(hub: HubServer, tmp_path: Path) -> None:
    content = os.urandom(1 << 20) * 24  # the client writes 10 MB at a time
    hub.repositories["org/Big"] = Repository({"big.gguf": content})
    hub.cut_after = 22 << 20
    try:
        found = find_model("org/Big")  # the client may try again by itself …
    except ModelFileError:
        found = find_model("org/Big")  # … or the user does
    assert found.path.read_bytes() == content
    ranges = [wanted for method, path, wanted in hub.requests if "/blob/" in path and method == "GET"]
    assert len(ranges) == 2
    assert ranges[0] is None
    start = int(str(ranges[1]).removeprefix("bytes=").partition("-")[0])
    assert 0 < start <= 22 << 20


def test_offline_and_unreachable(hub: HubServer, model: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.repositories["org/Tiny"] = model
    path = find_model("org/Tiny").path
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    told: list[str] = []
    assert find_model("org/Tiny", tell=told.append).path == path
    assert "HF_HUB_OFFLINE is set); using what was downloaded before" in told[0]
    assert hub.requests == []
    said = refusal("org/Other")
    assert "org/Other: is not on this machine" in said
    assert "HF_HUB_OFFLINE is set" in said
    assert "(revision v1)" in refusal("org/Tiny", revision="v1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.status = 503
    assert find_model("org/Tiny").path == path
    assert "503" in refusal("org/Other")
    hub.status = None
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert find_model("org/Tiny").path == path
    assert "is not on this machine, and Hugging Face cannot be asked" in refusal("org/Other")


def test_no_such_model(hub: HubServer) -> None:
    said = refusal("org/Nothing")
    assert "neither a file or folder here, nor a model on Hugging Face that you may see" in said
    assert "hf auth login" in said
    assert "nor a name on Hugging Face" in refusal("a--b/c")


def test_gated_models(hub: HubServer, model: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/Gated"] = model
    model.gated = True
    hub.token = "hf_let_me_in"
    said = refusal("org/Gated")
    assert f"is gated: its owners let in who asks. Ask at {hub.url}/org/Gated" in said
    assert "HF_TOKEN" in said
    monkeypatch.setenv("HF_TOKEN", "hf_somebody_else")
    assert "is gated" in refusal("org/Gated")
    monkeypatch.setenv("HF_TOKEN", "hf_let_me_in")
    assert open_checkpoint(find_model("org/Gated").path).config.vocab_size == 24


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_full_disk(hub: HubServer, model: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/Tiny"] = model
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(10, 9, 1))
    said = refusal("org/Tiny")
    assert "MB on disk, but" in said
    assert "set HF_HOME" in said
    assert hub.downloaded() == set()
    monkeypatch.undo()


def test_a_disk_that_fills_up(hub: HubServer, model: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/Tiny"] = model

    def full(*args: Any, **options: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_module.HuggingFace, "download", full)
    assert "is full. Make room" in refusal("org/Tiny")


def test_an_empty_name(hub: HubServer) -> None:
    with pytest.raises(InvalidRequest, match="name is empty"):
        find_model(" ")


def test_names_of_hubs(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="--hub github: a hub is huggingface or modelscope"):
        find_model("org/Tiny", hub="github")
    monkeypatch.setenv("TOKENTRAIL_HUB", "github")
    with pytest.raises(InvalidRequest, match="TOKENTRAIL_HUB=github"):
        find_model("org/Tiny")


@pytest.mark.parametrize(
    "model", ["~nobody-of-this-name/model", "a" * 5000, "a/" + "b" * 300, "a\0b", "~" * 300]
)
def test_names_that_are_none_are_paths(model: str) -> None:
    found = find_model(model)
    assert found.name is None
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(found.path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("revision", ["", "a" * 300, "main\nx"])
def test_revisions_that_are_none(revision: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^--revision must be a branch"):
        find_model("org/name", revision=revision)
