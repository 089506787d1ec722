"""Chat messages → prompt text, by the template that comes with the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import jinja2

from tokentrail.protocol import InvalidRequest, ModelFileError
from tokentrail.text.template_sandbox import (
    MAX_VALUE,
    ChatTemplateEnvironment,
    TemplateLimit,
    TemplateRefusal,
    limited,
)

MAX_SOURCE = 1 << 20
"""Characters of a template."""

Message = Mapping[str, Any]

_PROBE = "5b1f0c9e"


@lru_cache(maxsize=1)
def _environment() -> ChatTemplateEnvironment:
    return ChatTemplateEnvironment()


class ChatTemplate:
    """A compiled chat template (Jinja2, in the dialect of `transformers`). Safe to share between threads."""

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        origin: str = "the model's chat template",
    ) -> None:
        """`source` None: the model has no template; then `render` says so. `origin` names the file in errors.

        Raises `ModelFileError` when the template is not valid.
        """
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template = None if source is None else _compile(source, origin)

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt for `messages`; `kwargs` are further variables of the template (`enable_thinking` …).

        As in `transformers`, keys whose value is None count as missing. Where the template knows only text,
        lists of text parts are joined by newlines. Raises `InvalidRequest` in the template's own words when
        it refuses the messages, and when there is no template or it cannot render them.
        """
        if self._template is None:
            raise InvalidRequest(
                "This model has no chat template, so it cannot answer chat messages: use /v1/completions, "
                "or start the server with --chat-template FILE."
            )
        plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
        if any(isinstance(message.get("content"), (list, tuple)) for message in plain):
            plain = [self._with_content(message) for message in plain]
        return self._render(
            {
                **self._tokens,
                **kwargs,
                "messages": plain,
                "tools": tools or None,
                "add_generation_prompt": add_generation_prompt,
            }
        )

    def _render(self, variables: dict[str, Any]) -> str:
        assert self._template is not None
        try:
            with limited():
                parts: list[str] = []
                size = 0
                for part in self._template.generate(variables):
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

    @cached_property
    def takes_parts(self) -> bool:
        """Whether the template itself reads `content` given as a list of parts, found out by trying."""
        parts = [{"type": "text", "text": _PROBE}]
        try:
            text = self._render(
                {
                    **self._tokens,
                    "messages": [{"role": "user", "content": parts}],
                    "tools": None,
                    "add_generation_prompt": True,
                }
            )
        except InvalidRequest:
            return False
        # A template that knows only text prints the list as Python or JSON writes it.
        return _PROBE in text and f"'{_PROBE}'" not in text and f'"{_PROBE}"' not in text

    def _with_content(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if not isinstance(content, (list, tuple)) or self.takes_parts:
            return message
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
        return {**message, "content": "\n".join(texts)}


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
