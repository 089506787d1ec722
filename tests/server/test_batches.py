"""/v1/files and /v1/batches by the unmodified `openai` client, before a scripted engine."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from tokentrail.answer.parts import TextParts
from tokentrail.protocol import Overloaded, TokentrailError
from tokentrail.server.batches import lines as lines_of_batches
from tokentrail.server.batches.bodies import BatchBody, FileBody
from tokentrail.server.batches.store import Owner, Store
from tokentrail.server.batches.upload import Upload

OVER = {"completed", "failed", "expired", "cancelled"}


def line(id: str, *, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Say {id} 🎉"}]
    whole = {"model": MODEL, "max_tokens": 100, **({"messages": messages} if "chat" in url else {}), **body}
    return {"custom_id": id, "method": "POST", "url": url, "body": whole}


def jsonl(lines: list[Any]) -> bytes:
    return "".join(
        (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)) + "\n" for one in lines
    ).encode()


def upload(client: openai.OpenAI, lines: list[Any], name: str = "in.jsonl") -> Any:
    return client.files.create(file=(name, jsonl(lines)), purpose="batch")


def start(client: openai.OpenAI, lines: list[Any], **options: Any) -> Any:
    given: Any = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **options}
    return client.batches.create(input_file_id=upload(client, lines).id, **given)


def wait(client: openai.OpenAI, id: str, seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while (batch := client.batches.retrieve(id)).status not in OVER:
        assert time.monotonic() < end, batch
        time.sleep(0.02)
    return batch


def results(client: openai.OpenAI, id: str | None) -> list[Any]:
    return [] if id is None else [json.loads(one) for one in client.files.content(id).text.splitlines()]


@pytest.fixture
def server(make_server: MakeServer, tmp_path: Path) -> ScriptedServer:
    return make_server(files_dir=str(tmp_path / "files"))


@pytest.fixture(scope="module")
def shared(text_parts: TextParts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    """For tests that do not mind what others have left."""
    server = ScriptedServer(text_parts, {"files_dir": str(tmp_path_factory.mktemp("files"))}, {}, True)
    yield server
    server.close()


# --- files -----------------------------------------------------------------------------------------------


def test_a_file_comes_back_as_it_was(server: ScriptedServer, tmp_path: Path) -> None:
    client = server.client()
    content = jsonl([line("a"), line("é世界")]) + b"\r\n\x00\xff--boundary\r\n"
    file = client.files.create(file=("../../etc/pass wörd.jsonl", content), purpose="batch")
    assert file.id.startswith("file-")
    assert (file.bytes, file.purpose, file.object, file.status) == (
        len(content),
        "batch",
        "file",
        "processed",
    )
    assert file.filename == "pass wörd.jsonl"
    assert client.files.retrieve(file.id) == file
    response = client.files.content(file.id)
    assert response.content == content
    stored = list((tmp_path / "files" / "content").iterdir())
    assert [path.name for path in stored] == [file.id]
    deleted = client.files.delete(file.id)
    assert (deleted.id, deleted.deleted) == (file.id, True)
    assert not list((tmp_path / "files" / "content").iterdir())
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        client.files.delete(file.id)


async def test_pages_of_files_and_the_asynchronous_client(server: ScriptedServer) -> None:
    client = server.async_client()
    made = [
        await client.files.create(file=(f"{n}.jsonl", jsonl([line("a")])), purpose="batch") for n in range(5)
    ]
    newest_first = [file.id for file in reversed(made)]
    first = await client.files.list(limit=2)
    assert ([file.id for file in first.data], first.has_more) == (newest_first[:2], True)
    assert [file.id async for file in client.files.list(limit=2)] == newest_first
    assert [file.id async for file in client.files.list(order="asc", purpose="batch")] == newest_first[::-1]
    assert [file.id async for file in client.files.list(purpose="batch_output")] == []
    assert (await client.files.content(made[0].id)).content == jsonl([line("a")])
    with pytest.raises(openai.BadRequestError, match="after"):
        await client.files.list(after="file-none")
    with pytest.raises(openai.BadRequestError, match="limit"):
        await client.files.list(limit=0)


@pytest.mark.parametrize(
    ("form", "status", "words"),
    [
        ({"files": {"file": ("a", b"x")}}, 400, "You must provide purpose"),
        ({"data": {"purpose": "batch"}, "files": {"other": ("a", b"x")}}, 400, "You must provide file"),
        ({"data": {"purpose": "vision"}, "files": {"file": ("a", b"x")}}, 400, "purpose must be batch"),
        ({"data": {"purpose": "batch"}, "files": {"file": ("a", b"")}}, 400, "empty"),
        ({"data": {"purpose": "batch", "file": "text"}}, 415, "form"),
        ({"json": {"purpose": "batch"}}, 415, "multipart/form-data"),
        ({"files": [("file", ("a", b"x")), ("file", ("b", b"y"))]}, 400, "one file only"),
        ({"data": {"purpose": "b" * 70_000}, "files": {"file": ("a", b"x")}}, 413, "larger"),
        (
            {"content": b"--x\r\nnonsense", "headers": {"content-type": "multipart/form-data; boundary=x"}},
            400,
            "no valid multipart form",
        ),
        (
            {
                "content": b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nabc',
                "headers": {"content-type": "multipart/form-data; boundary=x"},
            },
            400,
            "ends too early",
        ),
    ],
)
def test_forms_that_are_wrong(shared: ScriptedServer, form: dict[str, Any], status: int, words: str) -> None:
    response = shared.http.post(f"{shared.url}/v1/files", **form)
    assert response.status_code == status, response.text
    assert words in response.json()["error"]["message"]
    assert not list((Path(shared.config.files_dir or "") / "tmp").iterdir())


def test_a_file_that_is_too_large(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(files_dir=str(tmp_path), max_file_bytes=100_000)
    client = server.client()
    assert client.files.create(file=("a", b"x" * 100_000), purpose="batch").bytes == 100_000
    with pytest.raises(openai.APIStatusError) as error:
        client.files.create(file=("a", b"x" * 100_001), purpose="batch")
    assert error.value.status_code == 413

    def endless() -> Any:
        yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(100):
            yield b"y" * 10_000

    headers = {"content-type": "multipart/form-data; boundary=x"}
    try:
        response = httpx.post(f"{server.url}/v1/files", content=endless(), headers=headers)
        assert response.status_code == 413
    except httpx.TransportError:  # the rest was not read
        pass
    assert len(list((tmp_path / "content").iterdir())) == 1
    assert not list((tmp_path / "tmp").iterdir())


def test_files_of_a_key_have_a_quota(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(files_dir=str(tmp_path), files_quota_bytes=8000, api_keys=("one", "two"))
    client, other = server.client("one"), server.client("two")

    def put(client: openai.OpenAI, size: int) -> Any:
        return client.files.create(file=("a", b"x" * size), purpose="batch")

    kept = put(client, 7000)
    for size in (2000, 9000):
        with pytest.raises(openai.APIStatusError, match="7000 are in use") as error:
            put(client, size)
        assert (error.value.status_code, error.value.code) == (413, "files_quota_exceeded")
    put(other, 2000)
    client.files.delete(kept.id)
    put(client, 2000)

    # Results count, too: what would come on top of them is not asked.
    batch = wait(client, start(client, [line(str(at)) for at in range(24)]).id)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert counts.completed >= 1
    assert counts.failed >= 1
    assert counts.completed + counts.failed == 24
    refused = results(client, batch.error_file_id)
    assert {one["error"]["code"] for one in refused} == {"files_quota_exceeded"}
    with pytest.raises(openai.APIStatusError, match="--files-quota"):
        put(client, 10)
    for file in client.files.list():
        client.files.delete(file.id)
    assert put(client, 3500).bytes == 3500
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "https://evil.example", "authorization": "Bearer none"}, 200),
        ({"origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}, 200),
        ({}, 200),
    ],
)
def test_foreign_pages_cannot_upload(shared: ScriptedServer, headers: dict[str, str], status: int) -> None:
    form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("a", b"x")}}
    response = shared.http.post(f"{shared.url}/v1/files", headers=headers, **form)
    assert response.status_code == status, response.text


def test_however_a_form_is_cut(tmp_path: Path) -> None:
    chance = random.Random(4)
    content = b"\r\n--bound\r\n-- \x00" + bytes(chance.choices(b"\r\n-bound\x00", k=3000)) + b"\r\n--boun"
    head = b'--bounds\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--bounds\r\n'
    head += 'Content-Disposition: form-data; name="file"; filename="文件.jsonl"\r\nX: y\r\n\r\n'.encode()
    whole = head + content + b"\r\n--bounds--\r\n"
    for number, longest in enumerate((1, 2, 7, 100, 10_000)):
        draft = tmp_path / str(number)
        form = Upload(b"bounds", draft, len(content))
        at = 0
        while at < len(whole):
            size = chance.randint(1, longest)
            form.write(whole[at : at + size])
            at += size
        form.finish()
        assert draft.read_bytes() == content
        assert (form.fields, form.filename, form.size) == ({"purpose": "batch"}, "文件.jsonl", len(content))


def test_without_a_folder(make_server: MakeServer) -> None:
    client = make_server().client()
    for ask in (client.files.list, client.batches.list, lambda: upload(client, [line("a")])):
        with pytest.raises(openai.NotFoundError, match="--files-dir"):
            ask()


def test_a_folder_has_one_server(make_server: MakeServer, tmp_path: Path) -> None:
    make_server(files_dir=str(tmp_path))
    with pytest.raises(TokentrailError, match="another server uses this folder"):
        Store(tmp_path)
    with pytest.raises(TokentrailError, match="cannot be used"):
        Store(Path("/proc/nowhere"))


# --- batches ---------------------------------------------------------------------------------------------


def test_lines_get_what_http_requests_get(server: ScriptedServer) -> None:
    client = server.client()
    lines = [
        line("good"),
        line("wrong 世界", temperature=-1),
        line("n", n=2, seed=3),
        line("model", model="other"),
    ]
    batch = start(client, lines, metadata={"for": "tests"})
    assert batch.status == "validating"
    batch = wait(client, batch.id)
    assert batch.status == "completed"
    assert batch.metadata == {"for": "tests"}
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (4, 2, 2)
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert batch.expires_at == batch.created_at + 24 * 3600
    good = results(client, batch.output_file_id)
    bad = results(client, batch.error_file_id)
    assert [one["custom_id"] for one in good] == ["good", "n"]
    assert [one["custom_id"] for one in bad] == ["wrong 世界", "model"]
    assert [one["response"]["status_code"] for one in bad] == [400, 404]
    assert good[0]["response"]["body"]["choices"][0]["message"]["content"] == TEXT
    assert len(good[1]["response"]["body"]["choices"]) == 2
    for result, given in zip([*good, *bad], [lines[0], lines[2], lines[1], lines[3]], strict=True):
        direct = server.post(given["url"], given["body"])
        assert result["error"] is None
        assert result["id"].startswith("batch_req_")
        response = result["response"]
        assert response["status_code"] == direct.status_code
        theirs, ours = direct.json(), response["body"]
        for body in (theirs, ours):
            for name in ("id", "created", "seed"):
                body.pop(name, None)
            if "error" in body:
                body["error"].pop("request_id", None)
        assert ours == theirs
    file = client.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert server.engine.requests[0].priority > 1000
    journey = server.get(f"/v1/journeys/{good[0]['response']['request_id']}").json()
    assert journey["outcome"] == "stop"


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/embeddings", {"input": ["Hi", "世界"]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
def test_other_endpoints(shared: ScriptedServer, endpoint: str, body: dict[str, Any]) -> None:
    client = shared.client()
    lines = [
        {"custom_id": str(n), "method": "POST", "url": endpoint, "body": {"model": MODEL, **body}}
        for n in range(20)
    ]
    batch = wait(client, start(client, lines, endpoint=endpoint).id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 20), batch
    assert [one["custom_id"] for one in results(client, batch.output_file_id)] == [str(n) for n in range(20)]


async def test_the_asynchronous_client(shared: ScriptedServer) -> None:
    client = shared.async_client()
    file = await client.files.create(file=("in.jsonl", jsonl([line("a")])), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while (batch := await client.batches.retrieve(batch.id)).status not in OVER:
        await asyncio.sleep(0.02)
    assert batch.status == "completed"
    assert (await client.batches.list(limit=1)).data[0].id == batch.id
    ids = [one.id async for one in client.batches.list(limit=1)]
    assert ids[0] == batch.id
    assert len(set(ids)) == len(ids)


def test_errors_of_a_file_have_their_lines(server: ScriptedServer) -> None:
    client = server.client()
    lines: list[Any] = [
        line("fine"),
        "not json",
        "",
        {"method": "POST", "url": "/v1/chat/completions", "body": {}},
        line("fine"),
        {**line("get"), "method": "GET"},
        {**line("elsewhere"), "url": "/v1/embeddings"},
        {**line("list"), "body": []},
        line("streamed", stream=True),
        {**line("5"), "custom_id": 5},
        line(""),
        '{"custom_id": "deep", "method": "POST", "url": "", "body": ' + "[" * 10_000,
    ]
    batch = wait(client, start(client, lines).id)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.output_file_id is None
    found = [(error.line, error.code) for error in batch.errors.data]
    assert found == [
        (2, "invalid_json_line"),
        (4, "missing_required_parameter"),
        (5, "duplicate_custom_id"),
        (6, "invalid_method"),
        (7, "invalid_url"),
        (8, "invalid_request"),
        (9, "invalid_request"),
        (10, "invalid_request"),
        (11, "invalid_custom_id"),
        (12, "invalid_json_line"),
    ]
    assert batch.errors.data[1].param == "custom_id"
    assert not server.engine.requests
    empty = wait(client, start(client, ["", " "]).id)
    assert [error.code for error in empty.errors.data] == ["empty_file"]
    bad_utf8 = client.files.create(file=("a", b'{"custom_id": "\xff"}\n'), purpose="batch")
    batch = client.batches.create(
        input_file_id=bad_utf8.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    assert [error.code for error in wait(client, batch.id).errors.data] == ["invalid_json_line"]


def test_long_lines_and_many(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_of_batches, "MOST_LINES", 50)
    server = make_server(files_dir=str(tmp_path), max_body_bytes=2000)
    client = server.client()
    batch = wait(client, start(client, [line("a"), line("long", user="u" * 3000), line("b")]).id)
    assert [(error.line, error.code) for error in batch.errors.data] == [(2, "line_too_long")]
    many = wait(client, start(client, [line(str(n)) for n in range(51)]).id)
    assert [error.code for error in many.errors.data] == ["too_many_requests"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "15d"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"input_file_id": "../store.sqlite"}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a" * 65: "b"}}, "metadata"),
    ],
)
def test_what_is_wrong_is_named(shared: ScriptedServer, change: dict[str, Any], param: str) -> None:
    id = upload(shared.client(), [line("a")]).id
    body = {"input_file_id": id, "endpoint": "/v1/chat/completions", "completion_window": "24h", **change}
    response = shared.post("/v1/batches", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    for path in ("/v1/batches/none", "/v1/files/..%2Fstore.sqlite/content", "/v1/files/none/content"):
        assert shared.get(path).status_code == 404


def test_concurrency_is_bounded(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(files_dir=str(tmp_path), batch_concurrency=3, engine={"first_delay": 0.05})
    client = server.client()
    batches = [start(client, [line(f"{n}") for n in range(10)]) for _ in range(2)]
    assert all(wait(client, batch.id).request_counts.completed == 10 for batch in batches)
    assert server.engine.most_running == 3


def test_cancelling_keeps_what_is_done(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(files_dir=str(tmp_path), batch_concurrency=2, engine={"first_delay": 0.1})
    client = server.client()
    batch = start(client, [line(str(n)) for n in range(100)])
    while client.batches.retrieve(batch.id).request_counts.completed < 3:
        time.sleep(0.02)
    with pytest.raises(openai.BadRequestError, match="not over"):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = wait(client, batch.id)
    assert batch.status == "cancelled"
    assert batch.cancelling_at <= batch.cancelled_at
    counts = batch.request_counts
    assert 3 <= counts.completed < 50
    assert counts.completed + counts.failed == counts.total == 100
    done, left = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert sorted(int(one["custom_id"]) for one in [*done, *left]) == list(range(100))
    assert all(one["response"] is None and one["error"]["code"] == "batch_cancelled" for one in left)
    assert not server.engine.running
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
    client.files.delete(batch.input_file_id)


def test_expiry(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(files_dir=str(tmp_path), batch_concurrency=1, engine={"first_delay": 0.3})
    client = server.client()
    batch = start(client, [line(str(n)) for n in range(50)], completion_window="2s")
    batch = wait(client, batch.id)
    assert batch.status == "expired"
    assert batch.expired_at >= batch.expires_at
    counts = batch.request_counts
    assert 0 < counts.completed < 20
    assert counts.completed + counts.failed == 50
    left = results(client, batch.error_file_id)
    assert {one["error"]["code"] for one in left} == {"batch_expired"}


def test_a_full_queue_is_waited_for(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(files_dir=str(tmp_path), engine={"error": Overloaded("full")})
    client = server.client()
    batch = start(client, [line("a")])
    while not server.engine.requests:
        time.sleep(0.01)
    assert client.batches.retrieve(batch.id).status == "in_progress"
    server.engine.error = None
    batch = wait(client, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 1)


def test_tenants_see_their_own(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(files_dir=str(tmp_path), api_keys=("one", "two"))
    one, two = server.client("one"), server.client("two")
    batch = wait(one, start(one, [line("a")]).id)
    assert batch.status == "completed"
    assert list(two.files.list()) == []
    assert list(two.batches.list()) == []
    for ask in (
        lambda: two.files.retrieve(batch.input_file_id),
        lambda: two.files.content(batch.output_file_id),
        lambda: two.files.delete(batch.input_file_id),
        lambda: two.batches.retrieve(batch.id),
        lambda: two.batches.cancel(batch.id),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    with pytest.raises(openai.BadRequestError, match="no file"):
        two.batches.create(
            input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    with pytest.raises(openai.AuthenticationError):
        server.client("three").files.list()
    tenants = {request.tenant for request in server.engine.requests}
    assert len(tenants) == 1
    assert "" not in tenants


def test_a_batch_ends_with_the_key_that_made_it(make_server: MakeServer, tmp_path: Path) -> None:
    deployment = tmp_path / "deploy.yaml"
    deployment.write_text("keys: {}", encoding="utf-8")
    server = make_server(
        files_dir=str(tmp_path / "files"),
        batch_concurrency=2,
        deployment=str(deployment),
        engine={"first_delay": 0.05},
    )
    gateway = server.state.gateway
    assert gateway is not None
    store, refresher = gateway.key_store, gateway.key_refresher
    assert store is not None
    assert refresher is not None
    with gateway.database.write() as connection:
        maker = store.create(connection, tenant="acme", make_tenant=True)
        other = store.create(connection, tenant="acme")
    server.call(refresher.refresh())
    batch = start(server.client(maker.text), [line(str(n)) for n in range(100)])
    client = server.client(other.text)  # a tenant's keys share what is theirs
    while client.batches.retrieve(batch.id).request_counts.completed < 3:
        time.sleep(0.01)
    assert {request.tenant for request in server.engine.requests} == {"acme"}
    with gateway.database.write() as connection:
        store.revoke(connection, maker.record.id)
    server.call(refresher.refresh())
    batch = wait(client, batch.id)
    assert batch.status == "failed"
    (error,) = batch.errors.data
    assert error.code == "key_not_usable"
    assert error.message.startswith("The API key that made the batch was revoked or has expired.")
    counts = batch.request_counts
    assert counts.completed >= 3
    assert counts.completed + counts.failed == counts.total == 100
    assert len(results(client, batch.output_file_id)) == counts.completed
    left = results(client, batch.error_file_id)
    assert {one["error"]["code"] for one in left} == {"key_not_usable"}


def test_batches_of_a_folder_of_before_have_no_key(tmp_path: Path) -> None:
    store = Store(tmp_path)
    file = FileBody(id="file-1", bytes=1, created_at=1, filename="f", purpose="batch")
    store.add_file("t", file)
    batch = BatchBody(
        id="batch_1",
        endpoint="/v1/embeddings",
        input_file_id=file.id,
        completion_window="24h",
        created_at=1,
        expires_at=2,
    )
    (tmp_path / "content" / file.id).write_bytes(b"x")
    assert store.add_batch(Owner("t", "key_1"), batch, 9) is None
    assert [owner for owner, _ in store.open_batches()] == [("t", "key_1")]
    store.close()
    with sqlite3.connect(tmp_path / "store.sqlite") as older:
        older.execute("ALTER TABLE batches DROP COLUMN key")
        older.execute("PRAGMA user_version = 1")
    for _ in range(2):
        store = Store(tmp_path)
        assert [(owner, body.id) for owner, body in store.open_batches()] == [(("t", ""), "batch_1")]
        store.close()


def test_a_restart_goes_on(make_server: MakeServer, tmp_path: Path) -> None:
    first = make_server(files_dir=str(tmp_path), batch_concurrency=2, engine={"first_delay": 0.05})
    client = first.client()
    batch = start(client, [line(str(n)) for n in range(30)])
    while client.batches.retrieve(batch.id).request_counts.completed < 3:
        time.sleep(0.01)
    first.call(first.state.drain(1.0))
    (tmp_path / "content" / "file-unknown").write_bytes(b"left over")
    (tmp_path / "tmp" / "draft").write_bytes(b"left over")
    second = make_server(files_dir=str(tmp_path))
    batch = wait(second.client(), batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 30)
    found = [one["custom_id"] for one in results(second.client(), batch.output_file_id)]
    assert found == [str(n) for n in range(30)]
    assert len(second.engine.requests) < 30
    assert not (tmp_path / "content" / "file-unknown").exists()
    assert not list((tmp_path / "tmp").iterdir())
