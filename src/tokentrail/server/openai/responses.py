"""Response bodies, as OpenAI sends them. What is ours or vLLM's beyond that says so."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class UsageBody(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class PromptLogprob(msgspec.Struct):
    """vLLM's, of one token at one place of a prompt."""

    logprob: float
    rank: int | None
    """1: the likeliest; None: not among the alternatives that were asked for."""
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[str, PromptLogprob] | None]
"""By place of the prompt: token id → that token; the one that stands there first. The first place has none."""


# --- chat ------------------------------------------------------------------------------------------


class TopLogprobBody(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprobBody]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprobBody]
    refusal: None = None


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    function: FunctionCall
    type: str = "function"


class MessageBody(msgspec.Struct):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET
    """For requests with `functions`, OpenAI's older way."""
    reasoning_content: str | UnsetType = UNSET
    """DeepSeek's name for thoughts, which most clients know; vLLM's newer one is `reasoning`."""
    reasoning: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: MessageBody
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType | None = UNSET
    """vLLM's: the stop string or token id that ended the choice, when one did."""
    token_ids: list[int] | UnsetType = UNSET
    """vLLM's, with `return_token_ids`."""


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    system_fingerprint: str
    seed: int
    """Ours: the seed used, given or drawn. Sent again, it brings the same answer."""
    service_tier: str | UnsetType = UNSET
    """Where one was asked for: the one that there is."""
    metadata: dict[str, str] | UnsetType = UNSET
    """As it was sent."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """vLLM's, with `return_token_ids`."""
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    """vLLM's."""


class FunctionCallDelta(msgspec.Struct):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct):
    """The first of a call has its id, type and name; the others have more of its arguments."""

    index: int
    function: FunctionCallDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class DeltaBody(msgspec.Struct):
    content: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionCallDelta | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: DeltaBody
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    """With `include_usage`: null on all chunks but the last, unless each is to have it."""
    seed: int
    service_tier: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


# --- completions -----------------------------------------------------------------------------------


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """Also a chunk of a stream, which has the same object name."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET
    system_fingerprint: str
    seed: int
    service_tier: str | UnsetType = UNSET


# --- models ----------------------------------------------------------------------------------------


class ModelBody(msgspec.Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "tokentrail"
    root: str
    parent: str | None = None
    max_model_len: int
    """vLLM's, as the two before."""


class ModelList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[ModelBody]
