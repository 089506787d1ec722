"""Response bodies, as Text Generation Inference sends them."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class PrefillToken(msgspec.Struct):
    id: int
    text: str
    logprob: float | None


class Token(msgspec.Struct):
    id: int
    text: str
    """Its part of the answer. The answer is the texts of all its tokens, joined."""
    logprob: float
    special: bool
    """A mark that is no part of the answer: its text is empty."""


class Sequence(msgspec.Struct, kw_only=True):
    """One answer of several (`best_of`)."""

    generated_text: str | UnsetType = UNSET
    finish_reason: str
    """length, eos_token or stop_sequence."""
    generated_tokens: int
    seed: int | None
    """None: nothing was drawn."""
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | UnsetType = UNSET


class Details(Sequence, kw_only=True):
    best_of_sequences: list[Sequence] | UnsetType = UNSET


class Generated(msgspec.Struct, kw_only=True):
    generated_text: str
    details: Details | UnsetType = UNSET


class StreamDetails(msgspec.Struct, kw_only=True):
    finish_reason: str
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamEvent(msgspec.Struct, kw_only=True):
    index: int
    """Of the token, from 1."""
    token: Token
    top_tokens: list[Token] | UnsetType = UNSET
    generated_text: str | None = None
    """The whole answer, with its last token."""
    details: StreamDetails | None = None


class Info(msgspec.Struct, kw_only=True):
    model_id: str
    model_sha: str
    model_dtype: str
    model_device_type: str = "cpu"
    model_pipeline_tag: str = "text-generation"
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int = 1
    max_client_batch_size: int = 1
    router: str = "tokentrail"
    version: str
    sha: None = None
    docker_label: None = None
