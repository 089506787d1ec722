"""Request bodies, as OpenAI's API reference describes them, with vLLM's further sampling parameters.

Types are strict: a number in quotes is a mistake, not a number. Ranges are checked in one place for all
dialects, `SamplingParams.validate`. Known parameters that this server cannot honour are refused, each with
its reason; unknown ones are ignored, and logged once.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from tokentrail.protocol import DEFAULTED, InvalidRequest, SamplingParams, StructuredOutputsParams
from tokentrail.server.conversation import EFFORTS, LONGEST_THOUGHTS
from tokentrail.server.schemas import CheckedRequest, List, given, left_open


def _numbers(value: Any) -> Any:
    """What `fail_fast` does, for a dict's values."""
    if isinstance(value, dict):
        for key, number in value.items():
            if not isinstance(number, (int, float)):
                raise PydanticCustomError(
                    "float_type",
                    "Input should be a number for every token id, but that of {key} is not",
                    {"key": repr(key[:40])},
                )
    return value


def _limits(low: float | None = None, high: float | None = None, **more: Any) -> Any:
    """An optional field whose range the OpenAPI document tells. It is checked elsewhere, with all other parameters."""
    said = {"minimum": low, "maximum": high, **more}
    return Field(None, json_schema_extra={name: value for name, value in said.items() if value is not None})


# What the document says beyond the types; it is checked elsewhere, in words that fit.
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""OpenAI's. A role that a template does not know would be taken for another, or left out."""
TEXTS = ("text", "input_text", "output_text", "refusal")
"""Types of parts that are text."""
_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
Role = Annotated[str, WithJsonSchema({"type": "string", "enum": [*ROLES]})]
PartType = Annotated[str, WithJsonSchema({"type": "string", "enum": [*TEXTS]})]
FormatType = Annotated[str, WithJsonSchema({"type": "string", "enum": [*_FORMATS]})]
Tier = Annotated[str, WithJsonSchema({"type": "string", "enum": [*_TIERS]})]
Effort = Annotated[str, WithJsonSchema({"type": "string", "enum": [*EFFORTS]})]
ToolType = Annotated[str, WithJsonSchema({"type": "string", "enum": ["function"]})]
Words = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]
TokenId = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
_SOME: Any = Field(None, json_schema_extra={"minItems": 1})


_LOGIT_BIAS = WithJsonSchema(
    {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    }
)


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None
    """A last event, without choices, that counts the tokens."""
    continuous_usage_stats: bool | None = None
    """vLLM's: with `include_usage`, every event counts them."""
    include_obfuscation: bool | None = None
    """OpenAI's: known, and without effect."""


INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "refusal", "reasoning_content", "reasoning")
"""What a message of the assistant may have without content."""
_SAYING: Any = [
    {"required": ["content"], "properties": {"content": {"not": {"type": "null"}}}},
    *({"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in INSTEAD_OF_CONTENT),
]


class ContentPart(BaseModel):
    """Part of a message. Only text is read."""

    model_config = ConfigDict(
        strict=True,
        extra="allow",
        json_schema_extra={"anyOf": [{"required": ["text"]}, {"required": ["refusal"]}]},
    )

    type: PartType
    text: str | None = None
    refusal: str | None = None


class CalledFunction(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    name: str
    arguments: str | dict[str, Any] | None = None
    """JSON, as the API says, or what it stands for."""


class CalledTool(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    id: str | None = None
    type: str | None = None
    function: CalledFunction


class ChatMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", json_schema_extra={"anyOf": _SAYING})

    role: Role
    content: str | List[ContentPart] | None = None
    name: str | None = None
    tool_calls: List[CalledTool] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class JsonSchemaFormat(BaseModel):
    """OpenAI's `response_format.json_schema`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    # What belongs to a structural tag, vLLM has beside its type.
    model_config = ConfigDict(strict=True, extra="allow")

    type: FormatType
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(BaseModel):
    """vLLM's."""

    model_config = ConfigDict(strict=True, extra="ignore")

    json_: dict[str, Any] | str | bool | None = Field(None, alias="json")
    """A JSON Schema."""
    json_object: bool | None = None
    regex: str | None = None
    choice: List[Words] | None = _SOME
    grammar: str | None = None
    whitespace_pattern: str | None = None
    structural_tag: str | dict[str, Any] | None = None


class FunctionBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: ToolType
    function: FunctionBody


class NamedFunction(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    name: str


class ToolChoice(BaseModel):
    """The one function to call."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: str = "function"
    function: NamedFunction


class GenerationRequest(CheckedRequest):
    """What both ways of asking share."""

    model: str = Field(min_length=1)
    max_tokens: int | None = _limits(0)
    temperature: float | None = _limits(0, 2)
    top_p: float | None = _limits(exclusiveMinimum=0, high=1)
    n: int | None = _limits(1, 128)
    stop: Words | List[Words] | None = None
    seed: int | None = _limits(-(2**63), 2**63 - 1)
    frequency_penalty: float | None = _limits(-2, 2)
    presence_penalty: float | None = _limits(-2, 2)
    logit_bias: Annotated[dict[str, float], BeforeValidator(_numbers), _LOGIT_BIAS] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    service_tier: Tier | None = None
    store: bool | None = None

    # vLLM's.
    top_k: int | None = _limits(-1, 2**31 - 1)
    min_p: float | None = _limits(0, 1)
    typical_p: float | None = _limits(exclusiveMinimum=0, high=1)
    repetition_penalty: float | None = _limits(exclusiveMinimum=0)
    min_tokens: int | None = _limits(0)
    ignore_eos: bool | None = None
    stop_token_ids: List[TokenId] | None = None
    allowed_token_ids: List[TokenId] | None = _SOME
    bad_words: List[Words] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = _limits(-1)
    prompt_logprobs: int | None = _limits(0, 20)
    add_special_tokens: bool | None = None
    priority: int | None = _limits(-(2**63), 2**63 - 1)
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    response_format: ResponseFormat | None = None
    # vLLM's, the newer way and the older one.
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: List[Words] | None = _SOME
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None

    HARMLESS: ClassVar[frozenset[str]] = frozenset(
        {
            "guided_decoding_backend",
            "kv_transfer_params",
            "length_penalty",  # of beam search
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "request_id",
            "safety_identifier",
            "session_id",
            "spaces_between_special_tokens",  # none are put there
            "stream_interval",
            "verbosity",
            "vllm_xargs",
        }
    )

    NEUTRAL: ClassVar[dict[str, tuple[Any, ...]]] = {"truncation_side": ("left",)}

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def tier(self) -> str | UnsetType:
        """As OpenAI says it: the tier that was used, where one was asked for."""
        return UNSET if self.service_tier is None else "default"

    def unset(self) -> list[str]:
        """Sampling parameters that the request leaves to the model's makers."""
        return left_open(given(self, DEFAULTED))

    def sampling(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """Not validated: that needs the vocabulary and the prompt."""
        chosen = given(self, _SAME_NAME)
        if self.stop is not None:
            chosen["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.stop_token_ids is not None:
            chosen["stop_token_ids"] = tuple(dict.fromkeys(self.stop_token_ids))
        if self.allowed_token_ids is not None:
            chosen["allowed_token_ids"] = tuple(dict.fromkeys(self.allowed_token_ids))
        if self.bad_words is not None:
            chosen["bad_words"] = tuple(self.bad_words)
        if self.logit_bias:
            chosen["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        chosen["structured_outputs"] = self._structured_outputs()
        return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **chosen)

    def _structured_outputs(self) -> StructuredOutputsParams | None:
        """The one form of the answer that is asked for, if any is."""
        given: list[StructuredOutputsParams] = []
        if (wanted := self.response_format) is not None and wanted.type != "text":
            given.append(_of_response_format(wanted))
        space = self.guided_whitespace_pattern
        if (options := self.structured_outputs) is not None:
            space = options.whitespace_pattern if options.whitespace_pattern is not None else space
            forms: dict[str, Any] = {
                "json": options.json_,
                "json_object": bool(options.json_object),
                "regex": options.regex,
                "choice": None if options.choice is None else tuple(options.choice),
                "grammar": options.grammar,
                "structural_tag": options.structural_tag,
            }
            given.append(StructuredOutputsParams(**forms))
        for name in ("json", "regex", "choice", "grammar"):
            value: Any = getattr(self, f"guided_{name}")
            if value is not None:
                value = tuple(value) if isinstance(value, list) else value
                given.append(StructuredOutputsParams(**{name: value, "field": f"guided_{name}"}))
        if len(given) > 1:
            fields = " and ".join(one.field for one in given)
            raise InvalidRequest(
                f"An answer can have one form only, but {fields} are given.", param=given[1].field
            )
        if not given:
            return None
        return given[0] if space is None else msgspec.structs.replace(given[0], whitespace_pattern=space)

    def check(self) -> None:
        """Refuse what cannot be honoured."""
        if self.service_tier is not None and self.service_tier not in _TIERS:
            raise InvalidRequest(
                f"service_tier must be one of {', '.join(_TIERS)}, not {self.service_tier[:40]!r}.",
                param="service_tier",
            )
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequest(
                "prompt_logprobs is not supported with stream: leave one of them out.",
                param="prompt_logprobs",
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options is only allowed when stream is true.", param="stream_options"
            )
        super().check()


_SAME_NAME = (
    "temperature",
    "top_p",
    "n",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "prompt_logprobs",
)

_ENGINE = {
    "structural_tag": "use structured_outputs.structural_tag.",
    "truncation_side": "truncate_prompt_tokens keeps a prompt's end.",
    "use_beam_search": "only sampling is.",
    "logits_processors": "only the listed sampling parameters are.",
    "logprob_token_ids": "use top_logprobs, or logprobs of /v1/completions.",
    "prompt_embeds": "send text or token ids.",
    "repetition_detection": "use the penalties.",
}


class ChatCompletionRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    max_tokens: int | None = _limits(1)
    messages: List[ChatMessage] = Field(json_schema_extra={"minItems": 1})
    max_completion_tokens: int | None = _limits(1)
    logprobs: bool | None = None
    top_logprobs: int | None = _limits(0, 20)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: List[ToolBody] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    # OpenAI's older way of tools, for clients that were never changed: answered in its own shape.
    functions: List[FunctionBody] | None = None
    function_call: str | NamedFunction | None = None
    # vLLM's.
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = _limits(-1, LONGEST_THOUGHTS)
    enable_thinking: bool | None = None
    echo: bool | None = None
    documents: List[dict[str, Any]] | None = None
    chat_template: str | None = None

    UNSUPPORTED: ClassVar[dict[str, str]] = {
        **_ENGINE,
        "best_of": "only /v1/completions has it; ask for n choices.",
        "suffix": "only /v1/completions has it.",
        "audio": "the model writes text only.",
        "modalities": 'only ["text"] is; the model writes text only.',
        "web_search_options": "this server does not search the web.",
        "prediction": "predicted outputs are not used.",
        "moderation": "this server moderates nothing.",
    }


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt: str | List[str] | List[TokenId] | List[List[TokenId]] = Field(
        json_schema_extra={"minItems": 1, "minLength": 1}
    )
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = _limits(1, 128)
    logprobs: int | None = _limits(0, 20)

    UNSUPPORTED: ClassVar[dict[str, str]] = {**_ENGINE, "thinking_token_budget": "only chat has it."}


def _of_response_format(wanted: ResponseFormat) -> StructuredOutputsParams:
    if wanted.type == "json_object":
        return StructuredOutputsParams(json_object=True, field="response_format")
    if wanted.type == "structural_tag":
        tag = {"type": "structural_tag", **(wanted.model_extra or {})}
        return StructuredOutputsParams(structural_tag=tag, field="response_format")
    if wanted.type != "json_schema":
        raise InvalidRequest(
            "response_format.type must be text, json_object, json_schema or structural_tag, not "
            f"{wanted.type[:40]!r}.",
            param="response_format.type",
        )
    field = "response_format.json_schema"
    if wanted.json_schema is None:
        raise InvalidRequest(f"You must provide {field}.", param=field)
    field += ".schema"
    schema = wanted.json_schema.schema_
    # Without a schema, any JSON will do.
    return StructuredOutputsParams(json=True if schema is None else schema, field=field)


def _token_id(key: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise InvalidRequest(
            f"logit_bias maps token ids to numbers; {key[:40]!r} is not a token id.", param="logit_bias"
        ) from None
