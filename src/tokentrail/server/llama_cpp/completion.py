"""Completion: request → `Question`, chunks → parts of answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tokentrail.answer import Answer, Backend, Choice, Chunk, Prompt, TextPrompt, TokenLogprob, TokenText
from tokentrail.protocol import SamplingParams
from tokentrail.server.errors import ErrorBody, error_json
from tokentrail.server.generation import Question, prompt_ids
from tokentrail.server.llama_cpp.requests import CompletionRequest
from tokentrail.server.llama_cpp.responses import Completion, Probability, Timings, TokenProbabilities
from tokentrail.server.naming import find_model
from tokentrail.server.openai.scores import finite
from tokentrail.server.sse import MEDIA_TYPE, event, raw_event

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}


def shape(error: ErrorBody, status: int) -> Any:
    """`{"error": {"code": 400, "message": "what is wrong", "type": "of which kind"}}`"""
    kind = _TYPES.get(status, error.type)
    return {"error": {"code": status, "message": error.message, "type": kind, "param": error.param}}


def settings(sampling: SamplingParams, context: int) -> dict[str, Any]:
    """How tokens are drawn, as `generation_settings` tell it."""
    form = sampling.structured_outputs
    return {
        "n_ctx": context,
        "n_predict": -1 if sampling.max_tokens is None else sampling.max_tokens,
        "seed": -1 if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": -1,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "mirostat": 0,
        "stop": list(sampling.stop),
        "ignore_eos": sampling.ignore_eos,
        "logit_bias": [[token, bias] for token, bias in sampling.logit_bias.items()],
        "n_probs": sampling.logprobs or 0,
        "grammar": "" if form is None else form.grammar or "",
        "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p", "typ_p"],
    }


class CompletionDialect:
    prefix = "cmpl-"

    def __init__(
        self,
        body: CompletionRequest,
        model: str,
        prompts: list[Prompt],
        logit_bias: dict[int, float],
        backend: Backend,
        *,
        listed: bool,
    ) -> None:
        """`listed`: the answers are a list, though there may be one only."""
        self.body = body
        self.model = model
        self.listed = listed
        self._prompts = prompts
        self._logit_bias = logit_bias
        self._backend = backend

    @property
    def streaming(self) -> bool:
        return bool(self.body.stream)

    def question(self) -> Question:
        body = self.body
        limit = body.limit
        return Question(
            token_ids=bool(self.body.return_tokens),
            prompts=self._prompts,
            sampling=body.params(self._logit_bias),
            unset=body.unset(),
            # Cut where the context ends, rather than refused.
            default_max_tokens=limit if limit is not None and limit > 0 else None,
            echo=body.only_reads,
            lines=body.lines,
            names=body.names(),
        )

    def whole(self, answer: Answer, choices: list[Choice]) -> Any:
        answers = [self._whole(answer, choice) for choice in choices]
        return answers if self.listed else answers[0]

    def _whole(self, answer: Answer, choice: Choice) -> Any:
        body = self.body
        part = self.part(answer, choice.index, "" if body.only_reads else choice.text, len(choice.token_ids))
        part.tokens = choice.token_ids if body.return_tokens else []
        part.completion_probabilities = probabilities(choice.logprobs)
        return self.picked(self.ended(part, answer, choice, "\n" in part.content))

    def part(self, answer: Answer, index: int, text: str, predicted: int) -> Completion:
        """A part of answer number `index`, which has `predicted` tokens so far, as far as their ids are known."""
        evaluated = len(prompt_ids(answer, index))
        if answer.num_choices == 1:  # a remote upstream counts tokens without telling them
            predicted, evaluated = answer.usage.completion_tokens, answer.usage.prompt_tokens
        return Completion(
            index=index,
            content=text,
            tokens=[],
            stop=False,
            tokens_predicted=predicted,
            tokens_evaluated=evaluated,
        )

    def ended(self, part: Completion, answer: Answer, end: Choice | Chunk, new_line: bool) -> Completion:
        """With why and how the answer ended."""
        context = find_model(self._backend, self.model).max_model_len
        word = end.stop_reason if isinstance(end.stop_reason, str) else ""
        length = end.finish_reason == "length"
        part.stop = True
        part.model = self.model
        used = answer.sampling.replace(seed=answer.seed, max_tokens=self.body.limit)
        part.generation_settings = settings(used, context)
        prompt = self._prompts[part.index * len(self._prompts) // answer.num_choices]
        # A long text takes a while to be put together again, and streams wait meanwhile.
        if isinstance(prompt, TextPrompt):
            part.prompt = prompt.text
        else:
            part.prompt = self._backend.for_model(self.model).detokenize(prompt_ids(answer, part.index))
        part.has_new_line = new_line
        part.truncated = length and part.tokens_evaluated + part.tokens_predicted >= context
        part.stop_type = "limit" if length else "word" if word else "eos"
        part.stopping_word = word
        if len(answer.prompt_token_ids) == 1:
            part.tokens_cached = answer.usage.cached_tokens
        part.timings = timings(answer)
        return part

    def picked(self, part: Completion) -> Any:
        """The fields that were asked for."""
        fields = self.body.response_fields
        if not fields:
            return part
        whole = msgspec.to_builtins(part)
        picked: dict[str, Any] = {}
        for name in fields:
            value: Any = whole
            for step in name.split("/"):
                value = value.get(step, UNSET) if isinstance(value, dict) else UNSET
            if value is not UNSET:
                picked[name] = value
        return picked

    def stream(self, answer: Answer) -> CompletionStream:
        return CompletionStream(self, answer)


class CompletionStream:
    """Chunks → events: text and tokens as they come, in the end of each answer why and how."""

    media_type = MEDIA_TYPE

    def __init__(self, dialect: CompletionDialect, answer: Answer) -> None:
        self._dialect = dialect
        self._answer = answer
        self._answers = [_Progress() for _ in range(answer.num_choices)]

    def start(self) -> bytes:
        return b""

    def chunk(self, chunk: Chunk) -> bytes:
        dialect, answer = self._dialect, self._answer
        progress = self._answers[chunk.index]
        text = "" if dialect.body.only_reads else chunk.text
        progress.predicted += len(chunk.token_ids)
        progress.tokens += chunk.token_ids
        progress.new_line |= "\n" in text
        events = b""
        if text or chunk.logprobs:
            part = dialect.part(answer, chunk.index, text, progress.predicted)
            part.tokens, progress.tokens = progress.tokens, []
            part.completion_probabilities = probabilities(chunk.logprobs)
            if dialect.body.timings_per_token:
                part.timings = timings(answer)
            events = event(part)
        if chunk.finish_reason is not None:
            part = dialect.part(answer, chunk.index, "", progress.predicted)
            part.tokens = progress.tokens
            events += event(dialect.picked(dialect.ended(part, answer, chunk, progress.new_line)))
        return events

    def end(self) -> bytes:
        return b""

    def failed(self, error: Exception) -> bytes:
        return raw_event(error_json(error, shape))


class _Progress:
    """Of one answer in a stream."""

    def __init__(self) -> None:
        self.predicted = 0
        self.tokens: list[int] = []
        """Those whose text has not come yet."""
        self.new_line = False


def timings(answer: Answer) -> Timings:
    usage, timing = answer.usage, answer.timing
    first = timing.first_token or time.time()
    last = timing.last_token or first
    # Never 0: programs divide by them.
    prompt_ms = max(1e-3, 1e3 * (first - timing.received))
    predicted_ms = max(1e-3, 1e3 * (last - first))
    computed = usage.prompt_tokens - usage.cached_tokens
    return Timings(
        cache_n=usage.cached_tokens,
        prompt_n=computed,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=prompt_ms / max(1, computed),
        prompt_per_second=1e3 * computed / prompt_ms,
        predicted_n=usage.completion_tokens,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=predicted_ms / max(1, usage.completion_tokens),
        predicted_per_second=1e3 * usage.completion_tokens / predicted_ms,
    )


def probabilities(entries: Sequence[TokenLogprob] | None) -> list[TokenProbabilities] | UnsetType:
    if not entries:
        return UNSET
    return [
        TokenProbabilities(
            entry.token.id,
            entry.token.text,
            list(entry.token.bytes),
            finite(entry.logprob),
            [_probability(token, value) for token, value in entry.top],
        )
        for entry in entries
    ]


def _probability(token: TokenText, logprob: float) -> Probability:
    return Probability(token.id, token.text, list(token.bytes), finite(logprob))
