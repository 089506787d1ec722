"""Prompts → token ids, and whether they fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tokentrail.answer.choice import PromptEcho
from tokentrail.answer.parsing import AnswerPlan, told_of_tools
from tokentrail.answer.types import AnswerRequest, ChatPrompt, Prompt, TextPrompt
from tokentrail.protocol import ContextLengthExceeded, InvalidRequest, SamplingParams
from tokentrail.text import ChatTemplate, IncrementalDetokenizer, Tokenizer

_MESSAGE = 50
"""Rendering a message takes as long as tokenizing so many characters."""
_SOON_COUNTED = 100_000
"""Characters whose tokens are counted in a moment, so that errors can name their exact number."""


@dataclass
class Prepared:
    """A request's prompts as tokens."""

    token_ids: list[list[int]]
    texts: list[str | None]
    """What was tokenized; None: the prompt came as tokens."""
    template_seconds: float | None
    tokenize_seconds: float
    grammar: str | None = None
    """What answers must be, for the engine."""
    plan: AnswerPlan | None = None
    """How answers are taken apart."""


def prepare(
    prompts: Sequence[Prompt],
    tokenizer: Tokenizer,
    template: ChatTemplate,
    context: int,
    *,
    add_special_tokens: bool = True,
    field: str = "prompt",
) -> Prepared:
    """Render and tokenize. Takes a moment for long prompts, and may run in a thread.

    A text too long for `context` tokens, however it is cut, is refused before that work is done. `add_special_tokens`:
    begin (and end) texts as the model's texts do. `field`: what the request calls them, for errors.
    """
    prepared = Prepared([], [], None, 0.0)
    for prompt in prompts:
        if isinstance(prompt, ChatPrompt):
            start = time.perf_counter()
            text = render(prompt, template)
            prepared.template_seconds = (prepared.template_seconds or 0.0) + time.perf_counter() - start
        elif isinstance(prompt, TextPrompt):
            text = prompt.text
        else:
            for id in prompt.token_ids:
                check_token_id(id, tokenizer, field)
            prepared.token_ids.append(list(prompt.token_ids))
            prepared.texts.append(None)
            continue
        check_length(text, "messages" if isinstance(prompt, ChatPrompt) else field, tokenizer, context)
        start = time.perf_counter()
        # A template writes the tokens that begin a conversation itself.
        special = add_special_tokens and not isinstance(prompt, ChatPrompt)
        ids = tokenizer.encode(text, add_special_tokens=special)
        prepared.tokenize_seconds += time.perf_counter() - start
        prepared.token_ids.append(ids)
        prepared.texts.append(text)
    return prepared


def render(prompt: ChatPrompt, template: ChatTemplate) -> str:
    """A conversation as the model gets it."""
    messages = prompt.messages
    if not template.takes_tools:
        messages = told_of_tools(messages, prompt.tools or ())
    return template.render(
        messages,
        tools=prompt.tools,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
        **prompt.template_kwargs,
    )


def check_token_id(id: int, tokenizer: Tokenizer, field: str) -> None:
    if not 0 <= id < tokenizer.vocab_size:
        raise InvalidRequest(
            f"{field}: {id} is not a token id; the vocabulary has {tokenizer.vocab_size} tokens.", param=field
        )


def check_length(text: str, field: str, tokenizer: Tokenizer, context: int) -> None:
    """Refuse a text too long for `context` tokens, however it is cut."""
    # Looking for the longest token takes a moment, too.
    if len(text) > _SOON_COUNTED and len(text) > context * tokenizer.longest_token:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context} tokens. However, your {field} resulted in "
            f"{len(text)} characters, more than {context} tokens can hold. Please reduce the length of "
            f"the {field}.",
            param=field,
        )


def size(prompts: Sequence[Prompt]) -> int:
    """Characters to render and tokenize, roughly: decides whether a thread is worth it."""
    total = 0
    for prompt in prompts:
        if isinstance(prompt, ChatPrompt):
            total += sum(
                _MESSAGE + sum(len(text) for text in message.values() if isinstance(text, str))
                for message in prompt.messages
            )
        elif isinstance(prompt, TextPrompt):
            total += len(prompt.text)
        else:
            total += len(prompt.token_ids) // 4  # only looked at
    return total


def resolve_max_tokens(request: AnswerRequest, token_ids: Sequence[int], context: int) -> int:
    """Tokens the answer to one prompt may have: those asked for, or all that the context has left.

    0 only with `echo`. Raises `InvalidRequest` naming the prompt's tokens, the limit and the context.
    """
    field = "messages" if isinstance(request.prompts[0], ChatPrompt) else "prompt"
    used = len(token_ids)
    asked = request.sampling.max_tokens
    if not used:
        raise InvalidRequest(f"{field} is empty: it has no tokens.", param=field)
    left = context - used
    if left < 1:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context} tokens. However, your {field} resulted in "
            f"{used} tokens, which leaves none for the answer. Please reduce the length of the {field}.",
            param=field,
        )
    if asked is None:
        return left if request.default_max_tokens is None else min(left, request.default_max_tokens)
    if asked < 1 and not (asked == 0 and request.echo):
        raise InvalidRequest(
            f"max_tokens must be from 1 to {left}, not {asked}: the {field} "
            f"{'have' if field == 'messages' else 'has'} {used} tokens and the "
            f"context holds {context}.",
            param="max_tokens",
        )
    if asked > left:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context} tokens. However, you requested {used + asked} "
            f"tokens ({used} in the {field}, {asked} in the completion as max_tokens). max_tokens can be at "
            f"most {left} here. Please reduce the length of the {field} or max_tokens.",
            param="max_tokens",
        )
    return asked


def echo_of(
    token_ids: Sequence[int], text: str | None, sampling: SamplingParams, tokenizer: Tokenizer
) -> PromptEcho:
    """The prompt as it is repeated: a text as it was written, tokens decoded."""
    # What was written as text shows the special tokens that were written in it.
    skip = text is None and sampling.skip_special_tokens
    whole = tokenizer.decode(token_ids, skip_special_tokens=skip, text_start=True)
    pieces: list[str] = []
    if sampling.logprobs is not None:
        detokenizer = IncrementalDetokenizer(tokenizer, skip)
        pieces = [detokenizer.push((id,)) for id in token_ids]
        pieces[-1] += detokenizer.flush()
        if text is not None and tokenizer.add_bos and token_ids[0] == tokenizer.bos_token_id:
            pieces[0] = ""  # nobody wrote it
        elif sum(map(len, pieces)) > len(whole):
            first = next(at for at, piece in enumerate(pieces) if piece)
            pieces[first] = pieces[first][1:]  # the space before the first word that SentencePiece adds
    return PromptEcho(token_ids, whole if text is None else text, pieces)
