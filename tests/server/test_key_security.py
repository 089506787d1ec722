"""Keys leave nothing behind: not in logs, metrics, journeys, errors or dumps, and not in process listings; and who
tries many gets slow.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import MODEL, MakeServer
from typer.testing import CliRunner

from tokentrail.answer import Identity
from tokentrail.cli.app import app
from tokentrail.cli.hiding import secret_spans
from tokentrail.engine.child import _environment
from tokentrail.gateway.config import load
from tokentrail.protocol import Unauthorized
from tokentrail.server import attempts
from tokentrail.server.attempts import BURST, Attempts, TooManyWrongKeys
from tokentrail.server.config import ServerConfig
from tokentrail.server.scopes import OTHER, check_endpoint, endpoint_of

FLAG_KEY = "flag-key-MARKED-1"
FILE_KEY = "file-key-MARKED-2"
PEPPER = "pepper-MARKED-3456"


def test_keys_leave_nothing_behind(
    make_server: MakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("httpx", "httpcore"):  # the client's, not the server's
        caplog.set_level(logging.WARNING, logger=name)
    for name in logging.root.manager.loggerDict:
        if not name.startswith(("httpx", "httpcore")):
            monkeypatch.setattr(logging.getLogger(name), "disabled", False)
            caplog.set_level(logging.DEBUG, logger=name)
    caplog.set_level(logging.DEBUG)
    config = tmp_path / "deploy.yaml"
    config.write_text(
        f"keys: {{listed: [{{name: filed, key: {FILE_KEY}, admin: true}}], pepper: {PEPPER}}}\n"
        f"access_log: {tmp_path / 'access.jsonl'}\n",
        encoding="utf-8",
    )
    made = CliRunner().invoke(app, ["keys", "create", "--config", str(config), "--json"])
    stored = json.loads(made.stdout)["key"]
    server = make_server(deployment=str(config), api_keys=(FLAG_KEY,))
    wrong = stored[:-1] + ("a" if stored[-1] != "a" else "b")
    unknown = "tt-MARKEDMARKEDMARKED"
    keys = [FLAG_KEY, FILE_KEY, stored, wrong, unknown]
    said: list[str] = []
    for key in keys:
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key, "anthropic-version": "1"}):
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
            for path in (
                "/v1/chat/completions",
                "/v1/messages",
                "/admin/v1/keys",
                f"/v1/nothing?api_key={key}",
            ):
                response = server.post(path, body, **headers)
                said.append(f"{response.headers} {response.text}")
            for path in ("/v1/journeys", "/v1/models", "/metrics", "/health", "/openapi.json", "/v1/about"):
                said.append(server.get(path, headers=headers).text)
        # A key in a URL is no key.
        for name in ("api_key", "key", "access_token", "token"):
            response = server.get(f"/v1/models?{name}={key}")
            assert response.status_code == 401
            said.append(response.text)
    said += [caplog.text, repr(server.state.config), repr(load(config)), str(load(config).model_dump())]
    said += [file.read_text(errors="replace") for file in tmp_path.iterdir() if file != config]
    secrets = [FLAG_KEY, FILE_KEY, stored, stored[13:], wrong, unknown, PEPPER]
    for text in said:
        found = [secret for secret in secrets if secret in text]
        assert not found, text[:2000]
    assert "401 invalid_api_key" in caplog.text
    assert "filed" in (tmp_path / "access.jsonl").read_text()
    assert repr(ServerConfig(api_keys=("a",))).count("api_keys=1 keys") == 1


# --- process listings ------------------------------------------------------------------------------------

_SHOW = """
import os, subprocess
from tokentrail.cli.hiding import hide_keys
print(hide_keys(), end="|")
print(open("/proc/self/cmdline", "rb").read().decode(), end="|", flush=True)
subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(os.getpid())])
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux lets a process hide its arguments"
)
def test_keys_are_taken_out_of_process_listings(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(_SHOW, encoding="utf-8")
    arguments = [
        "--port",
        "8000",
        "--api-key",
        "MARKED-é",
        "MARKED2",
        "--host",
        "::1",
        "--api-key=MARKED3",
        "-x",
        "kept",
    ]
    result = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    hidden, line, listed = result.stdout.split("|")
    assert hidden == "True"
    for shown in (line, listed):
        assert "MARKED" not in shown
        assert "kept" in shown
        assert "8000" in shown
    assert line.split("\0")[5:] == [
        "*********",
        "*******",
        "--host",
        "::1",
        "--api-key=*******",
        "-x",
        "kept",
        "",
    ]


@given(
    st.lists(st.sampled_from(["--api-key", "--api-key=k1", "k2", "k3", "--host", "-m", "serve", "--", "***"]))
)
def test_what_stands_behind_the_flag_is_a_key(words: list[str]) -> None:
    line = b"".join(word.encode() + b"\0" for word in words)
    spans = secret_spans(line)
    hidden = bytearray(line)
    for first, end in spans:
        assert line[first:end] not in (b"", b"***")
        hidden[first:end] = b"*" * (end - first)
    assert not secret_spans(bytes(hidden))
    behind = False
    for before, after in zip(words, bytes(hidden).decode().split("\0"), strict=False):
        if before.startswith("-"):
            behind = before.startswith("--api-key")
            assert after == before.replace("k1", "**")
        else:
            assert set(after) == {"*"} if behind else after == before


def test_the_engine_process_knows_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENTRAIL_API_KEY", "MARKED")
    assert "MARKED" in os.environ.values()
    assert "MARKED" not in _environment().values()


# --- trying many -----------------------------------------------------------------------------------------


def test_who_tries_many_keys_learns_nothing_for_a_while(make_server: MakeServer) -> None:
    server = make_server(api_keys=("right", "never-used"))

    def ask(key: str) -> Any:
        return server.get("/v1/models", headers={"authorization": f"Bearer {key}"})

    assert ask("right").status_code == 200
    statuses = {ask(f"wrong-{n}").status_code for n in range(BURST)}
    assert statuses == {401}
    while (refused := ask("wrong")).status_code == 401:  # on a slow machine some time has passed
        pass
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "too_many_wrong_keys"
    assert int(refused.headers["retry-after"]) >= 1
    # Others behind the same address go on; requests without a key are told that they have none.
    assert ask("right").status_code == 200
    assert server.get("/v1/models").status_code == 401


def test_a_right_key_is_not_told_from_a_wrong_one_then() -> None:
    now = [0.0]
    counted = Attempts(lambda: now[0])
    known, fresh = Identity(key="known"), Identity(key="fresh")
    error = Unauthorized("no")
    counted.right("1.2.3.4", known)
    for _ in range(BURST):
        assert counted.wrong("1.2.3.4", error) is error
    assert isinstance(counted.wrong("1.2.3.4", error), TooManyWrongKeys)
    with pytest.raises(TooManyWrongKeys):
        counted.right("1.2.3.4", fresh)
    counted.right("1.2.3.4", known)
    counted.right("4.3.2.1", fresh)
    assert counted.wrong("4.3.2.1", error) is error
    now[0] = 1.0  # one a second
    assert counted.wrong("1.2.3.4", error) is error
    assert isinstance(counted.wrong("1.2.3.4", error), TooManyWrongKeys)
    now[0] = 1000.0
    counted.right("1.2.3.4", fresh)


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    counted = Attempts(lambda: 0.0)
    error = Unauthorized("no")
    for n in range(BURST):
        assert counted.wrong(f"2001:db8::{n:x}", error) is error
    assert counted.wrong("2001:db8::ffff", error) is not error
    assert counted.wrong("2001:db8:0:1::1", error) is error
    for n in range(BURST):  # IPv4 over IPv6: each its own
        assert counted.wrong(f"::ffff:10.0.0.{n}", error) is error
    assert counted.wrong("::ffff:10.0.0.1", error) is error
    assert counted.wrong("fe80::1%eth0", error) is error
    assert counted.wrong("", error) is error


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MOST", 50)
    counted = Attempts(lambda: 0.0)
    for n in range(500):
        counted.wrong(f"10.0.{n // 256}.{n % 256}", Unauthorized("no"))
        counted.right("127.0.0.1", Identity(key=f"k{n}"))
    assert len(counted._wrong) == 50
    assert len(counted._known) == 50


# --- scopes ----------------------------------------------------------------------------------------------


def test_keys_are_held_to_their_endpoints_and_models(make_server: MakeServer, tmp_path: Path) -> None:
    config = tmp_path / "deploy.yaml"
    config.write_text(
        """
keys:
  stored: false
  listed:
    - {name: chats, key: key-for-the-chats, endpoints: [chat, tokens]}
    - {name: others, key: key-for-the-others, models: ["llama-*"]}
    - {name: embeds, key: key-for-the-vectors, endpoints: [embeddings], models: [demo]}
""",
        encoding="utf-8",
    )
    server = make_server(deployment=str(config))
    chat: Any = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    kinds: list[tuple[Any, tuple[str, ...]]] = [
        (chat, ("/v1/chat/completions", "/v1/messages", "/api/chat")),
        ({"prompt": "Hi"}, ("/v1/completions", "/completion", "/tokenize")),
        ({"input": "Hi"}, ("/v1/embeddings", "/v1/responses")),
        ({"inputs": "Hi"}, ("/generate", "/")),
        ({}, ("/api/show", "/v1/files")),
    ]
    bodies = {path: body for body, paths in kinds for path in paths}

    def status(key: str, path: str, model: str = MODEL) -> tuple[int, str | None]:
        body = {"model": model, "stream": False, **bodies[path]}
        response = server.post(path, body, authorization=f"Bearer {key}")
        error = response.json().get("error") if response.status_code != 200 else None
        return response.status_code, error.get("code") if isinstance(error, dict) else None

    for path in ("/v1/chat/completions", "/api/chat", "/v1/messages", "/tokenize"):
        assert status("key-for-the-chats", path)[0] == 200, path
    for path in (
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/completion",
        "/generate",
        "/",
        "/v1/files",
    ):
        assert status("key-for-the-chats", path)[0] == 403, path
    assert status("key-for-the-chats", "/v1/completions") == (403, "missing_scope")
    models = server.get("/v1/models", headers={"authorization": "Bearer key-for-the-chats"}).json()["data"]
    assert [one["id"] for one in models] == [MODEL]

    # To who may not ask a model, there is none.
    headers = {"authorization": "Bearer key-for-the-others"}
    assert server.get("/v1/models", headers=headers).json()["data"] == []
    assert server.get(f"/v1/models/{MODEL}", headers=headers).status_code == 404
    assert server.get("/api/tags", headers=headers).json()["models"] == []
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
        found = status("key-for-the-others", path)
        assert found == status("key-for-the-others", path, model="none") == (404, "model_not_found")
    for path in (
        "/api/chat",
        "/completion",
        "/generate",
        "/v1/messages",
        "/v1/responses",
        "/tokenize",
        "/api/show",
    ):
        assert status("key-for-the-others", path)[0] == 404, path
    for path in ("/props", "/slots", "/info"):
        assert server.get(path, headers=headers).status_code == 404, path
    assert status("key-for-the-vectors", "/v1/embeddings")[0] == 200
    assert not [request for request in server.engine.requests if request.tenant != "default"]


def test_each_kind_of_endpoint_has_its_paths() -> None:
    kinds = {
        "chat": ["/v1/chat/completions", "/v1/messages", "/api/chat"],
        "completions": [
            "/v1/completions",
            "/completion",
            "/infill",
            "/api/generate",
            "/generate",
            "/generate_stream",
        ],
        "responses": ["/v1/responses", "/v1/responses/resp_1", "/v1/responses/resp_1/input_items"],
        "embeddings": ["/v1/embeddings", "/embedding", "/api/embed", "/api/embeddings"],
        "files": ["/v1/files", "/v1/files/file-1/content", "/v1/batches", "/v1/batches/b/cancel"],
        "tokens": ["/tokenize", "/detokenize", "/v1/messages/count_tokens", "/apply-template"],
        "journeys": ["/v1/journeys", "/v1/journeys/x"],
        "moderations": ["/v1/moderations"],
        "": ["/v1/models", "/v1/models/a/b", "/openapi.json", "/props", "/info", "/api/tags"],
        OTHER: ["/slots", "/v1/models-of-others", "/v1", "/", "/anything/at/all", "//v1/models", ""],
    }
    for kind, paths in kinds.items():
        for path in paths:
            found = endpoint_of("GET", path)
            assert found == ("" if path == "/" else kind), path
    assert endpoint_of("POST", "/") == "completions"
    check_endpoint(Identity(), "POST", "/anything")
