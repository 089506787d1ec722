"""Completions: request → `AnswerRequest`, chunks → response objects."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from tokentrail.answer import (
    Answer,
    Choice,
    Chunk,
    InfillPrompt,
    Prompt,
    TextPrompt,
    TokensPrompt,
)
from tokentrail.protocol import InvalidRequest, SamplingParams
from tokentrail.server.generation import Question, prompt_ids
from tokentrail.server.openai.chat import usage_body
from tokentrail.server.openai.dialect import OpenAIDialect, SSEStream
from tokentrail.server.openai.requests import CompletionRequest
from tokentrail.server.openai.responses import Completion, CompletionChoice
from tokentrail.server.openai.scores import completion_logprobs, mean_logprob, prompt_logprobs
from tokentrail.server.sse import DONE, TextEvents, event

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route; chat has none."""
_MOST_CHOICES = 1024
"""Sequences of one request."""
_MOST_CANDIDATES = 128
"""Of `best_of`, as of `n`."""


def prompts_of(body: CompletionRequest) -> list[Prompt]:
    given = body.prompt
    texts = [given] if isinstance(given, str) else given
    if not texts:
        raise InvalidRequest("prompt must not be an empty list.", param="prompt")
    prompts: list[str | list[int]] = [texts] if isinstance(texts[0], int) else texts  # type: ignore[assignment]
    each = _candidates(body)
    if len(prompts) > 1 and len(prompts) * each > _MOST_CHOICES:
        raise InvalidRequest(
            f"{len(prompts)} prompts with {each} choices each ask for more than {_MOST_CHOICES} choices.",
            param="prompt",
        )
    if body.suffix:
        return [InfillPrompt(one, body.suffix) for one in prompts]
    special = body.add_special_tokens is not False
    return [TextPrompt(one, special) if isinstance(one, str) else TokensPrompt(one) for one in prompts]


def _candidates(body: CompletionRequest) -> int:
    """Choices that are generated for each prompt."""
    return body.n or 1 if body.best_of is None else body.best_of


def sampling_of(body: CompletionRequest) -> SamplingParams:
    sampling = body.sampling(max_tokens=body.max_tokens, logprobs=body.logprobs)
    if body.best_of is None:
        return sampling
    if not sampling.n <= body.best_of <= _MOST_CANDIDATES:
        raise InvalidRequest(
            f"best_of must be from {sampling.n} (n) to {_MOST_CANDIDATES}, not {body.best_of}.",
            param="best_of",
        )
    if body.stream and body.best_of > sampling.n:
        raise InvalidRequest(
            "best_of above n is not supported with stream: which choices are best is known in the end only.",
            param="best_of",
        )
    # To tell which are best, the log-probabilities are needed.
    return sampling.replace(n=body.best_of, logprobs=sampling.logprobs or 0)


def _best(choices: list[Choice], body: CompletionRequest) -> list[Choice]:
    """Of each prompt's candidates the n with the highest mean log-probability, best first."""
    count, wanted = _candidates(body), body.n or 1
    best: list[Choice] = []
    for first in range(0, len(choices), count):
        group = sorted(choices[first : first + count], key=mean_logprob, reverse=True)[:wanted]
        # What concerns the prompt came with the first candidate.
        scored = choices[first].prompt_logprobs
        for choice in group:
            logprobs = None if body.logprobs is None else choice.logprobs
            index = len(best)
            best.append(
                msgspec.structs.replace(choice, index=index, logprobs=logprobs, prompt_logprobs=scored)
            )
    return best


def completion(answer: Answer, choices: list[Choice], body: CompletionRequest) -> Completion:
    if body.best_of is not None:
        choices = _best(choices, body)
    ids, as_ids = bool(body.return_token_ids), bool(body.return_tokens_as_token_ids)
    each = len(choices) // len(answer.prompt_token_ids)

    def choice_body(choice: Choice) -> CompletionChoice:
        prompt = choice.index // each
        scored = choices[prompt * each].prompt_logprobs
        return CompletionChoice(
            index=choice.index,
            text=choice.text,
            logprobs=None if choice.logprobs is None else completion_logprobs(choice.logprobs, as_ids=as_ids),
            finish_reason=choice.finish_reason,
            stop_reason=UNSET if choice.stop_reason is None else choice.stop_reason,
            token_ids=choice.token_ids if ids else UNSET,
            prompt_token_ids=answer.prompt_token_ids[prompt] if ids else UNSET,
            prompt_logprobs=UNSET if scored is None else prompt_logprobs(scored),
        )

    return Completion(
        id=answer.id,
        created=answer.created,
        model=answer.model,
        choices=[choice_body(choice) for choice in choices],
        usage=usage_body(answer.usage),
        system_fingerprint=answer.fingerprint,
        seed=answer.seed,
        service_tier=body.tier,
    )


class CompletionDialect(OpenAIDialect[CompletionRequest]):
    prefix = "cmpl-"

    def question(self) -> Question:
        body = self.body
        if body.suffix and body.echo:
            raise InvalidRequest(
                "echo is not supported with suffix: the prompt stands around the answer.", param="echo"
            )
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
        self._as_ids = bool(body.return_tokens_as_token_ids)
        self._usage = body.include_usage
        self._continuous = body.continuous_usage
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
            service_tier=body.tier,
        )

    def settled(self) -> None:
        self._frame.system_fingerprint, self._frame.seed = self._answer.fingerprint, self._answer.seed

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
            logprobs=None if not chunk.logprobs else completion_logprobs(chunk.logprobs, as_ids=self._as_ids),
            finish_reason=chunk.finish_reason,
        )
        if chunk.stop_reason is not None:
            choice.stop_reason = chunk.stop_reason
        if self._ids:
            choice.token_ids = chunk.token_ids
            if chunk.index not in self._begun:
                self._begun.add(chunk.index)
                choice.prompt_token_ids = prompt_ids(self._answer, chunk.index)
        return self._event(choice)

    def _event(self, choice: CompletionChoice) -> bytes:
        self._frame.choices = [choice]
        if self._continuous:
            self._frame.usage = usage_body(self._answer.usage)
        return event(self._frame)

    def _text(self, chunk: Chunk) -> bytes:
        if self._continuous:
            choice = CompletionChoice(index=chunk.index, text=chunk.text, logprobs=None, finish_reason=None)
            return self._event(choice)
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
