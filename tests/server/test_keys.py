"""Keys: who is let in, to what; and that one key sees nothing of another's."""

from __future__ import annotations

import hmac
from typing import Any

import httpx
import openai
import pytest
from scripted_server import MODEL, TEXT, MakeServer

from tokentrail.protocol import TokentrailError, Unauthorized
from tokentrail.server import keys
from tokentrail.server.keys import Keys

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
KEYS = ("token-abc123", "token-def456", "schlüssel")


def test_right_keys_are_let_in_and_wrong_ones_are_not(make_server: MakeServer) -> None:
    server = make_server(api_keys=KEYS[:2])
    for key in KEYS[:2]:
        answer = server.client(key).chat.completions.create(model=MODEL, messages=MESSAGES)
        assert answer.choices[0].message.content == TEXT
    for key in ("wrong", "token-abc12", "token-abc1234", "TOKEN-ABC123", "token-abc123 token-def456"):
        client = server.client(key)
        for call in (
            lambda: client.chat.completions.create(model=MODEL, messages=MESSAGES),  # noqa: B023
            lambda: client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True),  # noqa: B023
            lambda: client.completions.create(model=MODEL, prompt="x"),  # noqa: B023
            client.models.list,
        ):
            with pytest.raises(openai.AuthenticationError) as caught:
                call()
            assert caught.value.code == "invalid_api_key"
    assert len(server.engine.requests) == 2


def test_every_path_but_health_and_metrics_needs_a_key(make_server: MakeServer) -> None:
    server = make_server(api_keys=KEYS)
    for path in ("/health", "/health/live", "/health/ready", "/metrics"):
        assert server.get(path).status_code == 200
    paths = (
        "/v1/models",
        "/v1/models/x",
        "/v1/journeys",
        "/v1/journeys/x",
        "/docs",
        "/openapi.json",
        "/",
        "/x",
    )
    for path in paths:
        for headers in ({}, {"authorization": "token-abc123"}, {"authorization": "Basic token-abc123"}):
            response = server.get(path, headers=headers)
            assert response.status_code == 401, (path, headers)
            assert response.headers["www-authenticate"] == "Bearer"
            if path != "/":  # whose errors are TGI's: its clients ask there
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert server.post(path, {"model": MODEL}).status_code == 401


def test_every_key_is_compared_whether_or_not_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(keys.hmac, "compare_digest", counting)
    known = Keys(KEYS)
    tenants = {known.identify(f"Bearer {key}".encode()).tenant for key in KEYS}
    assert len(tenants) == 3
    assert all(key not in tenant for key in KEYS for tenant in tenants)
    with pytest.raises(Unauthorized):
        known.identify(b"Bearer nothing")
    with pytest.raises(TokentrailError, match="must not be empty"):
        Keys(("a", ""))
    assert len(compared) == 4 * 3
    assert {len(part) for pair in compared for part in pair} == {32}


def test_one_key_sees_nothing_of_another(make_server: MakeServer) -> None:
    server = make_server(api_keys=KEYS[:2])
    one = {"authorization": f"Bearer {KEYS[0]}", "x-request-id": "same-for-both"}
    two = {"authorization": f"Bearer {KEYS[1]}", "x-request-id": "same-for-both"}
    ids = []
    for headers in (one, two):
        response = server.post("/v1/completions", {"model": MODEL, "prompt": "x"}, **headers)
        ids.append(response.json()["id"])

    def get(path: str, headers: dict[str, str]) -> httpx.Response:
        return server.get("/v1/journeys" + path, headers=headers)

    assert [journey["id"] for journey in get("", one).json()["data"]] == [ids[0]]
    assert [journey["id"] for journey in get("", two).json()["data"]] == [ids[1]]
    assert get("/" + ids[0], one).status_code == 200
    assert get("/" + ids[0], two).status_code == 404
    assert get("/same-for-both", one).json()["id"] == ids[0]
    assert get("/same-for-both", two).json()["id"] == ids[1]
    # Nor do they share cached prefixes, whatever salts they choose.
    salts = [request.salt for request in server.engine.requests]
    server.post("/v1/completions", {"model": MODEL, "prompt": "x", "cache_salt": salts[0]}, **two)
    assert salts[0] != salts[1]
    assert server.engine.requests[-1].salt not in salts


def test_browsers_may_ask_from_allowed_origins_only(make_server: MakeServer) -> None:
    server = make_server(api_keys=KEYS, allowed_origins=("https://good.example",))
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    url = server.url + "/v1/chat/completions"
    good = server.http.options(url, headers={"origin": "https://good.example", **preflight})
    assert good.status_code == 200
    assert good.headers["access-control-allow-origin"] == "https://good.example"
    bad = server.http.options(url, headers={"origin": "https://bad.example", **preflight})
    assert "access-control-allow-origin" not in bad.headers
    refused = server.http.post(url, json={}, headers={"origin": "https://good.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://good.example"
    plain = make_server()
    response = httpx.get(plain.url + "/health", headers={"origin": "https://good.example"})
    assert "access-control-allow-origin" not in response.headers
