"""Completions: request → `AnswerRequest`, chunks → response objects."""

from __future__ import annotations

from msgspec import UNSET

from tokentrail.answer import Answer, Choice, Chunk, Prompt, TextPrompt, TokenLogprob, TokensPrompt, TokenText
from tokentrail.protocol import InvalidRequest, SamplingParams
from tokentrail.server.generation import Question
from tokentrail.server.openai.chat import finite, usage_body
from tokentrail.server.openai.dialect import OpenAIDialect, SSEStream
from tokentrail.server.openai.requests import CompletionRequest
from tokentrail.server.openai.responses import Completion, CompletionChoice, CompletionLogprobs
from tokentrail.server.sse import DONE, TextEvents, event

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route; chat has none."""
_MOST_CHOICES = 1024
"""Sequences of one request."""


def prompts_of(body: CompletionRequest) -> list[Prompt]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [TextPrompt(prompt)]
    if not prompt:
        raise InvalidRequest("prompt must not be an empty list.", param="prompt")
    if isinstance(prompt[0], int):
        return [TokensPrompt(prompt)]
    if len(prompt) * (body.n or 1) > _MOST_CHOICES:
        raise InvalidRequest(
            f"{len(prompt)} prompts with n = {body.n or 1} ask for more than {_MOST_CHOICES} choices.",
            param="prompt",
        )
    return [TextPrompt(one) if isinstance(one, str) else TokensPrompt(one) for one in prompt]


def sampling_of(body: CompletionRequest) -> SamplingParams:
    return body.sampling(max_tokens=body.max_tokens, logprobs=body.logprobs)


def completion(answer: Answer, choices: list[Choice], body: CompletionRequest) -> Completion:
    ids = bool(body.return_token_ids)
    return Completion(
        id=answer.id,
        created=answer.created,
        model=answer.model,
        choices=[
            CompletionChoice(
                index=choice.index,
                text=choice.text,
                logprobs=None if choice.logprobs is None else _logprobs(choice.logprobs),
                finish_reason=choice.finish_reason,
                stop_reason=UNSET if choice.stop_reason is None else choice.stop_reason,
                token_ids=choice.token_ids if ids else UNSET,
                prompt_token_ids=_prompt_ids(answer, choice.index) if ids else UNSET,
            )
            for choice in choices
        ],
        usage=usage_body(answer.usage),
        system_fingerprint=answer.fingerprint,
        seed=answer.seed,
    )


class CompletionDialect(OpenAIDialect[CompletionRequest]):
    prefix = "cmpl-"

    def question(self) -> Question:
        body = self.body
        return self.ask(
            prompts_of(body),
            sampling_of(body),
            default_max_tokens=_DEFAULT_MAX_TOKENS,
            echo=bool(body.echo),
        )

    def whole(self, answer: Answer, choices: list[Choice]) -> Completion:
        return completion(answer, choices, self.body)

    def stream(self, answer: Answer) -> CompletionStream:
        return CompletionStream(answer, self.body)


class CompletionStream(SSEStream):
    """Chunks → events: text as it comes, the last of each choice with why it ended; usage last."""

    def __init__(self, answer: Answer, body: CompletionRequest) -> None:
        self._answer = answer
        self._ids = bool(body.return_token_ids)
        self._usage = body.include_usage
        self._begun: set[int] = set()
        self._plain: dict[int, TextEvents] = {}
        """By choice: events of text alone."""
        self._frame = Completion(
            id=answer.id,
            created=answer.created,
            model=answer.model,
            system_fingerprint=answer.fingerprint,
            seed=answer.seed,
            choices=[],
            usage=None if self._usage else UNSET,
        )

    def start(self) -> bytes:
        return b""

    def chunk(self, chunk: Chunk) -> bytes:
        if chunk.finish_reason is None and chunk.logprobs is None and not self._ids:
            return self._text(chunk) if chunk.text else b""
        if not (chunk.text or chunk.logprobs or chunk.finish_reason or chunk.token_ids):
            return b""
        choice = CompletionChoice(
            index=chunk.index,
            text=chunk.text,
            logprobs=None if not chunk.logprobs else _logprobs(chunk.logprobs),
            finish_reason=chunk.finish_reason,
        )
        if chunk.stop_reason is not None:
            choice.stop_reason = chunk.stop_reason
        if self._ids:
            choice.token_ids = chunk.token_ids
            if chunk.index not in self._begun:
                self._begun.add(chunk.index)
                choice.prompt_token_ids = _prompt_ids(self._answer, chunk.index)
        self._frame.choices = [choice]
        return event(self._frame)

    def _text(self, chunk: Chunk) -> bytes:
        events = self._plain.get(chunk.index)
        if events is None:
            self._frame.choices = [
                CompletionChoice(index=chunk.index, text="", logprobs=None, finish_reason=None)
            ]
            events = self._plain[chunk.index] = TextEvents(self._frame, "text")
        return events.event(chunk.text)

    def end(self) -> bytes:
        if not self._usage:
            return DONE
        self._frame.choices = []
        self._frame.usage = usage_body(self._answer.usage)
        return event(self._frame) + DONE


def _prompt_ids(answer: Answer, index: int) -> list[int]:
    return answer.prompt_token_ids[index * len(answer.prompt_token_ids) // answer.num_choices]


def _logprobs(entries: list[TokenLogprob]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=[_name(entry.token) for entry in entries],
        token_logprobs=[None if entry.logprob is None else finite(entry.logprob) for entry in entries],
        top_logprobs=[
            None if entry.logprob is None else {_name(token): finite(value) for token, value in entry.top}
            for entry in entries
        ],
        text_offset=[entry.offset for entry in entries],
    )


def _name(token: TokenText) -> str:
    """A token as text, or, where it is only a part of a character, its bytes, as OpenAI writes them."""
    if token.text.encode() == token.bytes:
        return token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
