"""`tokentrail keys`: what it prints, what it refuses, and that it shows a key once only."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

from tokentrail.cli.keys import duration, moment
from tokentrail.gateway import Gateway
from tokentrail.protocol import Unauthorized

KEY = re.compile(r"tt-[0-9A-Za-z]{59}")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "deploy.yaml"
    file.write_text("keys: {listed: [{name: of-the-file, key: a key of the file}]}\n", encoding="utf-8")
    return file


def made(run: Run, config: Path, *flags: str) -> Any:
    outcome = run("keys", "create", "--config", str(config), "--json", *flags)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_a_key_is_made_and_let_in(run: Run, config: Path) -> None:
    outcome = run("keys", "create", "--config", str(config), "--name", "ops", "--admin")
    assert outcome.code == 0
    key = outcome.out.strip()  # so that KEY=$(tokentrail keys create …) works
    assert KEY.fullmatch(key)
    assert key not in outcome.err
    gateway = Gateway(config)
    gateway.prepare()
    assert gateway.keys is not None
    identity = gateway.keys.find(key.encode())
    assert (identity.tenant, identity.admin, identity.key) == ("default", True, "key_" + key[3:13])
    gateway.database.close()
    for flags in (["list"], ["list", "--json"], ["show", identity.key], ["show", identity.key, "--json"]):
        shown = run("keys", *flags, "--config", str(config))
        assert identity.key in shown.out
        assert not KEY.search(shown.out + shown.err)


def test_what_a_key_may_do(run: Run, config: Path) -> None:
    key = made(
        run, config, "--tenant", "acme", "--make-tenant", "--models", "llama-*,demo",
        "--endpoints", "chat", "--endpoints", "files", "--expires", "90d",
        "--limit", "requests_per_minute=5", "--limit", "tokens_per_day=none",
    )  # fmt: skip
    assert key["models"] == ["llama-*", "demo"]
    assert key["endpoints"] == ["chat", "files"]
    assert key["limits"] == {"requests_per_minute": 5, "tokens_per_day": None}
    assert abs(key["expires_at"] - time.time() - 90 * 86400) < 60
    shown = run("keys", "show", key["id"], "--config", str(config))
    assert re.search(r"limits +requests_per_minute=5, tokens_per_day=none", shown.out)
    listed = run("keys", "list", "--config", str(config), "--tenant", "acme", "--json")
    assert [one["id"] for one in json.loads(listed.out)["data"]] == [key["id"]]


def test_rotation_and_revocation(run: Run, config: Path) -> None:
    key = made(run, config)
    rotated = run("keys", "rotate", key["id"], "--grace", "2h", "--config", str(config))
    assert KEY.fullmatch(rotated.out.strip())
    assert rotated.out.strip() != key["key"]
    assert "the one before works until" in rotated.err
    gateway = Gateway(config)
    gateway.prepare()
    assert gateway.keys is not None
    assert gateway.keys.find(key["key"].encode()) == gateway.keys.find(rotated.out.strip().encode())
    again = json.loads(
        run("keys", "rotate", key["id"], "--grace", "0", "--config", str(config), "--json").out
    )
    assert again["old_key_until"] is None
    revoked = run("keys", "revoke", key["id"], "--config", str(config))
    assert (revoked.code, revoked.out) == (0, f"{key['id']} is revoked.\n")
    gateway.database.close()
    after = Gateway(config)
    after.prepare()
    assert after.keys is not None
    with pytest.raises(Unauthorized, match="revoked"):
        after.keys.find(again["key"].encode())
    after.database.close()
    everything = json.loads(run("keys", "list", "--config", str(config), "--all", "--json").out)["data"]
    assert [(one["id"], one["status"]) for one in everything] == [
        (key["id"], "revoked"),
        ("of-the-file", "active"),
    ]
    left = run("keys", "list", "--config", str(config))
    assert key["id"] not in left.out
    assert re.search(r"of-the-file .* active \(in the file\)", left.out)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["create", "--tenant", "acme"], "There is no tenant 'acme'. Make it with --make-tenant."),
        (["create", "--endpoints", "all"], "--endpoints: 'all': it should be 'chat', "),
        (["create", "--tenant", "a b"], "--tenant: 'a b': must be 1 to 64 letters"),
        (["create", "--limit", "x=3"], "--limit: there is no limit 'x'"),
        (["create", "--limit", "tokens_per_day=-3"], "--limit: tokens_per_day=-3: "),
        (["create", "--limit", "60"], "--limit: '60' is not a limit; write NAME=NUMBER"),
        (["create", "--expires", "soon"], "--expires: 'soon' is neither a time from now (90d, 12h) nor a date"),
        (["create", "--expires", "2020-01-01"], "--expires: '2020-01-01' is over already"),
        (["rotate", "key_x"], "There is no API key with the id 'key_x'."),
        (["rotate", "key_x", "--grace", "1 day"], "--grace: '1 day' is not a time"),
        (["revoke", "of-the-file"], "The key of-the-file stands in"),
    ],
)  # fmt: skip
def test_mistakes_are_told(run: Run, config: Path, flags: list[str], said: str) -> None:
    outcome = run("keys", *flags, "--config", str(config))
    assert outcome.code in (1, 2)
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_file_that_asks_for_no_keys(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    for text, said in (
        ("{}", "says nothing of keys"),
        ("keys: {stored: false, listed: [{name: a, key: 0123456789abcdef}]}", "stored"),
    ):
        file.write_text(text, encoding="utf-8")
        outcome = run("keys", "create", "--config", str(file))
        assert outcome.code == 1
        assert said in outcome.err


def test_times() -> None:
    assert [duration(text) for text in ("90s", "30m", "24h", "90d", "2w")] == [
        90,
        1800,
        86400,
        7776000,
        1209600,
    ]
    assert moment("2999-01-31") == moment("2999-01-31T00:00:00Z") == moment("2999-01-31T08:00:00+08:00")
