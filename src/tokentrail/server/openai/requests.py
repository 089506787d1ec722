"""Request bodies, as OpenAI's API reference describes them, with vLLM's further sampling parameters.

Types are strict: a number in quotes is a mistake, not a number. Ranges are checked in one place for all
dialects, `SamplingParams.validate`. Known parameters that this server cannot honour are refused, each with
its reason; unknown ones are ignored, and logged once.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from tokentrail.protocol import DEFAULTED, InvalidRequest, SamplingParams, StructuredOutputsParams
from tokentrail.server.schemas import CheckedRequest, List


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


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None


class ContentPart(BaseModel):
    """Part of a message. Only text is read."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    role: str
    content: str | List[ContentPart] | None = None
    name: str | None = None


class JsonSchemaFormat(BaseModel):
    """OpenAI's `response_format.json_schema`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    type: str
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(BaseModel):
    """vLLM's."""

    model_config = ConfigDict(strict=True, extra="ignore")

    json_: dict[str, Any] | str | bool | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: List[str] | None = None
    grammar: str | None = None
    whitespace_pattern: str | None = None
    structural_tag: str | None = None


class FunctionBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: str
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
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | List[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], BeforeValidator(_numbers)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    # vLLM's.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: List[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None

    response_format: ResponseFormat | None = None
    # vLLM's, the newer way and the older one.
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: List[str] | None = None
    guided_grammar: str | None = None

    HARMLESS: ClassVar[frozenset[str]] = frozenset({"guided_decoding_backend"})

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def unset(self) -> list[str]:
        """Sampling parameters that the request leaves to the model's makers."""
        return [name for name in DEFAULTED if name != "max_tokens" and getattr(self, name) is None]

    def sampling(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """Not validated: that needs the vocabulary and the prompt."""
        given: dict[str, Any] = {}
        for name in _SAME_NAME:
            value = getattr(self, name)
            if value is not None:
                given[name] = value
        if self.stop is not None:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.stop_token_ids is not None:
            given["stop_token_ids"] = tuple(dict.fromkeys(self.stop_token_ids))
        if self.logit_bias:
            given["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        given["structured_outputs"] = self._structured_outputs()
        return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **given)

    def _structured_outputs(self) -> StructuredOutputsParams | None:
        """The one form of the answer that is asked for, if any is."""
        given: list[StructuredOutputsParams] = []
        if (wanted := self.response_format) is not None and wanted.type != "text":
            given.append(_of_response_format(wanted))
        if (options := self.structured_outputs) is not None:
            for name in ("whitespace_pattern", "structural_tag"):
                if getattr(options, name) is not None:
                    raise InvalidRequest(
                        f"structured_outputs.{name} is not supported.", param=f"structured_outputs.{name}"
                    )
            forms: dict[str, Any] = {
                "json": options.json_,
                "json_object": bool(options.json_object),
                "regex": options.regex,
                "choice": None if options.choice is None else tuple(options.choice),
                "grammar": options.grammar,
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
        return given[0] if given else None

    def check(self) -> None:
        """Refuse what cannot be honoured."""
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
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
)

_ENGINE = {
    "guided_whitespace_pattern": "answers are compact JSON.",
    "structural_tag": "use response_format or structured_outputs.",
    "use_beam_search": "only sampling is.",
    "best_of": "ask for n choices and pick among them by their log-probabilities.",
    "truncate_prompt_tokens": "shorten the prompt before sending it.",
    "bad_words": "use logit_bias with the tokens' ids.",
    "allowed_token_ids": "use logit_bias with the tokens' ids.",
    "logits_processors": "only the listed sampling parameters are.",
    "prompt_embeds": "send text or token ids.",
    "prompt_logprobs": "use echo and logprobs with /v1/completions.",
}


class ChatCompletionRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    messages: List[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: List[ToolBody] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    # vLLM's.
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = None
    enable_thinking: bool | None = None

    UNSUPPORTED: ClassVar[dict[str, str]] = {
        **_ENGINE,
        "functions": "use tools.",
        "function_call": "use tool_choice.",
        "audio": "the model writes text only.",
        "modalities": 'only ["text"] is; the model writes text only.',
        "web_search_options": "this server does not search the web.",
        "prediction": "predicted outputs are not used.",
        "chat_template": "a template comes from the model or from the server's settings.",
        "documents": "write them into the messages.",
        "echo": "use /v1/completions to get the prompt back.",
    }
    HARMLESS: ClassVar[frozenset[str]] = frozenset(
        {
            "guided_decoding_backend",
            "metadata",
            "prompt_cache_key",
            "safety_identifier",
            "service_tier",
            "store",
        }
    )


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt: str | List[str] | List[int] | List[List[int]]
    echo: bool | None = None
    logprobs: int | None = None

    UNSUPPORTED: ClassVar[dict[str, str]] = {
        **_ENGINE,
        "suffix": "the model does not fill in the middle of a text.",
    }


def _of_response_format(wanted: ResponseFormat) -> StructuredOutputsParams:
    if wanted.type == "json_object":
        return StructuredOutputsParams(json_object=True, field="response_format")
    if wanted.type != "json_schema":
        raise InvalidRequest(
            f"response_format.type must be text, json_object or json_schema, not {wanted.type[:40]!r}.",
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
