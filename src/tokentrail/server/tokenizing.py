"""How the model splits texts, with vLLM's routes: /tokenize, /detokenize and /tokenizer_info.

Programs that score texts by tokens (EleutherAI's evaluation harness, for one) ask here instead of loading a tokenizer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from tokentrail.answer import ChatPrompt, Prompt, TextPrompt
from tokentrail.protocol import InvalidRequest
from tokentrail.server.schemas import List, json_body, json_response, read_json
from tokentrail.server.state import ServerState


class TokenizeRequest(BaseModel):
    """A text, or a conversation that the chat template turns into one."""

    model_config = ConfigDict(strict=True, extra="ignore")

    prompt: str | None = None
    messages: List[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    """Whether a text begins as the model's texts do; a template says so itself."""
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    tokens: List[int]


def create_router(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["tokens"])

    @router.post("/tokenize", openapi_extra=json_body(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """Token ids of a text or a conversation."""
        body = await read_json(request, TokenizeRequest, state.config.max_body_bytes)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("Give either prompt or messages.", param="prompt")
        prompt: Prompt
        if body.messages is not None:
            prompt = ChatPrompt(messages=body.messages, add_generation_prompt=body.add_generation_prompt)
        else:
            prompt = TextPrompt(body.prompt or "")
        backend = state.ready_backend()
        # A long text takes a while, which must not hold up streams.
        ids = await asyncio.get_running_loop().run_in_executor(
            None, backend.tokenize, prompt, body.add_special_tokens
        )
        strings = [backend.detokenize([id]) for id in ids] if body.return_token_strs else None
        context = backend.models()[0].max_model_len
        return json_response(
            {"count": len(ids), "max_model_len": context, "tokens": ids, "token_strs": strings}
        )

    @router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included."""
        body = await read_json(request, DetokenizeRequest, state.config.max_body_bytes)
        return json_response({"prompt": state.ready_backend().detokenize(body.tokens)})

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        """The tokens that begin and end texts, and the chat template."""
        return json_response(state.ready_backend().tokenizer_info())

    return router
