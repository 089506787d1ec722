"""What OpenAI-compatible upstreams answer: the fields that are read, of a whole answer or of an event of its stream.

All may be missing, since upstreams differ; what is there must have its type.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Part(msgspec.Struct, gc=False):
    """Of a content in parts, as Mistral's API streams them: text, or thoughts, which are parts themselves."""

    type: str = "text"
    text: str | None = None
    thinking: str | list[Part] | None = None


class Message(msgspec.Struct, gc=False):
    """A whole message, or what is new of it."""

    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None


class Alternative(msgspec.Struct, gc=False):
    token: str
    logprob: float | None = None
    bytes: list[int] | None = None


class Entry(msgspec.Struct, gc=False):
    """Of chat's log-probabilities: a token."""

    token: str
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list[Alternative] | None = None


class Logprobs(msgspec.Struct, gc=False):
    """Chat's, or those of completions."""

    content: list[Entry] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] | None = None


class PromptPlace(msgspec.Struct, gc=False):
    """vLLM's log-probability of a token that stood, or might have stood, at a place of the prompt."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs = list[dict[str, PromptPlace] | None]


class Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: Message | None = None
    message: Message | None = None
    text: str | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Event(msgspec.Struct, gc=False):
    """An answer, or an event of its stream."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    error: Any = None
    object: str | None = None
    """`error`: one in vLLM's older shape, the fields of which are the event's own."""


class EmbeddingItem(msgspec.Struct, gc=False):
    embedding: str | list[float]
    index: int | None = None


class EmbeddingBody(msgspec.Struct, gc=False):
    data: list[EmbeddingItem]
    usage: Usage | None = None


class ModelItem(msgspec.Struct, gc=False):
    id: str = ""
    owned_by: str | None = None
    max_model_len: int | None = None
    meta: dict[str, Any] | None = None
    """llama.cpp's: `n_ctx_train` and others."""


class ModelsBody(msgspec.Struct, gc=False):
    data: list[ModelItem] = []


read_event = msgspec.json.Decoder(Event).decode
read_embeddings = msgspec.json.Decoder(EmbeddingBody).decode
read_models = msgspec.json.Decoder(ModelsBody).decode
