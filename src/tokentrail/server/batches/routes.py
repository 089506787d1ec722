"""`/v1/files` and `/v1/batches`."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from tokentrail.answer import Identity
from tokentrail.protocol import InvalidRequest
from tokentrail.server.batches.bodies import BatchBody, Deleted, FileBody
from tokentrail.server.batches.runner import BatchRunner
from tokentrail.server.batches.store import Owner, new_id, now
from tokentrail.server.batches.upload import receive
from tokentrail.server.body import refuse_foreign_pages
from tokentrail.server.errors import TOO_LARGE, HTTPError
from tokentrail.server.openapi import Extra, answers, json_body, query, text_answer
from tokentrail.server.paging import ListBody, limit_of, page
from tokentrail.server.schemas import json_response, read_json
from tokentrail.server.state import ServerState

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MOST_OPEN = 100
"""Batches of a key that are not over."""
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_WINDOW = 14 * 86400
_BYTES = "application/octet-stream"
_MOST_FILES, _MOST_BATCHES = 10_000, 100
"""On a page."""
_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                    },
                }
            }
        },
    }
}


class CreateBatch(BaseModel):
    """`POST /v1/batches`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    input_file_id: str
    endpoint: str = Field(json_schema_extra={"enum": list(ENDPOINTS)})
    completion_window: str = Field(json_schema_extra={"pattern": f"^{_WINDOW.pattern}$"})
    metadata: dict[str, str] | None = Field(None, max_length=16)

    def check(self) -> None:
        if self.endpoint not in ENDPOINTS:
            raise InvalidRequest(
                f"endpoint must be one of {', '.join(ENDPOINTS)}, not {self.endpoint[:80]!r}.",
                param="endpoint",
            )
        if not 1 <= self.window <= _LONGEST_WINDOW:
            raise InvalidRequest(
                f"completion_window must be a time such as 24h, up to 14d, not {self.completion_window[:20]!r}.",
                param="completion_window",
            )
        for key, value in (self.metadata or {}).items():
            if len(key) > 64 or len(value) > 512:
                raise InvalidRequest("metadata: keys may have 64 characters, values 512.", param="metadata")

    @property
    def window(self) -> int:
        """In seconds; 0: it is none."""
        found = _WINDOW.fullmatch(self.completion_window)
        return 0 if found is None else int(found[1]) * _SECONDS[found[2]]


def create_router(state: ServerState, runner: BatchRunner) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["batches"])
    _add_files(router, state, runner)
    _add_batches(router, state, runner)
    return router


def _add_files(router: APIRouter, state: ServerState, runner: BatchRunner) -> None:
    store, call, quota = runner.store, runner.call, runner.quota

    async def find(request: Request, id: str) -> FileBody:
        file = await call(store.file, request.state.identity.tenant, id)
        if file is None:
            raise _not_found("file", id)
        return file

    @router.post("/files", openapi_extra=Extra(lambda: _FORM) | answers(FileBody))
    async def upload_file(request: Request) -> Response:
        """Upload a batch's input: JSON Lines."""
        refuse_foreign_pages(request)
        tenant = request.state.identity.tenant
        draft = store.draft()
        try:
            length = request.headers.get("content-length", "")
            most = state.config.max_file_bytes
            wanted = min(most, int(length)) if length.isdecimal() else most
            async with quota.room(tenant, max(1, wanted)) as room:
                try:
                    body = await _received(request, draft, room)
                except HTTPError as error:
                    if error.code == TOO_LARGE and room < wanted:
                        raise quota.exceeded(await call(store.used, tenant)) from None
                    raise
                await call(store.keep, draft, body.id)
                await call(store.add_file, tenant, body)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise HTTPError(
                507, "There is no space left for files.", type="server_error", code="disk_full"
            ) from None
        finally:
            draft.unlink(missing_ok=True)
        return json_response(body)

    @router.get(
        "/files",
        openapi_extra=answers(ListBody[FileBody])
        | query(
            purpose={"type": "string"},
            limit={"type": "integer", "minimum": 1, "maximum": _MOST_FILES, "default": _MOST_FILES},
            order={"type": "string", "enum": ["asc", "desc"], "default": "desc"},
            after={"type": "string"},
        ),
    )
    async def list_files(request: Request) -> Response:
        """Files, the newest first. `purpose`, `limit`, `order` (desc, asc), `after` (a file's id)."""
        given = request.query_params
        limit = limit_of(request, _MOST_FILES, _MOST_FILES)
        order = given.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest(f"order must be asc or desc, not {order[:20]!r}.", param="order")
        found = await call(
            store.files,
            request.state.identity.tenant,
            purpose=given.get("purpose"),
            after=given.get("after"),
            limit=limit,
            ascending=order == "asc",
        )
        if found is None:
            raise _no_such_after()
        return json_response(page(found, limit))

    @router.get("/files/{id}", openapi_extra=answers(FileBody))
    async def get_file(request: Request, id: str) -> Response:
        """One file."""
        return json_response(await find(request, id))

    @router.get("/files/{id}/content", openapi_extra=text_answer(_BYTES, format="binary"))
    async def file_content(request: Request, id: str) -> Response:
        """What is in it."""
        file = await find(request, id)
        path = store.content(file.id)
        if not path.is_file():  # removed in this very moment
            raise _not_found("file", id)
        return FileResponse(
            path,
            media_type=_BYTES,
            filename=file.filename,
            headers={"x-content-type-options": "nosniff"},
        )

    @router.delete("/files/{id}", openapi_extra=answers(Deleted))
    async def delete_file(request: Request, id: str) -> Response:
        """Remove a file."""
        file = await find(request, id)
        needed = await call(store.remove_file, request.state.identity.tenant, file.id)
        if needed is not None:
            raise InvalidRequest(
                f"The file is the input of {needed}, which is not over. Cancel that first.", param="id"
            )
        return json_response(Deleted(file.id))


def _add_batches(router: APIRouter, state: ServerState, runner: BatchRunner) -> None:
    store, call = runner.store, runner.call

    @router.post("/batches", openapi_extra=json_body(CreateBatch) | answers(BatchBody))
    async def create_batch(request: Request) -> Response:
        """Have the requests of an uploaded file answered in the background."""
        body = await read_json(request, CreateBatch, state.config.max_body_bytes)
        created = now()
        batch = BatchBody(
            id=new_id("batch_"),
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            created_at=created,
            expires_at=created + body.window,
            metadata=body.metadata,
        )
        identity: Identity = request.state.identity
        owner = Owner(identity.tenant, identity.key)
        refused = await call(store.add_batch, owner, batch, MOST_OPEN)
        if refused == "input":
            raise InvalidRequest(
                f"input_file_id: there is no file {body.input_file_id[:80]!r} with the purpose batch.",
                param="input_file_id",
            )
        if refused == "open":
            raise HTTPError(
                429,
                f"{MOST_OPEN} batches are not over yet. Wait for one of them, or cancel it.",
                type="rate_limit_error",
                code="too_many_batches",
            )
        runner.begin(owner, batch)
        return json_response(batch)

    @router.get(
        "/batches",
        openapi_extra=answers(ListBody[BatchBody])
        | query(
            limit={"type": "integer", "minimum": 1, "maximum": _MOST_BATCHES, "default": 20},
            after={"type": "string"},
        ),
    )
    async def list_batches(request: Request) -> Response:
        """Batches, the newest first. `limit` (up to 100; 20), `after` (a batch's id)."""
        limit = limit_of(request, _MOST_BATCHES, 20)
        after = request.query_params.get("after")
        found = await call(store.batches, request.state.identity.tenant, after=after, limit=limit)
        if found is None:
            raise _no_such_after()
        return json_response(page(found, limit))

    @router.get("/batches/{id}", openapi_extra=answers(BatchBody))
    async def get_batch(request: Request, id: str) -> Response:
        """One batch."""
        batch = await call(store.batch, request.state.identity.tenant, id)
        if batch is None:
            raise _not_found("batch", id)
        return json_response(batch)

    @router.post("/batches/{id}/cancel", openapi_extra=answers(BatchBody))
    async def cancel_batch(request: Request, id: str) -> Response:
        """End a batch; what it has done by then is kept."""
        refuse_foreign_pages(request)
        batch, cancelled = await call(store.cancel, request.state.identity.tenant, id)
        if batch is None:
            raise _not_found("batch", id)
        if cancelled:
            runner.cancel(id)
        elif batch.status != "cancelling":
            raise HTTPError(
                409,
                f"The batch is {batch.status}: it cannot be cancelled any more.",
                type="invalid_request_error",
                code="batch_over",
            )
        return json_response(batch)


async def _received(request: Request, draft: Path, room: int) -> FileBody:
    """Read an upload of at most `room` bytes into the draft."""
    upload = await receive(request, draft, room)
    if upload.filename is None:
        raise InvalidRequest("You must provide file.", param="file")
    purpose = upload.fields.get("purpose")
    if purpose is None:
        raise InvalidRequest("You must provide purpose.", param="purpose")
    if purpose != "batch":
        raise InvalidRequest(f"purpose must be batch, not {purpose[:40]!r}.", param="purpose")
    if not upload.size:
        raise InvalidRequest("The file is empty.", param="file")
    return FileBody(
        id=new_id("file-"), bytes=upload.size, created_at=now(), filename=upload.filename, purpose=purpose
    )


def _not_found(what: str, id: str) -> HTTPError:
    return HTTPError(
        404,
        f"No such {what}: {id[:80]!r}.",
        type="invalid_request_error",
        code=f"{what}_not_found",
        param="id",
    )


def _no_such_after() -> InvalidRequest:
    return InvalidRequest("after must be the id of one that the list has.", param="after")
