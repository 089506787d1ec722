"""The admin API: keys and tenants made, listed, changed, rotated and revoked, by admin keys only."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from scripted_server import MODEL, MakeServer, ScriptedServer
from typer.testing import CliRunner

from tokentrail.answer.parts import TextParts
from tokentrail.cli.app import app
from tokentrail.protocol import TokentrailError

FILE = """
keys:
  listed:
    - {name: of-the-file, key: a key of the file, tenant: filed}
tenants:
  - {name: filed, weight: 2}
"""
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


class Admin:
    """An admin's client of one server."""

    def __init__(self, server: ScriptedServer, key: str) -> None:
        self.server = server
        self.key = key

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {options.pop('key', self.key)}"}
        json = {} if body is None else {"json": body}
        url = f"{self.server.url}/admin/v1{path}"
        return self.server.http.request(method, url, headers=headers, **json, **options)

    def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        response = self.call(method, path, body, **options)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, str | None]:
        response = self.call(method, path, body, **options)
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return response.status_code, error["code"]

    def asks(self, key: str) -> int:
        """The status that a chat request with `key` gets."""
        url = f"{self.server.url}/v1/chat/completions"
        headers = {"authorization": f"Bearer {key}"}
        body = {"model": MODEL, "messages": MESSAGES}
        return self.server.http.post(url, json=body, headers=headers).status_code


def first_key(config: Path) -> str:
    """As an operator makes it."""
    result = CliRunner().invoke(app, ["keys", "create", "--admin", "--config", str(config), "--json"])
    assert result.exit_code == 0, result.output
    return str(json.loads(result.stdout)["key"])


@pytest.fixture(scope="module")
def admin(text_parts: TextParts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    config = tmp_path_factory.mktemp("admin") / "deploy.yaml"
    config.write_text(FILE, encoding="utf-8")
    key = first_key(config)
    server = ScriptedServer(text_parts, {"deployment": str(config)}, {}, True)
    yield Admin(server, key)
    server.close()


def test_the_life_of_a_key(admin: Admin) -> None:
    made = admin.ok("POST", "/keys", {"name": "app", "models": ["dem?"], "endpoints": ["chat"]})
    assert re.fullmatch(r"tt-[0-9A-Za-z]{59}", made["key"])
    assert admin.asks(made["key"]) == 200
    id = made["id"]
    shown = admin.ok("GET", f"/keys/{id}")
    assert shown == {name: value for name, value in made.items() if name != "key"}
    assert (shown["name"], shown["tenant"], shown["status"], shown["limits"]) == (
        "app",
        "default",
        "active",
        {},
    )

    changed = admin.ok("PATCH", f"/keys/{id}", {"models": ["other"], "limits": {"requests_per_minute": 3}})
    assert (changed["models"], changed["endpoints"], changed["name"]) == (["other"], ["chat"], "app")
    assert changed["limits"] == {"requests_per_minute": 3}
    assert admin.asks(made["key"]) == 404
    assert admin.ok("PATCH", f"/keys/{id}", {"models": None})["models"] is None

    rotated = admin.ok("POST", f"/keys/{id}/rotate")
    assert rotated["id"] == id
    assert rotated["old_key_until"] == pytest.approx(rotated["rotated_at"] + 86400, abs=1)
    assert [admin.asks(made["key"]), admin.asks(rotated["key"])] == [200, 200]
    again = admin.ok("POST", f"/keys/{id}/rotate", {"grace_s": 0})
    assert [admin.asks(key) for key in (made["key"], rotated["key"], again["key"])] == [401, 401, 200]

    assert admin.ok("POST", f"/keys/{id}/revoke")["status"] == "revoked"
    assert admin.asks(again["key"]) == 401
    assert admin.refused("POST", f"/keys/{id}/rotate") == (409, "key_not_usable")
    assert admin.refused("PATCH", f"/keys/{id}", {"name": "x"}) == (409, "key_revoked")


def test_limits_and_their_use(admin: Admin) -> None:
    admin.ok("POST", "/tenants", {"name": "measured", "limits": {"tokens_per_minute": 9000}})
    made = admin.ok("POST", "/keys", {"tenant": "measured", "limits": {"requests_per_minute": 5}})
    assert admin.asks(made["key"]) == 200
    uses = admin.ok("GET", f"/keys/{made['id']}/limits")["data"]
    assert [(one["of"], one["name"], one["limit"]) for one in uses] == [
        ("key", "requests_per_minute", 5),
        ("tenant", "tokens_per_minute", 9000),
    ]
    assert uses[0]["used"] == 1
    assert uses[1]["used"] > 1
    assert admin.ok("GET", "/tenants/measured/limits")["data"] == uses[1:]
    assert admin.refused("GET", "/keys/none/limits") == (404, "key_not_found")


def test_pages_hold_what_the_file_has_too(admin: Admin) -> None:
    admin.ok("POST", "/tenants", {"name": "paged"})
    ids = [admin.ok("POST", "/keys", {"tenant": "paged"})["id"] for _ in range(3)]
    gone = admin.ok("POST", "/keys", {"tenant": "paged"})["id"]
    admin.ok("POST", f"/keys/{gone}/revoke")
    page = admin.ok("GET", "/keys?tenant=paged&limit=2")
    assert ([key["id"] for key in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
    page = admin.ok("GET", f"/keys?tenant=paged&limit=2&after={page['last_id']}")
    assert ([key["id"] for key in page["data"]], page["has_more"]) == ([ids[0]], False)
    assert len(admin.ok("GET", "/keys?tenant=paged&status=all")["data"]) == 4

    seen: list[str] = []
    after = ""
    while True:
        page = admin.ok("GET", f"/keys?limit=3{after}")
        seen += [key["id"] for key in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert seen[-1] == "of-the-file"
    assert len(seen) == len(set(seen))
    assert set(ids) < set(seen)
    assert "tt-" not in json.dumps(admin.ok("GET", "/keys"))


def test_tenants(admin: Admin) -> None:
    made = admin.ok("POST", "/tenants", {"name": "acme", "weight": 2, "limits": {"tokens_per_day": None}})
    assert (made["weight"], made["limits"], made["disabled"]) == (2, {"tokens_per_day": None}, False)
    key = admin.ok("POST", "/keys", {"tenant": "acme"})["key"]
    assert admin.asks(key) == 200
    assert admin.ok("PATCH", "/tenants/acme", {"disabled": True})["weight"] == 2
    assert admin.asks(key) == 401
    assert admin.ok("PATCH", "/tenants/acme", {"disabled": False, "limits": None})["limits"] == {}
    assert admin.asks(key) == 200
    assert admin.refused("DELETE", "/tenants/acme") == (409, "tenant_in_use")
    admin.ok("POST", "/tenants", {"name": "empty"})
    assert admin.ok("DELETE", "/tenants/empty") == {"id": "empty", "object": "tenant", "deleted": True}
    assert admin.refused("GET", "/tenants/empty") == (404, "tenant_not_found")
    # The file's goes before the database's: there is one line of it, whatever keys it has there.
    admin.ok("POST", "/keys", {"tenant": "filed"})
    names = [one["name"] for one in admin.ok("GET", "/tenants?limit=100")["data"]]
    assert names[-1] == "filed"
    assert names.count("filed") == 1
    assert admin.ok("GET", "/tenants/filed")["weight"] == 2


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/keys", {"tenant": "nobody"}, (404, "tenant_not_found")),
        ("POST", "/keys", {"tenant": "a b"}, (400, None)),
        ("POST", "/keys", {"admin": "yes"}, (400, None)),
        ("POST", "/keys", {"expires": 1}, (400, None)),
        ("POST", "/keys", {"expires_at": 1}, (400, None)),
        ("POST", "/keys", {"endpoints": ["all"]}, (400, None)),
        ("POST", "/keys", {"models": []}, (400, None)),
        ("POST", "/keys", {"limits": {"cows": 3}}, (400, None)),
        ("POST", "/keys", {"limits": {"tokens_per_day": 0}}, (400, None)),
        ("POST", "/keys", [], (400, None)),
        ("GET", "/keys?limit=0", None, (400, None)),
        ("GET", "/keys?status=gone", None, (400, None)),
        ("GET", "/keys?after=key_x", None, (404, "after_not_found")),
        ("GET", "/keys/key_x", None, (404, "key_not_found")),
        ("PATCH", "/keys/key_x", {}, (404, "key_not_found")),
        ("PATCH", "/keys/of-the-file", {"name": "x"}, (409, "in_file")),
        ("POST", "/keys/of-the-file/revoke", None, (409, "in_file")),
        ("POST", "/keys/key_x/rotate", {"grace_s": -1}, (400, None)),
        ("POST", "/tenants", {"name": "default"}, (409, "tenant_exists")),
        ("POST", "/tenants", {"name": "filed"}, (409, "in_file")),
        ("POST", "/tenants", {"name": "w", "weight": 0}, (400, None)),
        ("PATCH", "/tenants/filed", {"weight": 3}, (409, "in_file")),
        ("GET", "/nothing", None, (404, "unknown_url")),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_openais_shape(
    admin: Admin, method: str, path: str, body: Any, said: tuple[int, str | None]
) -> None:
    assert admin.refused(method, path, body) == said


def test_only_admin_keys_may(admin: Admin) -> None:
    plain = admin.ok("POST", "/keys", {})["key"]
    for method, path in (("GET", "/keys"), ("POST", "/keys"), ("GET", "/tenants"), ("GET", "/nothing")):
        assert admin.refused(method, path, key=plain) == (403, "missing_scope")
        assert admin.refused(method, path, key="wrong") == (401, "invalid_api_key")
    with pytest.raises(openai.AuthenticationError):
        admin.server.client("wrong").models.list()
    # A page of another origin can have a browser send no key, and without one nothing is done.
    assert admin.server.http.post(admin.server.url + "/admin/v1/keys/x/revoke").status_code == 401


def test_it_is_in_the_openapi_document(admin: Admin) -> None:
    headers = {"authorization": f"Bearer {admin.key}"}
    document = admin.server.get("/openapi.json", headers=headers).json()
    listing = document["paths"]["/admin/v1/keys"]["get"]
    assert {one["name"] for one in listing["parameters"]} == {"limit", "after", "tenant", "status"}
    schema = document["paths"]["/admin/v1/keys"]["post"]
    assert "expires_at" in schema["requestBody"]["content"]["application/json"]["schema"]["properties"]
    answered = schema["responses"]["200"]["content"]["application/json"]["schema"]
    assert "key" in answered["required"]
    assert "/admin/v1/tenants/{name}" in document["paths"]


def test_the_command_line_works_while_a_server_runs(admin: Admin, tmp_path: Path) -> None:
    gateway = admin.server.state.gateway
    assert gateway is not None
    key = first_key(gateway.path)
    assert admin_key_comes(admin, key)
    id = "key_" + key[3:13]
    result = CliRunner().invoke(app, ["keys", "revoke", id, "--config", str(gateway.path)])
    assert result.exit_code == 0
    assert admin_key_goes(admin, key)


def admin_key_comes(admin: Admin, key: str) -> bool:
    while admin.call("GET", "/keys", key=key).status_code != 200:
        assert admin.call("GET", "/keys").status_code == 200
    return True


def admin_key_goes(admin: Admin, key: str) -> bool:
    while admin.call("GET", "/keys", key=key).status_code == 200:
        pass
    return True


def test_the_database_holds_no_key(admin: Admin) -> None:
    made = admin.ok("POST", "/keys", {})
    gateway = admin.server.state.gateway
    assert gateway is not None
    folder = gateway.path.parent
    with sqlite3.connect(folder / "tokentrail.db") as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    written = b"".join(file.read_bytes() for file in folder.iterdir())
    assert made["id"].encode() in written
    for key in (made["key"], admin.key):
        assert key.encode() not in written
        assert key[13:56].encode() not in written


def test_it_is_off_where_others_can_reach_the_server(make_server: MakeServer, tmp_path: Path) -> None:
    config = tmp_path / "deploy.yaml"
    for text, host, code in (
        ("keys: {}", "0.0.0.0", "admin_api_off"),
        ("keys: {admin_api: false}", "127.0.0.1", "admin_api_off"),
        ("keys: {admin_api: true}", "0.0.0.0", "key_not_found"),
        (
            "keys: {stored: false, listed: [{name: ops, key: a key of the file, admin: true}]}",
            "127.0.0.1",
            "unknown_url",
        ),
    ):
        config.write_text(text, encoding="utf-8")
        key = "a key of the file" if "listed" in text else first_key(config)
        server = Admin(make_server(deployment=str(config), host=host), key)
        assert server.refused("GET", "/keys/key_x") == (404, code)
        assert server.call("GET", "/keys", key="wrong").status_code == 401


def test_a_server_does_not_start_with_a_database_that_it_cannot_open(
    tmp_path: Path, make_server: MakeServer
) -> None:
    from tokentrail.gateway import Gateway

    config = tmp_path / "deploy.yaml"
    config.write_text("keys: {}\ndatabase: sqlite:///no/such/folder/keys.db\n", encoding="utf-8")
    with pytest.raises(TokentrailError, match=r"the folder .* is not there"):
        Gateway(config).prepare()
