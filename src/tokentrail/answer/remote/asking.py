"""`AnswerRequest` → the upstream's request. What the upstream cannot honour is refused, never left out in silence."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tokentrail.answer.embedding import EmbeddingRequest
from tokentrail.answer.remote.kinds import Kind
from tokentrail.answer.remote.target import RemoteTarget
from tokentrail.answer.types import (
    AnswerRequest,
    ChatOptions,
    ChatPrompt,
    InfillPrompt,
    Prompt,
    TextPrompt,
    TokensPrompt,
)
from tokentrail.protocol import DEFAULTED, InvalidRequest, SamplingParams, StructuredOutputsParams

_SAMPLED = ("frequency_penalty", "presence_penalty")
_EXTRA = ("typical_p", "min_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
_LISTS = ("stop_token_ids", "allowed_token_ids", "bad_words")
_NEUTRAL = SamplingParams()


class Asked(msgspec.Struct):
    """What is sent."""

    path: str
    """Behind the url's /v1."""
    body: dict[str, Any]
    streaming: bool
    refill: bool = False
    """Where the upstream finds `max_tokens` too many for its context, it may be left out: all that there is room for
    is then what is meant.
    """
    fill: bool = False
    """`max_tokens` is what the prompt leaves of the context, and must be set before this is sent."""


class Asking:
    """Makes requests for one target."""

    def __init__(self, target: RemoteTarget, kind: Kind, context: int | None) -> None:
        """`context`: the upstream's context length, where it is known."""
        self._target = target
        self._kind = kind
        self._context = context
        host = urlsplit(target.url).hostname or ""
        self._newer = kind.name == "openai" and host.endswith((".openai.com", ".openai.azure.com"))
        """Its newer models know `max_tokens` no longer."""

    def answer(self, request: AnswerRequest, seed: int | None) -> Asked:
        """`seed`: to be sent. Raises `InvalidRequest`."""
        kind, sampling = self._kind, request.sampling
        body: dict[str, Any] = {"model": self._target.model or self._target.name}
        first = request.prompts[0]
        if isinstance(first, ChatPrompt):
            if len(request.prompts) > 1:
                raise InvalidRequest("A request may hold one conversation.", param="messages")
            asked = Asked("/chat/completions", body, True)
            self._chat(first, request.chat, body)
        else:
            asked = Asked("/completions", body, True)
            if request.chat is not None and request.chat.tools:
                raise self._cannot("tools", "of a prompt that is no conversation")
            self._prompts(request.prompts, body)
        self._max_tokens(request, asked)
        self._sampling(request, seed, body, chat=isinstance(first, ChatPrompt))
        if sampling.structured_outputs is not None:
            self._form(sampling.structured_outputs, body)
        if request.echo:
            self._need("echo")
            body["echo"] = True
        if request.lines is not None:
            raise self._cannot("lines")
        if request.truncate_prompt_tokens is not None:
            self._need("truncate_prompt_tokens")
            body["truncate_prompt_tokens"] = request.truncate_prompt_tokens
        if request.token_ids:
            self._need("return_token_ids")
            body["return_token_ids"] = True
        if request.tokens_by_id:
            self._need("return_tokens_as_token_ids")
            body["return_tokens_as_token_ids"] = True
        # These change when an answer comes, not what it is.
        if request.priority and "priority" in kind.knows:
            body["priority"] = request.priority
        if request.salt and "cache_salt" in kind.knows:
            body["cache_salt"] = _blurred(request.salt)
        if sampling.prompt_logprobs is not None:
            self._need("prompt_logprobs")
            body["prompt_logprobs"] = sampling.prompt_logprobs
            asked.streaming = False  # vLLM has them in whole answers only
        if asked.streaming:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return asked

    def embedding(self, request: EmbeddingRequest) -> dict[str, Any]:
        """Of `/embeddings`. Raises `InvalidRequest`."""
        body: dict[str, Any] = {"model": self._target.model or self._target.name, "encoding_format": "base64"}
        prompts = request.prompts
        if any(isinstance(prompt, (ChatPrompt, InfillPrompt)) for prompt in prompts):
            raise self._cannot("messages", "of embeddings")
        if any(isinstance(prompt, TextPrompt) and not prompt.add_special_tokens for prompt in prompts):
            self._need("add_special_tokens")
        texts = [prompt.text for prompt in prompts if isinstance(prompt, TextPrompt)]
        tokens = [prompt.token_ids for prompt in prompts if isinstance(prompt, TokensPrompt)]
        if texts and tokens:
            raise InvalidRequest(
                f"{request.field} must be texts or lists of tokens, not both.", param=request.field
            )
        body["input"] = texts or tokens
        if not request.normalize:
            raise self._cannot("normalize", "when false")
        if request.pooling is not None:
            raise self._cannot("pooling")
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        if not request.add_special_tokens:
            self._need("add_special_tokens")
            body["add_special_tokens"] = False
        if request.truncate_tokens is not None:
            self._need("truncate_prompt_tokens")
            body["truncate_prompt_tokens"] = request.truncate_tokens
        return body

    # --- parts ---------------------------------------------------------------------------------------

    def _chat(self, prompt: ChatPrompt, options: ChatOptions | None, body: dict[str, Any]) -> None:
        body["messages"] = [_message(message, at) for at, message in enumerate(prompt.messages)]
        if prompt.tools:
            body["tools"] = prompt.tools
        choice = "auto" if options is None else options.tool_choice
        if options is not None and prompt.tools and choice != "auto":
            named = choice not in ("none", "required")
            body["tool_choice"] = {"type": "function", "function": {"name": choice}} if named else choice
        if options is not None and prompt.tools and not options.parallel_tool_calls:
            self._need("parallel_tool_calls", "when false")
            body["parallel_tool_calls"] = False
        if options is not None and options.thinking_token_budget is not None:
            if "thinking_token_budget" in self._kind.knows:
                body["thinking_token_budget"] = options.thinking_token_budget
            elif not options.thoughts_optional:
                raise self._cannot("thinking_token_budget")
        if not prompt.add_generation_prompt:
            self._need("add_generation_prompt", "when false")
            body["add_generation_prompt"] = False
        if prompt.continue_final_message:
            self._need("continue_final_message")
            body["continue_final_message"] = True
        if prompt.add_special_tokens:
            self._need("add_special_tokens")
            body["add_special_tokens"] = True
        if prompt.template is not None:
            self._need("chat_template")
            body["chat_template"] = prompt.template
        if prompt.template_kwargs:
            self._template_kwargs(prompt.template_kwargs, body)

    def _template_kwargs(self, given: dict[str, Any], body: dict[str, Any]) -> None:
        if "chat_template_kwargs" in self._kind.knows:
            body["chat_template_kwargs"] = given
            return
        for name, value in given.items():
            if name == "reasoning_effort" and "reasoning_effort" in self._kind.knows:
                body["reasoning_effort"] = value
            elif (
                name in ("enable_thinking", "thinking")
                and "reasoning_effort" in self._kind.knows
                and not value
            ):
                body["reasoning_effort"] = "none"
            elif name in ("enable_thinking", "thinking") and value:
                pass  # such models think of themselves
            else:
                raise self._cannot(
                    "reasoning_effort"
                    if name in ("reasoning_effort", "enable_thinking", "thinking")
                    else "chat_template_kwargs"
                )

    def _prompts(self, prompts: list[Prompt], body: dict[str, Any]) -> None:
        if isinstance(prompts[0], InfillPrompt):
            self._need("suffix")
            if len({prompt.suffix for prompt in prompts if isinstance(prompt, InfillPrompt)}) > 1:
                raise InvalidRequest("All prompts must have the same suffix.", param="suffix")
            body["suffix"] = prompts[0].suffix
        given: list[str | list[int]] = []
        for prompt in prompts:
            if isinstance(prompt, InfillPrompt):
                given.append(prompt.prefix)
            elif isinstance(prompt, TextPrompt):
                given.append(prompt.text)
            elif isinstance(prompt, TokensPrompt):
                given.append(prompt.token_ids)
            else:
                raise InvalidRequest("A conversation must be asked for alone.", param="messages")
        bare = [isinstance(prompt, TextPrompt) and not prompt.add_special_tokens for prompt in prompts]
        if any(bare):
            self._need("add_special_tokens", "when false")
            if not all(bare):
                raise InvalidRequest("add_special_tokens must be the same for all prompts.", param="prompt")
            body["add_special_tokens"] = False
        if any(isinstance(one, list) for one in given):
            self._need("token_ids_prompt", said="prompt", when="as token ids")
        if len({isinstance(one, list) for one in given}) > 1:
            raise InvalidRequest("Prompts must be texts or lists of tokens, not both.", param="prompt")
        if len(given) > 1:
            self._need("prompts", said="prompt", when="as a list")
        body["prompt"] = given[0] if len(given) == 1 else given

    def _max_tokens(self, request: AnswerRequest, asked: Asked) -> None:
        chat = asked.path == "/chat/completions"
        name = "max_completion_tokens" if chat and self._newer else "max_tokens"
        given, usual = request.sampling.max_tokens, request.default_max_tokens
        if given is not None:
            asked.body[name] = given
        elif usual is not None and (self._context is None or usual < self._context):
            asked.body[name] = usual
            asked.refill = chat
        elif not chat:
            # Left out it would be 16, as OpenAI has it.
            if self._kind.name == "llama.cpp":
                asked.body[name] = -1
            elif self._kind.name == "vllm":
                asked.body[name] = None
            elif self._kind.name == "tokentrail" and self._context is not None and len(request.prompts) == 1:
                asked.fill = True
            else:
                raise InvalidRequest(
                    f"max_tokens must be given for the model {self._target.name}: its upstream ({self._kind.name}) "
                    "does not go on to the end of its context by itself.",
                    param="max_tokens",
                )

    def _sampling(
        self, request: AnswerRequest, seed: int | None, body: dict[str, Any], *, chat: bool
    ) -> None:
        sampling, knows = request.sampling, self._kind.knows
        for name in DEFAULTED:
            if name == "max_tokens" or name in request.unset:
                continue
            value = getattr(sampling, name)
            if name in ("temperature", "top_p"):
                body[name] = value
            elif name not in knows:
                if value != getattr(_NEUTRAL, name) and not (name == "top_k" and value == -1):
                    raise self._cannot(name)
            elif name == "repetition_penalty" and self._kind.name == "llama.cpp":
                # Its own looks back 64 tokens only.
                body |= {"repeat_penalty": value, "repeat_last_n": -1}
            else:
                body[name] = value
        for name in _SAMPLED:
            if value := getattr(sampling, name):
                body[name] = value
        for name in _EXTRA:
            value = getattr(sampling, name)
            if value != getattr(_NEUTRAL, name):
                self._need(name, "when false" if value is False else "")
                body[name] = value
        for name in _LISTS:
            if values := getattr(sampling, name):
                self._need(name)
                body[name] = values
        if sampling.bad_token_ids:
            raise self._cannot("bad_words", "as token ids")
        if sampling.logit_bias:
            self._need("logit_bias")
            body["logit_bias"] = {str(id): bias for id, bias in sampling.logit_bias.items()}
        if sampling.n > 1:
            self._need("n", "above 1")
            body["n"] = sampling.n
        if sampling.stop:
            body["stop"] = sampling.stop
        if seed is not None:
            body["seed"] = seed
        if sampling.logprobs is not None:
            if chat:
                body["logprobs"] = True
                if sampling.logprobs:
                    body["top_logprobs"] = sampling.logprobs
            else:
                body["logprobs"] = sampling.logprobs

    def _form(self, wanted: StructuredOutputsParams, body: dict[str, Any]) -> None:
        name = next(name for name in self._known_forms() if getattr(wanted, name) not in (None, False))
        if name not in self._kind.forms:
            raise self._cannot(wanted.field, f"with {name}")
        told = self._kind.told_form
        if wanted.whitespace_pattern is not None and told not in ("vllm", "tokentrail"):
            raise self._cannot(wanted.field, "with whitespace_pattern")
        value: Any = getattr(wanted, name)
        as_openai = name in ("json", "json_object") and wanted.whitespace_pattern is None
        if told == "tokentrail" or (told == "vllm" and not as_openai):
            form = {name: value}
            if wanted.whitespace_pattern is not None:
                form["whitespace_pattern"] = wanted.whitespace_pattern
            body["structured_outputs"] = form
        elif name == "grammar":
            body["grammar"] = value
        elif name == "regex":
            body["response_format"] = {"type": "regex", "value": value}
        elif name == "json_object":
            body["response_format"] = {"type": "json_object"}
            if told == "tgi":
                body["response_format"]["value"] = {"type": "object"}
        else:
            schema = _schema(value, wanted.field)
            if told == "tgi":
                body["response_format"] = {"type": "json_object", "value": schema}
            else:
                form = {"name": "answer", "schema": schema, "strict": True}
                body["response_format"] = {"type": "json_schema", "json_schema": form}

    def _known_forms(self) -> tuple[str, ...]:
        return ("json", "json_object", "regex", "choice", "grammar", "structural_tag")

    # --- what cannot be asked ------------------------------------------------------------------------

    def _need(self, name: str, when: str = "", *, said: str | None = None) -> None:
        if name not in self._kind.knows:
            raise self._cannot(said or name, when)

    def _cannot(self, name: str, when: str = "") -> InvalidRequest:
        condition = f" {when}" if when else ""
        return InvalidRequest(
            f"{name}{condition} is not supported for the model {self._target.name}: its upstream "
            f"({self._kind.name}) does not know it.",
            param=name,
        )


def _message(message: dict[str, Any], at: int) -> dict[str, Any]:
    """As OpenAI has messages: arguments of calls are text, and calls have ids."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    made = []
    for number, call in enumerate(calls):
        function = call["function"]
        if not isinstance(function.get("arguments"), str):
            function = {
                **function,
                "arguments": json.dumps(function.get("arguments") or {}, ensure_ascii=False),
            }
        made.append({"id": f"call{at:05d}_{number}", "type": "function", **call, "function": function})
    return {**message, "tool_calls": made}


def _schema(value: Any, field: str) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidRequest(f"{field} must be a JSON schema.", param=field) from None
    return {} if value is True else value


def _blurred(salt: str) -> str:
    """Who asks is told to no upstream."""
    return hashlib.sha256(salt.encode()).hexdigest()[:32]
