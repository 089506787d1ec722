"""Responses and the events of their streams, as OpenAI sends them. What is ours beyond that says so."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from tokentrail.server.openai.responses import TokenLogprobBody


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[Any] = []
    logprobs: list[TokenLogprobBody] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str = ""


class MessageItem(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    id: str
    role: str = "assistant"
    status: str
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning", kw_only=True):
    id: str
    status: str
    summary: list[Any] = []
    """Always empty: thoughts are shown as they are."""
    content: list[ReasoningText]


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call", kw_only=True):
    id: str
    call_id: str
    name: str
    arguments: str
    status: str


OutputItem: TypeAlias = MessageItem | ReasoningItem | FunctionCallItem


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class UsageBody(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ErrorBody(msgspec.Struct):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: str
    """max_output_tokens or content_filter."""


class ReasoningBody(msgspec.Struct):
    effort: str | None
    summary: str | None


class TextBody(msgspec.Struct):
    format: dict[str, Any]
    verbosity: str | UnsetType = UNSET


class ResponseBody(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    background: bool = False
    error: ErrorBody | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ReasoningBody
    store: bool
    """Whether it is kept."""
    temperature: float | None
    text: TextBody
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    """As they were given."""
    top_logprobs: int | None
    top_p: float | None
    truncation: str
    usage: UsageBody | None = None
    user: str | None
    metadata: dict[str, str]
    seed: int
    """Ours, as the next: the seed used, given or drawn. Sent again, it brings the same answer."""
    system_fingerprint: str
    completed_at: int | UnsetType | None = UNSET


class InputTokens(msgspec.Struct, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Deleted(msgspec.Struct):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemPage(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    """Items as they came, each with its id."""
    first_id: str | None
    last_id: str | None
    has_more: bool


# --- streams ---------------------------------------------------------------------------------------


class Numbered(msgspec.Struct, tag_field="type", kw_only=True):
    sequence_number: int = -1
    """Given when it is sent."""


class ResponseEvent(Numbered, kw_only=True):
    response: ResponseBody


class Created(ResponseEvent, tag="response.created"):
    pass


class InProgress(ResponseEvent, tag="response.in_progress"):
    pass


class Completed(ResponseEvent, tag="response.completed"):
    pass


class Incomplete(ResponseEvent, tag="response.incomplete"):
    pass


class Failed(ResponseEvent, tag="response.failed"):
    pass


class ItemEvent(Numbered, kw_only=True):
    output_index: int
    item: OutputItem


class ItemAdded(ItemEvent, tag="response.output_item.added"):
    pass


class ItemDone(ItemEvent, tag="response.output_item.done"):
    pass


class InItem(Numbered, kw_only=True):
    item_id: str
    output_index: int


class InPart(InItem, kw_only=True):
    content_index: int = 0


class PartAdded(InPart, tag="response.content_part.added", kw_only=True):
    part: OutputText | ReasoningText


class PartDone(InPart, tag="response.content_part.done", kw_only=True):
    part: OutputText | ReasoningText


class TextDelta(InPart, tag="response.output_text.delta", kw_only=True):
    delta: str
    logprobs: list[TokenLogprobBody]


class TextDone(InPart, tag="response.output_text.done", kw_only=True):
    text: str
    logprobs: list[TokenLogprobBody]


class ReasoningDelta(InPart, tag="response.reasoning_text.delta", kw_only=True):
    delta: str


class ReasoningDone(InPart, tag="response.reasoning_text.done", kw_only=True):
    text: str


class ArgumentsDelta(InItem, tag="response.function_call_arguments.delta", kw_only=True):
    delta: str


class ArgumentsDone(InItem, tag="response.function_call_arguments.done", kw_only=True):
    name: str
    arguments: str


Event: TypeAlias = (
    Created
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)
