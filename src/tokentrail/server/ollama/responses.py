"""Response bodies, as Ollama sends them. Durations are in nanoseconds."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tokentrail.server.embedding import Vector
from tokentrail.server.openai.responses import TokenLogprobBody


class CallFunction(msgspec.Struct):
    index: int
    name: str
    arguments: dict[str, Any]


class CallBody(msgspec.Struct):
    id: str
    function: CallFunction


class MessageBody(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[CallBody] | UnsetType = UNSET


class Reply(msgspec.Struct, kw_only=True):
    """An answer, or one line of its stream: /api/chat has a `message`, /api/generate a `response`."""

    model: str
    created_at: datetime
    message: MessageBody | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    logprobs: list[TokenLogprobBody] | UnsetType = UNSET
    done: bool
    done_reason: str | UnsetType = UNSET
    """stop, length or load."""
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class Details(msgspec.Struct, kw_only=True):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ListedModel(msgspec.Struct, kw_only=True):
    name: str
    model: str
    modified_at: datetime | UnsetType = UNSET
    size: int
    digest: str
    details: Details
    expires_at: datetime | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class ModelList(msgspec.Struct):
    models: list[ListedModel]


class ShownModel(msgspec.Struct, kw_only=True):
    license: str = ""
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: datetime


class Embedded(msgspec.Struct, kw_only=True):
    model: str
    embeddings: list[Vector]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class EmbeddedOne(msgspec.Struct):
    """/api/embeddings, Ollama's older way."""

    embedding: Vector


class Version(msgspec.Struct):
    version: str


class Status(msgspec.Struct):
    status: str


class ErrorReply(msgspec.Struct):
    error: str
