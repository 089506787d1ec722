"""What is asked and told."""

from __future__ import annotations

import msgspec
from pydantic import Field

from tokentrail.server.openai.requests import ChatMessage
from tokentrail.server.schemas import LazyRequest, List

MOST_TOP = 200


class StepRequest(LazyRequest):
    """How would the next token be drawn?"""

    model: str
    prompt: str | None = None
    messages: List[ChatMessage] | None = Field(None, json_schema_extra={"minItems": 1})
    """A conversation, in a prompt's place."""
    tokens: List[int] = Field(default_factory=list)
    """The answer so far."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    top: int = Field(20, ge=1, le=MOST_TOP)
    """Candidates that are told, of the likeliest before and after penalties."""


class Stages(msgspec.Struct, kw_only=True):
    """A token's probability after each stage; 0: it is out."""

    logits: float
    penalties: float
    temperature: float
    min_p: float
    top_k: float
    top_p: float


class Candidate(msgspec.Struct, kw_only=True):
    id: int
    text: str
    special: bool
    logit: float
    adjusted: float
    """The logit after penalties."""
    probabilities: Stages


class Kept(msgspec.Struct, kw_only=True):
    """How many tokens are still in after each stage."""

    vocabulary: int
    min_p: int
    top_k: int
    top_p: int


class Drawn(msgspec.Struct, kw_only=True):
    id: int
    text: str
    logprob: float
    """As answers report it: before penalties and temperature."""
    number: float | None
    """From 0 to 1: what seed and position give. None: temperature is 0, and the likeliest is taken."""
    interval: tuple[float, float] | None
    """The token's part of 0 … 1, where all that are in stand side by side, by their ids."""
    ends: bool
    """The model ends its answer with it."""


class Settings(msgspec.Struct, kw_only=True):
    """As they were used: with the model's defaults."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float


class StepAnswer(msgspec.Struct, kw_only=True):
    id: str
    """Its journey's."""
    model: str
    seed: int
    position: int
    """Of the token that is drawn: tokens before it."""
    prompt_tokens: int
    settings: Settings
    candidates: list[Candidate]
    """By their probability in the end, then by their logits."""
    kept: Kept
    drawn: Drawn


class Format(msgspec.Struct, kw_only=True):
    name: str
    bytes: int
    """Of all weights in it."""


class MemoryAnswer(msgspec.Struct, kw_only=True):
    """What a model takes, in bytes: weights + buffers + sequences × tokens × bytes of KV cache a token."""

    model: str
    parameters: int
    stored_as: str
    weights: int
    buffers: int
    """Of one step: activations, logits, scratch."""
    formats: list[Format]
    """What the weights would take in others, largest first."""
    kv_bytes_per_token: dict[str, int]
    """By type of the cache."""
    kv_dtype: str
    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    max_context: int
    """What the model was made for."""
    free: int
    """Of this machine, as of now, what is in use by this server counted as taken."""
    usable: int
    """The part of it that an engine takes at most."""
