"""How the model splits texts: /tokenize and /detokenize as vLLM, llama.cpp and Text Generation Inference have them,
told apart by the fields of the request, and vLLM's /tokenizer_info.

Programs that score texts by tokens (EleutherAI's evaluation harness, for one) ask here instead of loading a tokenizer.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from tokentrail.answer import Backend, ChatPrompt, Prompt, TextPrompt, TokenText
from tokentrail.protocol import InvalidRequest
from tokentrail.server.naming import card_for_texts, texts_of
from tokentrail.server.openai.messages import plain_messages
from tokentrail.server.openai.requests import ChatMessage
from tokentrail.server.openapi import answers, json_body
from tokentrail.server.schemas import List, json_response, read_json
from tokentrail.server.state import ServerState

_MESSAGES: Any = Field(None, json_schema_extra={"minItems": 1})


class TokenizeRequest(BaseModel):
    """One text or conversation. Its name says whose answer is wanted: vLLM's, llama.cpp's (`content`) or TGI's
    (`inputs`).
    """

    model_config = ConfigDict(strict=True, extra="ignore")
    model: str | None = None
    """Whose tokens; None: those of the server's main model."""

    prompt: str | None = None
    messages: List[ChatMessage] | None = _MESSAGES
    """A conversation that the chat template turns into a text."""
    add_special_tokens: bool = True
    """Whether a text begins as the model's texts do; a template says so itself."""
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    content: str | None = None
    """llama.cpp's."""
    add_special: bool = False
    """As `add_special_tokens`, of `content`."""
    parse_special: bool = True
    """Of `content`: control tokens written out become those tokens."""
    with_pieces: bool = False
    """Of `content`: texts beside the ids."""

    inputs: str | None = None
    """TGI's."""

    def check(self) -> None:
        given = [
            name for name in ("prompt", "messages", "content", "inputs") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise InvalidRequest("Give either prompt or messages (or content, or inputs).", param="prompt")
        if self.messages == []:
            raise InvalidRequest("messages must not be empty.", param="messages")


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    model: str | None = None
    """Whose tokens; None: those of the server's main model."""

    tokens: List[int]


class Tokens(msgspec.Struct):
    """vLLM's answer."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Piece(msgspec.Struct):
    id: int
    piece: str | list[int]


class Pieces(msgspec.Struct):
    """llama.cpp's answer."""

    tokens: Sequence[int | Piece]


class Place(msgspec.Struct):
    """A token in TGI's answer."""

    id: int
    text: str
    start: int
    stop: int


class Detokenized(msgspec.Struct):
    prompt: str
    content: str


class TokenizerInfo(msgspec.Struct):
    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None


def create_router(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["tokens"])

    @router.post(
        "/tokenize",
        openapi_extra=json_body(TokenizeRequest) | answers(Tokens, Pieces, list[Place]),
    )
    async def tokenize(request: Request) -> Response:
        """Token ids of a text or a conversation."""
        body = await read_json(request, TokenizeRequest, state.config.max_body_bytes)
        backend = state.backend_for(request)
        # A long text takes a while, which must not hold up streams.
        loop = asyncio.get_running_loop()
        return json_response(await loop.run_in_executor(None, tokenized, backend, body))

    @router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest) | answers(Detokenized))
    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included: as `prompt` (vLLM) and as `content` (llama.cpp)."""
        body = await read_json(request, DetokenizeRequest, state.config.max_body_bytes)
        # A remote upstream is asked for it.
        backend, loop = texts_of(state.backend_for(request), body.model), asyncio.get_running_loop()
        text = await loop.run_in_executor(None, backend.detokenize, body.tokens)
        return json_response(Detokenized(text, text))

    @router.get("/tokenizer_info", openapi_extra=answers(TokenizerInfo))
    async def tokenizer_info(request: Request) -> Response:
        """The tokens that begin and end texts, and the chat template."""
        return json_response(
            texts_of(state.backend_for(request), request.query_params.get("model")).tokenizer_info()
        )

    return router


def tokenized(backend: Backend, body: TokenizeRequest) -> Any:
    """The response's body. Raises `InvalidRequest`."""
    card = card_for_texts(backend, body.model)
    backend = backend.for_model(card.id)
    if body.content is not None:
        ids = backend.tokenize(TextPrompt(body.content), body.add_special, body.parse_special)
        return Pieces([_piece(token) for token in backend.token_texts(ids)] if body.with_pieces else ids)
    if body.inputs is not None:
        return _with_offsets(backend.token_texts(backend.tokenize(TextPrompt(body.inputs))), body.inputs)
    prompt: Prompt = TextPrompt(body.prompt or "")
    if body.messages is not None:
        prompt = ChatPrompt(
            messages=plain_messages(body.messages), add_generation_prompt=body.add_generation_prompt
        )
    ids = backend.tokenize(prompt, body.add_special_tokens)
    strings = [token.text for token in backend.token_texts(ids)] if body.return_token_strs else None
    context = card.max_model_len
    return Tokens(len(ids), context, ids, strings)


def _piece(token: TokenText) -> Piece:
    """llama.cpp's: half characters are lists of bytes."""
    whole = token.text.encode() == token.bytes
    return Piece(token.id, token.text if whole else list(token.bytes))


def _with_offsets(tokens: Sequence[TokenText], text: str) -> list[Place]:
    """TGI's: where in the text each token stands, in characters. The last part of a character stands for all of it;
    what is not in the text (a token that begins texts) is empty.
    """
    places = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    at = 0
    for token in tokens:
        piece = decoder.decode(token.bytes)
        if not text.startswith(piece, at) and text.startswith(piece[1:], at) and piece.startswith(" "):
            piece = piece[1:]  # the space before the first word that SentencePiece adds
        end = at + len(piece) if text.startswith(piece, at) else at
        places.append(Place(token.id, text[at:end], at, end))
        at = end
    return places
