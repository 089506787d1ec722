"""Request bodies, as OpenAI's API reference describes them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tokentrail.server.conversation import EFFORTS
from tokentrail.server.schemas import CheckedRequest, List, by_type, words

TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
"""Types of parts that are text."""
SUMMARIES = ("auto", "concise", "detailed")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class ContentPart(_Part):
    """Part of a message, of thoughts, or of what a function returned. Only text is read."""

    model_config = ConfigDict(
        json_schema_extra=by_type(
            **{one: {"text": "string"} for one in TEXTS},
            refusal={"refusal": "string"},
        )
    )

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(_Part):
    """A message, a function_call, a function_call_output, reasoning, or an item_reference; without a type, a message
    or, with an id alone, a reference.
    """

    model_config = ConfigDict(
        json_schema_extra=by_type(
            _={"role": "string"},
            message={"role": "string"},
            function_call={"call_id": "string", "name": "string", "arguments": "string"},
            function_call_output={"call_id": "string"},
            reasoning={},
            item_reference={"id": "string"},
        )
    )

    type: str | None = None
    id: str | None = None
    role: Annotated[str, words("user", "assistant", "system", "developer")] | None = None
    content: str | List[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | List[ContentPart] | None = None
    summary: List[ContentPart] | None = None
    status: str | None = None


class Tool(_Part):
    """A function that the model may call."""

    type: Annotated[str, words("function")]
    name: str | None = Field(None, min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class AllowedTool(_Part):
    type: Annotated[str, words("function")] = "function"
    name: str | None = None


class ToolChoice(_Part):
    """A function that must be called, or those that are allowed."""

    type: Annotated[str, words("function", "allowed_tools")]
    name: str | None = None
    mode: Annotated[str, words("auto", "required")] | None = None
    tools: List[AllowedTool] | None = None


class TextFormat(_Part):
    type: Annotated[str, words("text", "json_object", "json_schema")]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(_Part):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(_Part):
    effort: Annotated[str, words(*EFFORTS)] | None = None
    summary: Annotated[str, words(*SUMMARIES)] | None = None
    generate_summary: Annotated[str, words(*SUMMARIES)] | None = None


class ResponsesRequest(CheckedRequest):
    """`POST /v1/responses`."""

    model: str = Field(min_length=1)
    input: str | List[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: List[str] | None = None
    truncation: Annotated[str, words("auto", "disabled")] | None = None
    tools: List[Tool] | None = None
    tool_choice: Annotated[str, words("auto", "none", "required")] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    # As with chat completions; unknown to OpenAI.
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    priority: int | None = None
    cache_salt: str | None = None

    UNSUPPORTED: ClassVar[dict[str, str]] = {
        "background": "an answer is made while its connection is open, and only whole ones are kept. "
        "Stream the answer, or send requests that can wait to /v1/batches (--files-dir).",
        "conversation": "use previous_response_id, or send the conversation in input.",
        "context_management": "shorten the conversation yourself, or set truncation to auto.",
        "moderation": "this server does not moderate.",
        "prompt": "this server keeps no prompts. Send the text in instructions and input.",
    }
    HARMLESS: ClassVar[frozenset[str]] = frozenset(
        {
            "max_tool_calls",  # of built-in tools, of which there are none
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "stream_options",  # whether to pad events
        }
    )
