"""Chat messages → prompt text, by the template that comes with the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from tokentrail.protocol import InvalidRequest, ModelFileError
from tokentrail.text.template_sandbox import (
    MAX_VALUE,
    ChatTemplateEnvironment,
    TemplateLimit,
    TemplateRefusal,
    limited,
)

MAX_SOURCE = 1 << 18
"""Characters of a template: they take two seconds and 150 MB to compile. The longest published ones have 30,000."""

Message = Mapping[str, Any]

_PROBE = "5b1f0c9e"
_MARK = "8d41e7a3c26f "
"""Its space at the end shows whether a template trims what it prints."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
_MISSING_CONTENT = object()


@lru_cache(maxsize=1)
def _environment() -> ChatTemplateEnvironment:
    return ChatTemplateEnvironment()


class ChatTemplate:
    """Compiled chat templates of one model (Jinja2, in the dialect of `transformers`). Safe to share between
    threads."""

    def __init__(
        self,
        source: str | None,
        *,
        named: Mapping[str, str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        bos_token: str = "",
        eos_token: str = "",
        origin: str = "the model's chat template",
    ) -> None:
        """`source` None: the model has no template; then `render` says so. `named`: further ones, of which `tool_use`
        is taken for requests with tools. `special_tokens`: variables such as `pad_token`. `origin` names the file in
        errors.

        Raises `ModelFileError` when a template is not valid.
        """
        self.source = source
        own = {"bos_token": bos_token, "eos_token": eos_token}
        self._tokens = {**(special_tokens or {}), **{name: text for name, text in own.items() if text}}
        self._default = None if source is None else OneTemplate(source, origin, self._tokens)
        self._named = {
            name: OneTemplate(text, f"{origin} {name!r}", self._tokens)
            for name, text in (named or {}).items()
        }

    def replaced_by(self, source: str) -> ChatTemplate:
        """Another template, with this one's special tokens. Raises `ModelFileError` when it is not valid."""
        return ChatTemplate(source, special_tokens=self._tokens, origin="chat_template")

    @property
    def takes_tools(self) -> bool:
        """Whether it tells the model of tools, and writes calls and results out."""
        return "tool_use" in self._named or (self.source is not None and "tools" in self.source)

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt for `messages`; `kwargs` are further variables of the template (`enable_thinking` …).

        `continue_final_message`: the prompt ends within the last message, for the model to go on with it; excludes
        `add_generation_prompt`. As in `transformers`, keys whose value is None count as missing, and reasoning has
        all the names that templates know it by. Where the template knows only text, lists of text parts are joined
        by newlines; arguments of tool calls are given as it takes them, as objects or as JSON text. Raises
        `InvalidRequest` in the template's own words when it refuses the messages, and when there is no template or
        it cannot render them.
        """
        template = self._named.get("tool_use", self._default) if tools else self._default
        if template is None:
            raise InvalidRequest(
                "This model has no chat template, so it cannot answer chat messages: use /v1/completions, "
                "or start the server with --chat-template FILE."
            )
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other: set one of them to false.",
                param="continue_final_message",
            )
        plain = [template.fit(message) for message in messages]
        variables = {"documents": None, **kwargs, "tools": tools or None}
        if continue_final_message:
            return _continued(template, plain, variables)
        return template.render(plain, add_generation_prompt=add_generation_prompt, **variables)

    @property
    def takes_parts(self) -> bool:
        """Whether the template itself reads `content` given as a list of parts."""
        return self._default is not None and self._default.takes_parts


class OneTemplate:
    """One compiled template, and what is found out about it by trying."""

    def __init__(self, source: str, origin: str, tokens: Mapping[str, str]) -> None:
        self._template = _compile(source, origin)
        self._tokens = tokens

    def render(self, messages: Sequence[Message], /, **variables: Any) -> str:
        """Raises `InvalidRequest` where the template refuses, fails or asks for too much."""
        try:
            with limited():
                parts: list[str] = []
                size = 0
                for part in self._template.generate({**self._tokens, **variables, "messages": messages}):
                    size += len(part)
                    if size > MAX_VALUE:
                        raise TemplateLimit(f"an output of more than {MAX_VALUE} characters")
                    parts.append(part)
                return "".join(parts)
        except TemplateRefusal as error:
            refusal = str(error) or "The chat template refuses these messages."
            raise InvalidRequest(refusal, param="messages") from None
        except TemplateLimit as error:
            message = f"The chat template asks for too much: {error}."
        except RecursionError:
            message = "The chat template asks for too much: it calls itself without end."
        except Exception as error:
            # Whatever a template does wrong (undefined names, sums of texts and numbers …) ends here.
            message = f"The chat template cannot render these messages: {_reason(error)}."
        raise InvalidRequest(" ".join(message.split()), param="messages") from None

    def fit(self, message: Message) -> dict[str, Any]:
        """A message as this template can read it."""
        plain = {key: value for key, value in message.items() if value is not None}
        content = plain.get("content")
        if isinstance(content, (list, tuple)):
            if not self.takes_parts:
                plain["content"] = _joined_text(content)
        elif isinstance(content, str) and not self.takes_text and self.takes_parts:
            plain["content"] = [{"type": "text", "text": content}]
        reasoning = next((plain[name] for name in _REASONING if name in plain), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        calls = plain.get("tool_calls")
        if isinstance(calls, (list, tuple)) and calls:
            way = self._way_of_calls
            plain["tool_calls"] = [_with_arguments(call, way.as_objects) for call in calls]
            if "content" not in plain and way.content is not _MISSING_CONTENT:
                plain["content"] = way.content
        return plain

    @cached_property
    def takes_parts(self) -> bool:
        parts = [{"type": "text", "text": _PROBE}]
        text = self._try([{"role": "user", "content": parts}])
        # A template that knows only text prints the list as Python or JSON writes it.
        return _PROBE in text and f"'{_PROBE}'" not in text and f'"{_PROBE}"' not in text

    @cached_property
    def takes_text(self) -> bool:
        return _PROBE in self._try([{"role": "user", "content": _PROBE}])

    @cached_property
    def _way_of_calls(self) -> _WayOfCalls:
        """How this template wants a message that calls tools: the first way in which it shows the call's arguments.

        That of `transformers` comes first: no content, arguments as objects.
        """
        for as_objects in (True, False):
            for content in (_MISSING_CONTENT, None, ""):
                arguments: Any = {"x": _PROBE} if as_objects else json.dumps({"x": _PROBE})
                call = {
                    "id": "call00000",
                    "type": "function",
                    "function": {"name": "f", "arguments": arguments},
                }
                asked = {"role": "assistant", "content": content, "tool_calls": [call]}
                if content is _MISSING_CONTENT:
                    del asked["content"]
                if _PROBE in self._try([{"role": "user", "content": "?"}, asked]):
                    return _WayOfCalls(as_objects, content)
        return _WayOfCalls(True, _MISSING_CONTENT)

    def _try(self, messages: list[dict[str, Any]]) -> str:
        """What the template makes of `messages`; nothing where it fails."""
        try:
            return self.render(messages, tools=None, documents=None, add_generation_prompt=False)
        except InvalidRequest:
            return ""


class _WayOfCalls(NamedTuple):
    as_objects: bool
    content: object


def _continued(template: OneTemplate, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
    """The prompt up to the end of the last message's text, found by a mark behind it."""
    last = dict(messages[-1]) if messages else {}
    content = last.get("content")
    if isinstance(content, str):
        text, last["content"] = content, content + _MARK
    elif isinstance(content, (list, tuple)) and content and isinstance(content[-1].get("text"), str):
        text = content[-1]["text"]
        last["content"] = [*content[:-1], {**content[-1], "text": text + _MARK}]
    else:
        raise InvalidRequest(
            "continue_final_message: the last message has no text to continue.", param="messages"
        )
    prompt = template.render([*messages[:-1], last], add_generation_prompt=False, **variables)
    at = prompt.rfind(_MARK.strip())
    if at < 0 or text.strip() not in prompt:
        raise InvalidRequest(
            "continue_final_message: the chat template does not show the last message as it is, so it cannot be "
            "continued.",
            param="messages",
        )
    # Templates that trim messages take the mark's space, too; then the text's own end was not kept either.
    return prompt[:at] if prompt.startswith(_MARK, at) else prompt[:at].rstrip()


def _joined_text(content: Sequence[Any]) -> str:
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            raise InvalidRequest(
                f"This model takes text only, but a message has a part of type {kind!r:.80}.",
                param="messages",
            )
        texts.append(text)
    return "\n".join(texts)


def _with_arguments(call: Any, as_objects: bool) -> Any:
    """A tool call whose arguments are an object, or JSON text. OpenAI's API has text, most templates take objects."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    arguments = function["arguments"]
    if as_objects and isinstance(arguments, str):
        try:
            parsed = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return call  # what a model once wrote; shown as it is
        if not isinstance(parsed, dict):
            return call
        arguments = parsed
    elif not as_objects and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def read_chat_template(given: str, named: Mapping[str, str]) -> tuple[str, str]:
    """(template, its origin) for what a user gave: a file, the template itself, or the name of one of the model's.

    Raises `ModelFileError` where it is none of these.
    """
    path = Path(given)
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8"), given
    except (OSError, ValueError) as error:  # text that is not UTF-8 is a ValueError, and names with zeros are
        if not _looks_like_template(given):
            raise ModelFileError(f"{given}: cannot read the chat template: {error}.") from None
    if given in named:
        return named[given], f"the model's chat template {given!r}"
    if _looks_like_template(given):
        return given, "the given chat template"
    ways = f", its text, or the name of one of the model's ({', '.join(named)})" if named else " or its text"
    raise ModelFileError(
        f"{given:.200}: there is no such file, and it is not the text of a chat template. Give the path of a template"
        f"{ways}."
    )


def _looks_like_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def _compile(source: str, origin: str) -> jinja2.Template:
    remedy = "Give another one with --chat-template FILE."
    if len(source) > MAX_SOURCE:
        raise ModelFileError(
            f"{origin} has {len(source)} characters; at most {MAX_SOURCE} are taken. {remedy}"
        )
    try:
        return _environment().compile_template(source)
    except jinja2.TemplateSyntaxError as error:
        problem = f"line {error.lineno}: {error.message}"
    except RecursionError:
        problem = "it is nested too deeply"
    except Exception as error:
        problem = _reason(error)
    raise ModelFileError(" ".join(f"{origin} is not valid ({problem}). {remedy}".split()))


_MISSING = re.compile(r"'[\w. ]*dict object' has no attribute '(\w+)'")


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.UndefinedError) and (missing := _MISSING.fullmatch(error.message or "")):
        return f"it needs {missing[1]!r}, which a message does not have"
    return str(error).rstrip(".") or type(error).__name__
