"""Models of a deployment file on the command line: their flags, what is refused beside them, check and reload."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from command_line import Run

from tokentrail.cli.models import served_models
from tokentrail.gateway.config import ConfigError, parse
from tokentrail.gateway.running import announced

FILE = """models:
  - name: small
    model: demo
    replicas: 2
    cores: [0, 1]
    flags:
      max-model-len: 1k
      kv-cache-memory: 64MiB
      enable_prefix_caching: false
      enforce-eager: false
      lora: []
      tool-call-parser: hermes
      step-timeout: 3
  - {name: far, url: "https://far.example:8443/v1", hidden: true}
routes:
  - name: chat
    targets: [{model: small, weight: 3}, far]
    scenarios: [{name: code, targets: [far]}]
    fallback: [small]
"""


def test_flags_are_those_of_serve() -> None:
    (served,) = served_models(parse(FILE), Path())
    engine = served.engine
    assert (engine.max_model_len, engine.kv_cache_memory, engine.step_timeout) == (1000, 64 << 20, 3.0)
    assert (engine.model, engine.enable_prefix_caching, engine.enforce_eager) == (None, False, False)
    assert (served.names, served.cores, served.tool_call_parser) == (("small",), ((0,), (1,)), "hermes")


def test_wrong_flags_are_told_with_their_line(tmp_path: Path) -> None:
    for wrong, line, what in (
        ("step-timeout: soon", 13, "step-timeout"),
        ("no-such-flag: 1", 13, "no-such-flag: there is no such flag"),
        ("model: other", 13, "model: is the setting `model`"),
        ("block-size: 17", 13, "block-size: 17 is not one of"),
        ("pooling: most", 13, "pooling: 'most' is not one of"),
        ("max-model-len: many", 7, "max-model-len"),
    ):
        text = FILE.replace("step-timeout: 3", wrong)
        if wrong.startswith("max"):
            text = FILE.replace("max-model-len: 1k", wrong)
        with pytest.raises(ConfigError, match=what) as error:
            served_models(parse(text), tmp_path)
        assert str(error.value).startswith(f"deploy.yaml:{line}: "), error.value
    with pytest.raises(ConfigError, match=r"deploy.yaml:3: models\[0\]: .*nowhere"):
        served_models(parse(FILE.replace("model: demo", "model: ./nowhere.gguf")), tmp_path)
    (tmp_path / "beside.gguf").write_bytes(b"GGUF")
    (served,) = served_models(parse(FILE.replace("model: demo", "model: beside.gguf")), tmp_path)
    assert served.engine.model == str(tmp_path / "beside.gguf")


def test_what_a_file_with_models_forbids_beside_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(FILE)
    for flags, what in (
        (["demo"], "leave 'demo' out"),
        (["--model", "demo"], "leave 'demo' out"),
        (["--threads", "2"], "write `flags: {threads: …}` there"),
        (["--pooling", "mean"], "write `flags: {pooling: …}` there"),
        (["--served-model-name", "x"], "have their names there"),
    ):
        outcome = run("serve", *flags, "--config", str(path))
        assert outcome.code
        assert what in " ".join(outcome.err.split()), outcome.err


def test_check_says_what_there_is(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(FILE)
    shown = run("config", "check", str(path)).out
    for line in (
        "model small: demo, 2 replicas on cores 0 | 1",
        "model far: far at https://far.example:8443/v1, hidden",
        "route chat: small 75%, far 25%",
        "chat:code: far 100%",
        "otherwise small",
    ):
        assert line in shown


def test_reload_tells_the_servers_of_a_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "deploy.yaml"
    path.write_text(FILE)
    assert "No server of yours" in run("config", "reload", str(path)).err
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: told.append((pid, number)))
    with announced(path):
        assert run("config", "reload", str(path)).code == 0
        path.write_text("models: 7\n")
        assert run("config", "reload", str(path)).code
    assert told == [(os.getpid(), signal.SIGHUP)]
