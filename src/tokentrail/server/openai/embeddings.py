"""Embeddings: `POST /v1/embeddings`, OpenAI's, with vLLM's further parameters."""

from __future__ import annotations

import base64
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from tokentrail.answer import Embeddings, Prompt, TextPrompt, TokensPrompt
from tokentrail.answer.embedding import check_inputs
from tokentrail.protocol import InvalidRequest
from tokentrail.server.embedding import as_numbers, embed
from tokentrail.server.openai.chat import prompt_of
from tokentrail.server.openai.requests import ChatCompletionRequest, ChatMessage
from tokentrail.server.openapi import answers, json_body
from tokentrail.server.schemas import List, read_json
from tokentrail.server.state import ServerState

MOST_INPUTS = 2048
"""Of one request, as OpenAI has it."""


class EmbeddingsRequest(BaseModel):
    """`input`, or, as vLLM has it, `messages` that the chat template turns into a text."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: str = Field(min_length=1)
    input: str | List[str] | List[int] | List[List[int]] | None = None
    encoding_format: str | None = Field(None, json_schema_extra={"enum": ["float", "base64", None]})
    dimensions: int | None = None
    user: str | None = None

    # vLLM's.
    messages: List[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: int | None = None
    cache_salt: str | None = None

    def check(self) -> None:
        if (self.input is None) == (self.messages is None):
            raise InvalidRequest(
                "You must provide input." if self.input is None else "Give either input or messages.",
                param="input",
            )
        if self.encoding_format not in (None, "float", "base64"):
            raise InvalidRequest(
                f"encoding_format must be float or base64, not {self.encoding_format[:40]!r}.",
                param="encoding_format",
            )

    @property
    def prompts(self) -> list[Prompt]:
        """Raises `InvalidRequest`."""
        if self.messages is not None:
            conversation = ChatCompletionRequest(
                model=self.model,
                messages=self.messages,
                add_generation_prompt=bool(self.add_generation_prompt),
                continue_final_message=self.continue_final_message,
                chat_template_kwargs=self.chat_template_kwargs,
            )
            return [prompt_of(conversation)]
        given: Any = self.input
        if isinstance(given, str):
            return [TextPrompt(given)]
        if given and isinstance(given[0], int):
            return [TokensPrompt(given)]
        check_inputs(len(given), MOST_INPUTS, "input")
        return [TextPrompt(one) if isinstance(one, str) else TokensPrompt(one) for one in given]


_NUMBERS_OR_BASE64: dict[str, Any] = {
    "anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "contentEncoding": "base64"}]
}


class EmbeddingObject(msgspec.Struct):
    index: int
    embedding: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_NUMBERS_OR_BASE64)]
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage
    id: str
    created: int


def add_embeddings(router: APIRouter, state: ServerState) -> None:
    @router.post("/embeddings", openapi_extra=json_body(EmbeddingsRequest) | answers(EmbeddingList))
    async def embeddings(request: Request) -> Response:
        """Vectors of texts, token lists or a conversation."""
        body = await read_json(request, EmbeddingsRequest, state.config.max_body_bytes)
        made = await embed(
            state,
            request,
            body.model,
            body.prompts,
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            field="input" if body.messages is None else "messages",
            dimensions=body.dimensions,
            add_special_tokens=body.add_special_tokens is not False,
            truncate_tokens=body.truncate_prompt_tokens,
        )
        if body.encoding_format == "base64":
            vectors = [msgspec.Raw(_base64(vector)) for vector in made.vectors]
        else:
            vectors = await as_numbers(made)
        content = msgspec.json.encode(_list(made, vectors))
        headers = {"x-request-id": request.state.client_request_id or made.id}
        return Response(content, headers=headers, media_type="application/json")


def _list(made: Embeddings, vectors: list[msgspec.Raw]) -> EmbeddingList:
    tokens = made.usage.prompt_tokens
    return EmbeddingList(
        data=[EmbeddingObject(index, vector) for index, vector in enumerate(vectors)],
        model=made.model,
        usage=EmbeddingUsage(tokens, tokens),
        id=made.id,
        created=made.created,
    )


def _base64(vector: bytes) -> bytes:
    return b'"%b"' % base64.b64encode(vector)
