"""Response bodies, as llama.cpp's server sends them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tokentrail.server.embedding import Vector


class Probability(msgspec.Struct):
    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenProbabilities(Probability):
    top_logprobs: list[Probability]


class Timings(msgspec.Struct, kw_only=True):
    """Of the whole request, all its prompts and answers."""

    cache_n: int
    """Tokens of the prompt that were found in the prefix cache …"""
    prompt_n: int
    """… and that were computed."""
    prompt_ms: float
    """Until the first token."""
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class Completion(msgspec.Struct, kw_only=True):
    """An answer, or a part of a stream: its last one says why it ended."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int = 0
    stop: bool
    model: str | UnsetType = UNSET
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any] | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    has_new_line: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    stop_type: str | UnsetType = UNSET
    """eos, limit or word."""
    stopping_word: str | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    completion_probabilities: list[TokenProbabilities] | UnsetType = UNSET


class Embedded(msgspec.Struct):
    index: int
    embedding: list[Vector]
    """One vector: they are pooled."""


class Applied(msgspec.Struct):
    prompt: str


class Modalities(msgspec.Struct):
    vision: bool = False
    audio: bool = False


class TemplateCaps(msgspec.Struct):
    supports_tools: bool


class GenerationDefaults(msgspec.Struct, kw_only=True):
    """How tokens are drawn unless a request says."""

    id: int = 0
    id_task: int = -1
    n_ctx: int
    speculative: bool = False
    is_processing: bool = False
    params: dict[str, Any]
    prompt: str = ""


class Props(msgspec.Struct, kw_only=True):
    default_generation_settings: GenerationDefaults
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    chat_template_caps: TemplateCaps
    bos_token: str
    eos_token: str
    modalities: Modalities = msgspec.field(default_factory=Modalities)
    build_info: str
    is_sleeping: bool = False


class Slot(msgspec.Struct, kw_only=True):
    """A place for an answer. Without what is asked or answered: it is somebody's."""

    id: int
    n_ctx: int
    speculative: bool = False
    is_processing: bool
