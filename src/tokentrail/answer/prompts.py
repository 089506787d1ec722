"""Prompts → token ids, and whether they fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tokentrail.answer.choice import PromptEcho
from tokentrail.answer.parsing import AnswerPlan, told_of_tools
from tokentrail.answer.types import AnswerRequest, ChatPrompt, InfillPrompt, Prompt, TextPrompt
from tokentrail.protocol import ContextLengthExceeded, InvalidRequest, ModelFileError, SamplingParams
from tokentrail.text import ChatTemplate, IncrementalDetokenizer, Infill, Tokenizer

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
    infill: Infill | None = None,
    keep: int | None = None,
) -> Prepared:
    """Render and tokenize. Takes a moment for long prompts, and may run in a thread.

    A text too long for `context` tokens, however it is cut, is refused before that work is done. `add_special_tokens`:
    begin (and end) texts as the model's texts do. `field`: what the request calls them, for errors. `infill`: how the
    model fills in the middle of a text, if it can. `keep`: so many tokens of each prompt's end.
    """
    prepared = Prepared([], [], None, 0.0)
    for prompt in prompts:
        limit = context if keep is None else None
        _prepare(prompt, prepared, tokenizer, template, limit, infill, field, special=add_special_tokens)
        ids = prepared.token_ids[-1]
        if keep is not None and len(ids) > keep:
            prepared.token_ids[-1] = ids = ids[-keep:]
            if prepared.texts[-1] is not None:
                prepared.texts[-1] = tokenizer.decode(ids, skip_special_tokens=False, text_start=True)
    return prepared


def _prepare(
    prompt: Prompt,
    prepared: Prepared,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    context: int | None,
    infill: Infill | None,
    field: str,
    *,
    special: bool,
) -> None:
    """`context` None: the text may be of any length."""
    if isinstance(prompt, ChatPrompt):
        start = time.perf_counter()
        text = render(prompt, template)
        prepared.template_seconds = (prepared.template_seconds or 0.0) + time.perf_counter() - start
    elif isinstance(prompt, TextPrompt):
        text = prompt.text
    elif isinstance(prompt, InfillPrompt):
        prepared.token_ids.append(_infill_ids(prompt, infill, tokenizer, context))
        prepared.texts.append(None)
        return
    else:
        for id in prompt.token_ids:
            check_token_id(id, tokenizer, field)
        prepared.token_ids.append(list(prompt.token_ids))
        prepared.texts.append(None)
        return
    if context is not None:
        check_length(text, "messages" if isinstance(prompt, ChatPrompt) else field, tokenizer, context)
    start = time.perf_counter()
    # A template writes the tokens that begin a conversation itself.
    ids = tokenizer.encode(text, add_special_tokens=prompt.add_special_tokens and special)
    prepared.tokenize_seconds += time.perf_counter() - start
    prepared.token_ids.append(ids)
    prepared.texts.append(text)


def render(prompt: ChatPrompt, template: ChatTemplate) -> str:
    """A conversation as the model gets it."""
    messages = prompt.messages
    if prompt.template is not None:
        template = _own_template(prompt.template, template)
    if not template.takes_tools:
        messages = told_of_tools(messages, prompt.tools or ())
    return template.render(
        messages,
        tools=prompt.tools,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
        **prompt.template_kwargs,
    )


def _own_template(source: str, template: ChatTemplate) -> ChatTemplate:
    """A request's own template, with the model's special tokens."""
    try:
        return template.replaced_by(source)
    except ModelFileError as error:
        raise InvalidRequest(error.message, param="chat_template") from None


def _infill_ids(
    prompt: InfillPrompt, infill: Infill | None, tokenizer: Tokenizer, context: int | None
) -> list[int]:
    if infill is None:
        raise InvalidRequest(
            "suffix is not supported: this model has no tokens for filling in the middle of a text (as Qwen-Coder, "
            "StarCoder, DeepSeek-Coder, Code Llama and Codestral have).",
            param="suffix",
        )
    if isinstance(prompt.prefix, str):
        if context is not None:
            check_length(prompt.prefix, "prompt", tokenizer, context)
    else:
        for id in prompt.prefix:
            check_token_id(id, tokenizer, "prompt")
    if context is not None:
        check_length(prompt.suffix, "suffix", tokenizer, context)
    return infill.encode(prompt.prefix, prompt.suffix, tokenizer)


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
        elif isinstance(prompt, InfillPrompt):
            total += len(prompt.prefix) + len(prompt.suffix)
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
