"""Response bodies, as OpenAI sends them. What is ours or vLLM's beyond that says so."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0


class UsageBody(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


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
    arguments: str
    name: str | UnsetType = UNSET


class ToolCall(msgspec.Struct):
    id: str
    function: FunctionCall
    type: str = "function"


class MessageBody(msgspec.Struct):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
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
    prompt_token_ids: list[int] | UnsetType = UNSET
    """vLLM's, with `return_token_ids`."""


class ToolCallDelta(msgspec.Struct):
    """The first of a call has its id, type and name; the others have more of its arguments."""

    index: int
    function: FunctionCall
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class DeltaBody(msgspec.Struct):
    content: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
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
    """With `include_usage`: null on all chunks but the last."""
    seed: int
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
