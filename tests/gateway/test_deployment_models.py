"""Models and routes of a deployment file: how each mistake between them is told, and who learns of a changed file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokentrail.gateway.config import ConfigError, LocalModel, RemoteModel, load, parse
from tokentrail.gateway.running import announced, servers_of

MODELS = """models:
  - {name: a, model: demo, replicas: 2, cores: [0, "1-2"], flags: {max-model-len: 512}}
  - name: b
    url: https://b.example/v1
    api_key: very-secret
    timeouts: {connect_s: 1}
    headers: {x-secret: very-secret}
"""


def test_models_are_told_apart_by_their_url() -> None:
    local, remote = parse(MODELS).models
    assert isinstance(local, LocalModel)
    assert local.core_sets == [(0,), (1, 2)]
    assert isinstance(remote, RemoteModel)
    target = remote.target()
    assert (target.name, target.api_key, target.timeouts.connect_s) == ("b", "very-secret", 1.0)
    assert "very-secret" not in repr(remote)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("models:\n  - name: a\n", 2, r"models\[0\].model: must be given"),
        ("models:\n  - {name: a, url: 'ftp://x'}\n", 2, r"models\[0\].url: String should match"),
        ("models:\n  - name: a\n    url: http://x\n    replicas: 2\n", 4, r"models\[0\].replicas: there is no such"),
        ("models:\n  - {name: a, model: demo, replicas: 2, cores: [0]}\n", 2, "one entry for each of the 2 replicas"),
        ("models:\n  - {name: a, model: demo, cores: [3-1]}\n", 2, "no cores"),
        ("models:\n  - {name: a b, model: demo}\n", 2, "name"),
        (MODELS + "  - {name: a, model: demo}\n", 8, "two models are called 'a'"),
        (MODELS + "routes:\n  - {name: a, targets: [a]}\n", 9, "already the name of a model"),
        (MODELS + "routes:\n  - {name: r, targets: []}\n", 9, "at least 1 item"),
        (MODELS + "routes:\n  - name: r\n    targets:\n      - a\n      - z\n", 12, "'z': there is no such model"),
        (MODELS + "routes:\n  - {name: r, targets: [{model: a, weight: 0}]}\n", 9, "greater than 0"),
        (MODELS + "routes:\n  - {name: r, targets: [a, a]}\n", 9, "is a target twice"),
        (MODELS + "routes:\n  - {name: r, targets: [a], fallback: [z]}\n", 9, "no such model or route"),
        (MODELS + "routes:\n  - {name: r, targets: [a], sticky: moon}\n", 9, "sticky"),
        (MODELS + "routes:\n  - {name: r, targets: [a], hedge_after_s: -1}\n", 9, "above 0"),
        (MODELS + "routes:\n  - {name: r, targets: [a], classifier: {}}\n", 9, "no scenarios to tell apart"),
        (
            MODELS + "routes:\n  - name: r\n    targets: [a]\n    fallback: [s]\n"
            "  - {name: s, targets: [b], fallback: [r]}\n",
            12,
            "goes in a circle: r → s → r",
        ),
        ("routes:\n  - {name: r, targets: [a]}\n", 1, "there are no `models:`"),
        (
            MODELS + "routes:\n  - name: r\n    targets: [a]\n    scenarios:\n"
            "      - {name: x, targets: [b], rules: [{}]}\n",
            12,
            "must name something",
        ),
    ],
)  # fmt: skip
def test_mistakes_have_their_line(text: str, line: int, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as error:
        parse(text)
    assert any(part.startswith(f"deploy.yaml:{line}: ") for part in str(error.value).splitlines()), (
        error.value
    )
    assert "very-secret" not in str(error.value)


def test_values_that_are_secret_are_not_told() -> None:
    with pytest.raises(ConfigError) as error:
        parse(MODELS.replace("api_key: very-secret", "api_key: [very-secret]"))
    assert "api_key" in str(error.value)
    assert "very-secret" not in str(error.value)


def test_a_setting_knows_its_line(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(MODELS)
    deployment = load(path)
    assert deployment.where("models", 1, "timeouts", "connect_s") == f"{path}:6"
    assert deployment.where("models", 1, "max_concurrent") == f"{path}:3"


def test_servers_with_a_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "deploy.yaml"
    path.write_text("")
    assert servers_of(path) == []
    with announced(path):
        assert servers_of(path) == [os.getpid()]
        assert servers_of(tmp_path / "other.yaml") == []
    assert servers_of(path) == []
    # What a killed server left behind is swept away.
    (note,) = [tmp_path / "tokentrail"]
    with announced(path):
        left = next(note.iterdir())
    left.touch()
    assert servers_of(path) == []
    assert not left.exists()
