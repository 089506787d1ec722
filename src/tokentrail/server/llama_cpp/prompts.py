"""What takes a tokenizer before a request can be asked: prompts of texts and tokens mixed, biases of texts."""

from __future__ import annotations

from typing import Any

from tokentrail.answer import Backend, Prompt, TextPrompt, TokensPrompt
from tokentrail.protocol import InvalidRequest
from tokentrail.server.llama_cpp.requests import CompletionRequest, PromptObject

_MOST_CHOICES = 1024
_NEVER = -100.0
"""What is added to the logit of a token that must not come."""


def prompts_of(given: Any, backend: Backend, field: str = "prompt", choices: int = 1) -> list[Prompt]:
    """`choices`: answers to each. Safe in another thread. Raises `InvalidRequest`."""
    if given is None:
        raise InvalidRequest(f"You must provide {field}.", param=field)
    if not isinstance(given, list):
        return [_prompt(given, backend, field)]
    if not given:
        raise InvalidRequest(f"{field} must not be an empty list.", param=field)
    if any(isinstance(one, int) for one in given):
        return [_prompt(given, backend, field)]
    if len(given) * choices > _MOST_CHOICES:
        raise InvalidRequest(
            f"{field} asks for {len(given) * choices} answers; at most {_MOST_CHOICES} are given at once.",
            param=field,
        )
    return [_prompt(one, backend, f"{field}[{at}]") for at, one in enumerate(given)]


def several(body: CompletionRequest) -> bool:
    """Whether the answers are a list."""
    given = body.prompt
    return body.choices > 1 or (isinstance(given, list) and not any(isinstance(one, int) for one in given))


def _prompt(given: Any, backend: Backend, field: str) -> Prompt:
    if isinstance(given, str):
        return TextPrompt(given)
    if isinstance(given, PromptObject):
        if given.multimodal_data:
            raise InvalidRequest(
                f"{field}.multimodal_data is not supported: the model reads text only.",
                param=f"{field}.multimodal_data",
            )
        return TextPrompt(given.prompt_string)
    ids: list[int] = []
    for at, part in enumerate(given):
        if isinstance(part, int):
            ids.append(part)
        elif isinstance(part, str):
            # Only a text at the beginning begins as the model's texts do.
            ids += backend.tokenize(TextPrompt(part), at == 0)
        else:
            raise InvalidRequest(
                f"{field}[{at}] must be a text or a token id beside others.", param=f"{field}[{at}]"
            )
    return TokensPrompt(ids)


def logit_bias_of(body: CompletionRequest, backend: Backend) -> dict[int, float]:
    """By token id. Safe in another thread. Raises `InvalidRequest`."""
    given: list[tuple[Any, Any]] = []
    if isinstance(body.logit_bias, dict):
        given = [
            (int(key) if key.isascii() and key.isdecimal() else key, v) for key, v in body.logit_bias.items()
        ]
    for pair in body.logit_bias if isinstance(body.logit_bias, list) else ():
        token, value = pair if len(pair) == 2 else (None, None)
        if isinstance(token, bool) or not isinstance(token, (int, str)) or isinstance(value, str):
            raise InvalidRequest(
                "logit_bias must have pairs of a token id or a text, and a number or false.",
                param="logit_bias",
            )
        given.append((token, value))
    bias: dict[int, float] = {}
    for token, value in given:
        if value is True:
            raise InvalidRequest("logit_bias must have numbers or false, not true.", param="logit_bias")
        amount = _NEVER if value is False else float(value)
        for id in [token] if isinstance(token, int) else backend.tokenize(TextPrompt(token), False, False):
            bias[id] = amount
    return bias
