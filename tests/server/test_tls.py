"""TLS: served with a certificate, and what is said of files that are wrong."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from raw_http import RawClient
from remote_server import RemoteServer
from scripted_engine import engine_info
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from tokentrail.protocol import InvalidRequest
from tokentrail.server.config import ServerConfig
from tokentrail.server.tls import server_context

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """server.pem and server.key; other.key; locked.key, with a password; both.pem; none.pem."""
    folder = tmp_path_factory.mktemp("tls")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    curve = ("-pkeyopt", "ec_paramgen_curve:prime256v1")
    openssl("req", "-x509", "-newkey", "ec", *curve, "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
            names, "-keyout", folder / "server.key", "-out", folder / "server.pem")  # fmt: skip
    openssl(
        "genpkey",
        "-algorithm",
        "EC",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-out",
        folder / "other.key",
    )
    openssl(
        "pkey", "-in", folder / "server.key", "-aes256", "-passout", "pass:x", "-out", folder / "locked.key"
    )
    (folder / "both.pem").write_bytes(
        (folder / "server.key").read_bytes() + (folder / "server.pem").read_bytes()
    )
    (folder / "none.pem").write_text("nothing")
    return folder


@pytest.fixture(scope="module")
def secure(files: Path, text_parts: Any) -> Iterator[ScriptedServer]:
    config = {"ssl_certfile": str(files / "server.pem"), "ssl_keyfile": str(files / "server.key")}
    info = engine_info(max_model_len=100_000)
    server = ScriptedServer(text_parts, {**config, "send_timeout": 2.0}, {"info": info}, True)
    yield server
    server.close()


def trusting(files: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files / "server.pem")


def client(server: ScriptedServer, files: Path) -> openai.OpenAI:
    web = httpx.Client(verify=trusting(files))
    url = server.url.replace("http://", "https://") + "/v1"
    return openai.OpenAI(api_key="none", base_url=url, max_retries=0, http_client=web)


def test_the_openai_client_over_tls(secure: ScriptedServer, files: Path) -> None:
    ask = client(secure, files).completions
    whole = ask.create(model=MODEL, prompt="Hi", max_tokens=100, seed=1)
    for _ in range(3):
        stream = ask.create(model=MODEL, prompt="Hi", max_tokens=100, seed=1, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text == TEXT
    # As large as it is, each part arrives whole.
    long = ask.create(model=MODEL, prompt="Hi", max_tokens=100, logprobs=5, seed=1, echo=True)
    parts = list(
        ask.create(model=MODEL, prompt="Hi", max_tokens=100, logprobs=5, seed=1, echo=True, stream=True)
    )
    assert long.choices[0].logprobs is not None
    assert sum(
        len(part.choices[0].logprobs.tokens or ()) for part in parts if part.choices[0].logprobs
    ) == len(long.choices[0].logprobs.tokens or ())


def test_an_unknown_certificate_is_not_trusted(secure: ScriptedServer) -> None:
    with pytest.raises(httpx.ConnectError, match="self-signed certificate"):
        httpx.get(secure.url.replace("http://", "https://") + "/health")


def test_plain_http_at_a_port_of_tls(secure: ScriptedServer, files: Path) -> None:
    with RawClient(secure.url) as plain:
        plain.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert plain.ended
    assert client(secure, files).models.list().data[0].id == MODEL


def test_slow_and_lost_readers_over_tls(secure: ScriptedServer, files: Path) -> None:
    engine = secure.engine
    script, engine.script = engine.script, lambda request: [500] * 12_000
    try:
        ask = client(secure, files).completions
        stream = ask.create(model=MODEL, prompt="x", max_tokens=12_000, logprobs=5, stream=True)
        next(iter(stream))
        end = time.monotonic() + 15
        while not any(c.flow.write_paused for c in secure.web.server_state.connections):
            assert time.monotonic() < end
            time.sleep(0.01)
        held = max(c.transport.get_write_buffer_size() for c in secure.web.server_state.connections)
        assert held < 256 * 1024
        while engine.running:  # it reads nothing
            assert time.monotonic() < end
            time.sleep(0.01)
        stream.close()
        stream = ask.create(model=MODEL, prompt="x", max_tokens=12_000, stream=True)
        next(iter(stream))
        stream.close()  # it leaves
        while engine.running:
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        engine.script = script


def test_clients_with_certificates_only(files: Path, make_server: MakeServer) -> None:
    server = make_server(
        ssl_certfile=str(files / "both.pem"), ssl_ca_certs=str(files / "server.pem"), ssl_cert_reqs=2
    )
    url = server.url.replace("http://", "https://") + "/v1/models"
    context = trusting(files)
    with pytest.raises(httpx.TransportError):
        httpx.get(url, verify=context)
    context.load_cert_chain(files / "both.pem")
    assert httpx.get(url, verify=context).status_code == 200


WRONG = [
    ({"ssl_keyfile": "server.key"}, "--ssl-keyfile needs --ssl-certfile"),
    ({"ssl_cert_reqs": 2}, "--ssl-cert-reqs needs --ssl-certfile"),
    ({"ssl_certfile": "absent.pem"}, "--ssl-certfile .*absent.pem: No such file"),
    ({"ssl_certfile": "none.pem"}, "none.pem: there is no certificate in PEM"),
    (
        {"ssl_certfile": "server.pem"},
        "no private key in PEM in this file; name the file .* with --ssl-keyfile",
    ),
    (
        {"ssl_certfile": "server.pem", "ssl_keyfile": "none.pem"},
        "--ssl-keyfile .*none.pem: there is no private key",
    ),
    ({"ssl_certfile": "server.pem", "ssl_keyfile": "absent.key"}, "--ssl-keyfile .*absent.key: No such file"),
    (
        {"ssl_certfile": "server.pem", "ssl_keyfile": "other.key"},
        "other.key: this is not the key of the certificate",
    ),
    (
        {"ssl_certfile": "server.pem", "ssl_keyfile": "locked.key"},
        "locked.key: the key is encrypted.*openssl pkey",
    ),
    ({"ssl_certfile": "both.pem", "ssl_cert_reqs": 1}, "--ssl-cert-reqs needs --ssl-ca-certs"),
    (
        {"ssl_certfile": "both.pem", "ssl_ca_certs": "none.pem"},
        "--ssl-ca-certs .*none.pem: there is no certificate",
    ),
]


@pytest.mark.parametrize(("config", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_with_files_is_said(files: Path, config: dict[str, Any], message: str) -> None:
    paths = {key: str(files / value) if isinstance(value, str) else value for key, value in config.items()}
    with pytest.raises(InvalidRequest, match=message) as caught:
        server_context(ServerConfig(**paths))
    assert "\n" not in caught.value.message


def test_an_upstream_is_believed_only_by_its_certificate(
    files: Path, secure: ScriptedServer, text_parts: Any
) -> None:
    url = secure.url.replace("http://", "https://").replace("127.0.0.1", "localhost")
    believed: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"ca_file": str(files / "server.pem")}, True),
        ({"verify_tls": False}, True),
    ]
    for settings, well in believed:
        remote = RemoteServer(text_parts, url, {"kind": "tokentrail", **settings})
        try:
            answer = remote.chat()
            if well:
                assert answer.json()["choices"][0]["message"]["content"] == TEXT
            else:
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "upstream_unreachable"
                assert "certificate is not trusted" in answer.json()["error"]["message"]
        finally:
            remote.close()
