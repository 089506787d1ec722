"""Request bodies, as Anthropic's API reference describes them.

Blocks of all types are read into one class each place: which fields a type needs is said in plain words by `prompts`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tokentrail.protocol import InvalidRequest
from tokentrail.server.anthropic.errors import NO_THREADS
from tokentrail.server.conversation import EFFORTS
from tokentrail.server.schemas import CheckedRequest, List, by_type, words


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class TextSource(_Part):
    """Of a document."""

    type: Annotated[str, words("text")]
    data: str | None = None


_RESULT = {"text": {"text": "string"}, "document": {"source": "object"}}
_CONTENT = {
    **_RESULT,
    "tool_use": {"id": "string", "name": "string", "input": "object"},
    "tool_result": {"tool_use_id": "string"},
    "thinking": {"thinking": "string"},
    "redacted_thinking": {},
}


class ResultBlock(_Part):
    """Part of what a tool returned, or of a system prompt. Only text is read."""

    model_config = ConfigDict(json_schema_extra=by_type(**_RESULT))

    type: str
    text: str | None = None
    title: str | None = None
    context: str | None = None
    source: TextSource | str | None = None


class ContentBlock(ResultBlock):
    """Part of a message: text, a text document, tool_use, tool_result, thinking or redacted_thinking."""

    model_config = ConfigDict(json_schema_extra=by_type(**_CONTENT))

    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | List[ResultBlock] | None = None
    is_error: bool | None = None


class Message(_Part):
    role: Annotated[str, words("user", "assistant", "system")]
    content: str | List[ContentBlock]


class Tool(_Part):
    """A function that the model may call."""

    # Without it a tool of Anthropic's own would be told the wrong thing.
    model_config = ConfigDict(json_schema_extra={"required": ["name", "input_schema"]})

    type: Annotated[str, words("custom")] | None = None
    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(_Part):
    type: Annotated[str, words("auto", "any", "tool", "none")]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(_Part):
    type: Annotated[str, words("enabled", "adaptive", "disabled")]
    budget_tokens: int | None = None
    display: Annotated[str, words("summarized", "omitted")] | None = None


class OutputFormat(_Part):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    type: Annotated[str, words("json_schema")]
    schema_: dict[str, Any] | bool = Field(alias="schema")


class OutputConfig(_Part):
    effort: Annotated[str, words(*EFFORTS)] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(CheckedRequest):
    """`POST /v1/messages/count_tokens`: what makes up a prompt."""

    model: str = Field(min_length=1)
    messages: List[Message] = Field(json_schema_extra={"minItems": 1})
    system: str | List[ResultBlock] | None = None
    tools: List[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    UNSUPPORTED: ClassVar[dict[str, str]] = {
        "container": "this server runs no code.",
        "mcp_servers": "call their tools yourself, and describe these in tools.",
    }
    HARMLESS: ClassVar[frozenset[str]] = frozenset(
        {
            "cache_control",
            "diagnostics",
            "inference_geo",
            "metadata",
            "service_tier",
            "thread",  # see below
            "speed",
            "user_profile_id",
            "workspace_id",
        }
    )


class MessagesRequest(CountTokensRequest):
    """`POST /v1/messages`."""

    def check(self) -> None:
        super().check()
        if (self.model_extra or {}).get("thread"):
            raise InvalidRequest(
                "thread is not supported: this server keeps no conversations. Send all messages.",
                param="thread",
                code=NO_THREADS,
            )

    max_tokens: int
    stop_sequences: List[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    # Ours.
    seed: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
