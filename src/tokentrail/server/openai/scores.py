"""Log-probabilities as OpenAI's two routes and vLLM write them."""

from __future__ import annotations

from tokentrail.answer import Choice, TokenLogprob, TokenText
from tokentrail.server.openai.responses import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprobBody,
    TopLogprobBody,
)

_LOWEST = -9999.0
"""For tokens that were impossible: JSON has no infinity."""


def finite(logprob: float | None) -> float:
    return _LOWEST if logprob is None else max(logprob, _LOWEST)


def mean_logprob(choice: Choice) -> float:
    """Of its own tokens, by which of several choices the best is told."""
    count = len(choice.token_ids)
    entries = (choice.logprobs or [])[-count:] if count else []
    return sum(finite(entry.logprob) for entry in entries) / max(1, len(entries))


def chat_logprobs(entries: list[TokenLogprob], *, as_ids: bool) -> ChatLogprobs:
    """`as_ids`: tokens are named by their ids, which vLLM calls `return_tokens_as_token_ids`."""
    return ChatLogprobs([logprob_body(entry, as_ids=as_ids) for entry in entries])


def logprob_body(entry: TokenLogprob, *, as_ids: bool = False) -> TokenLogprobBody:
    def name(token: TokenText) -> str:
        return f"token_id:{token.id}" if as_ids else token.text

    return TokenLogprobBody(
        name(entry.token),
        finite(entry.logprob),
        list(entry.token.bytes),
        [TopLogprobBody(name(token), finite(value), list(token.bytes)) for token, value in entry.top],
    )


def completion_logprobs(entries: list[TokenLogprob], *, as_ids: bool) -> CompletionLogprobs:
    def name(token: TokenText) -> str:
        return f"token_id:{token.id}" if as_ids else _text_or_bytes(token)

    return CompletionLogprobs(
        tokens=[name(entry.token) for entry in entries],
        token_logprobs=[None if entry.logprob is None else finite(entry.logprob) for entry in entries],
        top_logprobs=[
            None if entry.logprob is None else {name(token): finite(value) for token, value in entry.top}
            for entry in entries
        ],
        text_offset=[entry.offset for entry in entries],
    )


def prompt_logprobs(entries: list[TokenLogprob]) -> PromptLogprobs:
    return [None if entry.logprob is None else _place(entry, entry.logprob) for entry in entries]


def _place(entry: TokenLogprob, logprob: float) -> dict[str, PromptLogprob]:
    ranks = {token.id: rank for rank, (token, _) in enumerate(entry.top, 1)}
    here = entry.token
    place = {str(here.id): PromptLogprob(finite(logprob), ranks.get(here.id), here.text)}
    for rank, (token, value) in enumerate(entry.top, 1):
        place.setdefault(str(token.id), PromptLogprob(finite(value), rank, token.text))
    return place


def _text_or_bytes(token: TokenText) -> str:
    """A token as text, or, where it is only a part of a character, its bytes, as OpenAI writes them."""
    if token.text.encode() == token.bytes:
        return token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
