"""`tokentrail tenants`: what it makes, changes and refuses, and that servers see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

from tokentrail.gateway import Gateway


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "deploy.yaml"
    file.write_text("keys: {}\ntenants: [{name: of-the-file, weight: 3}]\n", encoding="utf-8")
    return file


def told(run: Run, config: Path, *words: str) -> Any:
    outcome = run("tenants", *words, "--config", str(config), "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_from_its_making_to_its_end(run: Run, config: Path) -> None:
    made = told(run, config, "create", "acme", "--weight", "2", "--limit", "tokens_per_day=1000")
    assert (made["id"], made["weight"], made["limits"]) == ("acme", 2.0, {"tokens_per_day": 1000})
    changed = told(
        run, config, "set", "acme", "--limit", "money_per_month=1.5", "--limit", "tokens_per_minute=none"
    )
    assert changed["limits"] == {"tokens_per_day": 1000, "money_per_month": 1.5, "tokens_per_minute": None}
    assert (changed["weight"], changed["disabled"]) == (2.0, False)
    changed = told(
        run, config, "set", "acme", "--limit", "tokens_per_day=default", "--disable", "--weight", "0.5"
    )
    assert changed["limits"] == {"money_per_month": 1.5, "tokens_per_minute": None}
    assert (changed["weight"], changed["disabled"]) == (0.5, True)
    assert told(run, config, "show", "acme") == changed
    # What servers are told is that.
    gateway = Gateway(config)
    gateway.prepare()
    assert gateway.keys is not None
    known = gateway.keys.tenant("acme")
    assert (known.weight, known.limits, known.disabled) == (0.5, changed["limits"], True)
    gateway.database.close()
    assert told(run, config, "set", "acme", "--enable")["disabled"] is False
    listed = told(run, config, "list")["data"]
    assert [(one["id"], one["in_file"]) for one in listed] == [("acme", False), ("of-the-file", True)]
    table = run("tenants", "list", "--config", str(config)).out
    assert "money_per_month=1.5, tokens_per_minute=none" in table
    assert "active (in the file)" in table
    assert run("tenants", "delete", "acme", "--config", str(config)).out == "acme is deleted.\n"
    assert [one["id"] for one in told(run, config, "list")["data"]] == ["of-the-file"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["create", "of-the-file"], 1, "change it there"),
        (["set", "of-the-file", "--weight", "2"], 1, "change it there"),
        (["set", "nobody", "--weight", "2"], 1, "There is no tenant 'nobody'"),
        (["delete", "nobody"], 1, "There is no tenant 'nobody'"),
        (["set", "used"], 2, "nothing is to be changed"),
        (["set", "used", "--limit", "tokens=5"], 2, "there is no limit 'tokens'"),
        (["set", "used", "--limit", "tokens=default"], 2, "there is no limit 'tokens'"),
        (["set", "used", "--limit", "tokens_per_day=-5"], 2, "tokens_per_day=-5"),
        (["set", "used", "--weight", "-1"], 2, "--weight"),
        (["create", "a/b"], 2, "letters, digits"),
        (["create", "used"], 1, "There is a tenant 'used' already"),
        (["delete", "used"], 1, "has keys"),
    ],
)
def test_what_is_refused(run: Run, config: Path, words: list[str], code: int, said: str) -> None:
    assert run("keys", "create", "--tenant", "used", "--make-tenant", "--config", str(config)).code == 0
    outcome = run("tenants", *words, "--config", str(config))
    assert (outcome.code, outcome.out) == (code, "")
    assert said in outcome.err
