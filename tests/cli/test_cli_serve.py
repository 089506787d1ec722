"""From `tokentrail serve`'s flags to the server's settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Run

import tokentrail.cli.serve
import tokentrail.hub
import tokentrail.server
from tokentrail.cli.serve import ServeCommand, spread_lists
from tokentrail.cli.terminal import loading
from tokentrail.engine import EngineConfig
from tokentrail.hub import FoundModel
from tokentrail.server import ServerConfig


@pytest.fixture
def served(run: Run, monkeypatch: pytest.MonkeyPatch) -> object:
    """`served("--port", "1")` gives the `ServerConfig` that the server would have been started with."""
    configs: list[ServerConfig] = []

    def serve(
        config: ServerConfig, *, on_ready: Callable[[], None], progress: object, served: object
    ) -> None:
        on_ready()
        configs.append(config)

    monkeypatch.setattr(tokentrail.server, "serve", serve, raising=False)
    monkeypatch.delenv("TOKENTRAIL_API_KEY", raising=False)

    def call(*arguments: str) -> ServerConfig:
        outcome = run("serve", *arguments)
        assert outcome.code == 0, outcome.err
        notes, loading = outcome.err[: outcome.err.rindex("loading ")], outcome.err.splitlines()[-1]
        assert loading == f"loading {configs[-1].engine.model or 'the demo model'} …"
        call.err = notes  # type: ignore[attr-defined]
        return configs.pop()

    return call


def test_defaults_are_those_of_the_config(served) -> None:
    assert served() == ServerConfig()


def test_every_engine_flag_reaches_the_engine(served) -> None:
    config = served(
        "-m", "x.gguf", "-c", "4K", "-t", "3", "-np", "5", "--max-num-batched-tokens", "1k",
        "--max-waiting", "7", "--kv-cache-memory", "2GiB", "--block-size", "64",
        "--no-enable-prefix-caching", "--kv-cache-dtype", "float32", "--activation-dtype", "float32",
        "--seed", "9", "--enforce-eager", "--dtype", "bfloat16", "--quantization", "gguf",
        "--step-timeout", "0", "--gpu-memory-utilization", "0.5", "--tensor-parallel-size", "2",
    )  # fmt: skip
    assert config.engine == EngineConfig(
        model="x.gguf", max_model_len=4096, threads=3, max_num_seqs=5, max_num_batched_tokens=1000,
        max_waiting=7, step_timeout=None, kv_cache_memory=2 * 2**30, block_size=64, enable_prefix_caching=False,
        kv_cache_dtype="float32", activation_dtype="float32", seed=9, enforce_eager=True,
        dtype="bfloat16", quantization="gguf", memory_utilization=0.5, tensor_parallel_size=2,
    )  # fmt: skip
    # What flags meant for a GPU do here is said, one line each.
    notes = served.err.splitlines()
    assert [note.split()[1].rstrip(":") for note in notes] == [
        "--gpu-memory-utilization",
        "--tensor-parallel-size",
        "--dtype",
    ]


def test_every_server_flag_reaches_the_server(served, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("x")
    config = served(
        "--host", "0.0.0.0", "--port", "0", "--chat-template", str(template), "--trail-text",
        "--trail-size", "5", "--allowed-origins", "http://a,http://b", "--allowed-methods", "GET",
        "POST", "--allowed-headers", "x-a", "--allow-credentials", "--shutdown-timeout", "3.5",
        "--log-level", "debug", "--no-log-requests", "--generation-config", "vllm",
        "--allowed-hosts", "a.example", "b.example", "--max-connections", "50", "--request-timeout", "9",
        "--ssl-keyfile", "k.pem", "--ssl-certfile", "c.pem", "--ssl-ca-certs", "ca.pem", "--ssl-cert-reqs", "2",
        "--no-ollama-api", "--no-llama-cpp-api", "--no-tgi-api", "--no-ui",
    )  # fmt: skip
    assert config == ServerConfig(
        host="0.0.0.0", port=0, chat_template=str(template), trail_text=True, trail_size=5,
        allowed_origins=("http://a", "http://b"), allowed_methods=("GET", "POST"),
        allowed_headers=("x-a",), allow_credentials=True, shutdown_timeout=3.5, log_level="debug",
        log_requests=False, generation_config="vllm",
        allowed_hosts=("a.example", "b.example"), max_connections=50, request_timeout=9.0,
        ssl_keyfile="k.pem", ssl_certfile="c.pem", ssl_ca_certs="ca.pem", ssl_cert_reqs=2,
        ollama_api=False, llama_cpp_api=False, tgi_api=False, ui=False,
    )  # fmt: skip


def test_model_by_position_as_vllm_takes_it(served) -> None:
    assert served("x.gguf", "--served-model-name", "a").engine.model == "x.gguf"
    assert served("x.gguf", "-m", "x.gguf").engine.model == "x.gguf"
    assert served("-c", "-1").engine.max_model_len is None


def test_models_by_name(served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, object]]] = []

    def find_model(model: str, *, tell: Callable[[str], None], **options: object) -> FoundModel:
        asked.append((model, options))
        tell("something")
        return FoundModel(Path("cache") / model.replace("/", "--"), model)

    monkeypatch.setattr(tokentrail.hub, "find_model", find_model)
    monkeypatch.setattr(
        tokentrail.cli.serve, "loading", lambda name, **options: loading("cache/o--n", **options)
    )
    engine = served("o/n", "--revision", "v1", "--hub", "modelscope", "-md", "o/small").engine
    assert (engine.model, engine.name, engine.speculative_model) == ("cache/o--n", "o/n", "cache/o--small")
    assert served.err == "note: something\n" * 2
    assert asked == [
        ("o/n", {"revision": "v1", "hub": "modelscope"}),
        ("o/small", {"revision": None, "hub": "modelscope"}),
    ]
    assert served("o/n", "-md", "ngram").engine.speculative_model == "ngram"
    outcome = run("serve", "--revision", "v1")
    assert outcome.code == 2
    assert "give the model it is of" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--served-model-name", "a", "b", "c"],
        ["--served-model-name", "a", "--served-model-name", "b", "--served-model-name", "c"],
        ["--served-model-name", "a,b", "c"],
        ["--served-model-name=a", "--served-model-name", "b", "c", "--port", "1"],
    ],
    ids=" ".join,
)
def test_several_names(served, arguments: list[str]) -> None:
    assert served(*arguments).served_model_names == ("a", "b", "c")


def test_keys_from_flag_environment_and_file(served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert served("--api-key", "a", "b", "--api-key", "a").api_keys == ("a", "b")
    keys = tmp_path / "keys"
    keys.write_text("# ours\nf1\n\n  f2  \n")
    assert served("--api-key-file", str(keys)).api_keys == ("f1", "f2")
    monkeypatch.setenv("TOKENTRAIL_API_KEY", "e1,e2")
    assert served().api_keys == ("e1", "e2")
    assert served().key_hint == "YOUR_KEY"
    monkeypatch.setenv("TOKENTRAIL_API_KEY", "e1")
    assert served().key_hint == "$TOKENTRAIL_API_KEY"
    assert served("--api-key", "a").key_hint == "YOUR_KEY"
    monkeypatch.setenv("TOKENTRAIL_API_KEY", "e1,e2")
    assert served("--api-key", "a").api_keys == ("a",)
    assert served("--api-key-file", str(keys)).api_keys == ("e1", "e2", "f1", "f2")


def test_a_key_file_without_keys_does_not_open_the_server(run: Run, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# none yet\n")
    outcome = run("serve", "--api-key-file", str(keys))
    assert outcome.code == 2
    assert "holds no key" in outcome.err


@pytest.mark.parametrize(
    "flag",
    ["--served-model-name", "--api-key", "--allowed-origins", "--allowed-methods", "--allowed-headers"],
)
def test_a_list_does_not_swallow_the_model(served, run: Run, flag: str, tmp_path: Path) -> None:
    outcome = run("serve", flag, "my-model", "path.gguf")
    assert outcome.code == 2
    assert "'path.gguf' is a file" in outcome.err
    assert f"tokentrail serve path.gguf {flag}" in outcome.err
    assert served("path.gguf", flag, "my-model").engine.model == "path.gguf"
    # A served name may be called as the file is, if there is a model.
    assert served("-m", "path.gguf", flag, "path.gguf").engine.model == "path.gguf"
    file = tmp_path / "weights.bin"
    file.touch()
    if flag == "--served-model-name":
        assert "is a file" in run("serve", flag, str(file)).err


def test_empty_keys_do_not_open_the_server(served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["--api-key", ""], ["--api-key", " , "], ["--api-key", "a", "--api-key", ""]):
        outcome = run("serve", *arguments)
        assert outcome.code == 2
        assert "a key is empty" in outcome.err
    for value in ("", "  ", ","):
        monkeypatch.setenv("TOKENTRAIL_API_KEY", value)
        outcome = run("serve")
        assert outcome.code == 2, value
        assert "TOKENTRAIL_API_KEY" in outcome.err or "a key is empty" in outcome.err
    monkeypatch.setenv("TOKENTRAIL_API_KEY", "")
    assert served("--api-key", "a").api_keys == ("a",)


def test_a_server_open_to_others_without_keys_is_noted(served) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        served("--host", host)
        assert "everyone who can reach this machine may use the server" in served.err
        served("--host", host, "--api-key", "a")
        assert served.err == ""
    for host in ("127.0.0.1", "127.0.0.5", "::1", "localhost"):
        served("--host", host)
        assert served.err == ""


def test_spreading_leaves_other_arguments_alone() -> None:
    lists = ServeCommand.LISTS
    assert spread_lists(["m.gguf", "--port", "1", "-c", "2"], lists) == ["m.gguf", "--port", "1", "-c", "2"]
    assert spread_lists(["--api-key", "a", "b", "-t", "2"], lists) == [
        "--api-key",
        "a",
        "--api-key",
        "b",
        "-t",
        "2",
    ]


@pytest.mark.parametrize(
    ("values", "words"), [(["polite"], "NAME=PATH"), (["=x"], "NAME=PATH"), (["a=x", "a=y"], "twice")]
)
def test_adapters_are_named(run: Run, values: list[str], words: str) -> None:
    outcome = run("serve", *(part for value in values for part in ("--lora", value)))
    assert outcome.code == 2
    assert words in outcome.err
    assert "--lora" in outcome.err
