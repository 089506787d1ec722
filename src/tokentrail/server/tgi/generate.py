"""Generate: request → `Question`, chunks → one event a token."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from msgspec import UNSET

from tokentrail.answer import Answer, Choice, Chunk, ModelCard, TextPrompt, TokenLogprob, TokenText
from tokentrail.server.errors import error_json
from tokentrail.server.generation import Question
from tokentrail.server.openai.scores import finite, mean_logprob
from tokentrail.server.sse import MEDIA_TYPE, event, raw_event
from tokentrail.server.tgi.errors import shape
from tokentrail.server.tgi.requests import GenerateRequest, Parameters
from tokentrail.server.tgi.responses import (
    Details,
    Generated,
    PrefillToken,
    Sequence,
    StreamDetails,
    StreamEvent,
    Token,
)

_DEFAULT_MAX_TOKENS = 100


class GenerateDialect:
    prefix = "tgi-"

    def __init__(
        self,
        body: GenerateRequest,
        card: ModelCard,
        *,
        streaming: bool,
        listed: bool = False,
    ) -> None:
        """`listed`: the answer is sent as a list of one."""
        self.parameters = body.parameters or Parameters()
        self.inputs = body.inputs
        self.model = card.id
        self._context = card.max_model_len
        self.streaming = streaming
        self._listed = listed

    @property
    def details(self) -> bool:
        return bool(self.parameters.details or self.parameters.decoder_input_details)

    def question(self) -> Question:
        parameters = self.parameters
        several = (parameters.best_of or 1) > 1
        keep = parameters.truncate
        return Question(
            prompts=[TextPrompt(self.inputs)],
            sampling=parameters.sampling(logprobs=self.streaming or self.details or several),
            unset=parameters.unset(),
            default_max_tokens=_DEFAULT_MAX_TOKENS,
            truncate_prompt_tokens=None if keep is None else min(keep, self._context - 1),
            names=parameters.names(),
        )

    def whole(self, answer: Answer, choices: list[Choice]) -> Any:
        # The choices have their prompt in common.
        prefill = [_prefill(entry) for entry in choices[0].prompt_logprobs or ()]
        ranked = sorted(choices, key=mean_logprob, reverse=True)
        best, *others = (self._sequence(answer, choice, prefill) for choice in ranked)
        text = best.generated_text or ""
        best.generated_text = UNSET
        best.best_of_sequences = list[Sequence](others) or UNSET
        generated = Generated(generated_text=text, details=best if self.details else UNSET)
        return [generated] if self._listed else generated

    def _sequence(self, answer: Answer, choice: Choice, prefill: list[PrefillToken]) -> Details:
        entries = choice.logprobs or []
        tokens = [_token(entry, piece) for entry, piece in Pieces().take(choice.text, entries)]
        return Details(
            generated_text=self.shown(choice.text),
            finish_reason=_reason(choice),
            # A remote upstream counts tokens without telling them.
            generated_tokens=answer.usage.completion_tokens
            if answer.num_choices == 1
            else len(choice.token_ids),
            seed=answer.seed if self.parameters.samples else None,
            prefill=prefill,
            tokens=tokens,
            top_tokens=[_top(entry) for entry in entries] if self.parameters.top_n_tokens else UNSET,
        )

    def shown(self, text: str) -> str:
        return self.inputs + text if self.parameters.return_full_text else text

    def stream(self, answer: Answer) -> GenerateStream:
        return GenerateStream(self, answer)


class GenerateStream:
    """Chunks → an event for each token; with the last one the whole text, and why it ended."""

    media_type = MEDIA_TYPE

    def __init__(self, dialect: GenerateDialect, answer: Answer) -> None:
        self._dialect = dialect
        self._answer = answer
        self._pieces = Pieces()
        self._count = 0
        self._last = Token(0, "", 0.0, True)

    def start(self) -> bytes:
        return b""

    def chunk(self, chunk: Chunk) -> bytes:
        entries = chunk.logprobs or []
        events = []
        for entry, piece in self._pieces.take(chunk.text, entries):
            self._count += 1
            self._last = _token(entry, piece)
            top = _top(entry) if self._dialect.parameters.top_n_tokens else UNSET
            events.append(StreamEvent(index=self._count, token=self._last, top_tokens=top))
        if chunk.finish_reason is not None:
            if not events:  # it ends without a further token
                token = Token(self._last.id, self._pieces.rest(), self._last.logprob, self._last.special)
                events.append(StreamEvent(index=self._count, token=token))
            last = events[-1]
            last.generated_text = self._dialect.shown(self._pieces.text)
            if self._dialect.details:
                last.details = StreamDetails(
                    finish_reason=_reason(chunk),
                    generated_tokens=self._count,
                    seed=self._answer.seed if self._dialect.parameters.samples else None,
                    input_length=self._answer.usage.prompt_tokens,
                )
        return b"".join([event(one) for one in events])

    def end(self) -> bytes:
        return b""

    def failed(self, error: Exception) -> bytes:
        return raw_event(error_json(error, shape))


class Pieces:
    """Which token brought which part of an answer's text. Half characters, and what may begin a stop text, come with a
    later token.
    """

    def __init__(self) -> None:
        self.text = ""
        self._told = 0
        """Characters of the text that tokens have been given."""

    def take(self, text: str, entries: Seq[TokenLogprob]) -> list[tuple[TokenLogprob, str]]:
        """The tokens of a chunk, each with its part."""
        self.text += text
        parts = []
        for at, entry in enumerate(entries):
            if at + 1 == len(entries):
                parts.append((entry, self.rest()))
            else:
                end = max(self._told, entries[at + 1].offset)
                parts.append((entry, self.text[self._told : end]))
                self._told = min(end, len(self.text))
        return parts

    def rest(self) -> str:
        """What no token has been given."""
        rest = self.text[self._told :]
        self._told = len(self.text)
        return rest


def _token(entry: TokenLogprob, piece: str) -> Token:
    # A mark that ends the answer may bring text that was held back: programs leave out the text of marks.
    return Token(entry.token.id, piece, finite(entry.logprob), entry.token.special and not piece)


def _prefill(entry: TokenLogprob) -> PrefillToken:
    return PrefillToken(
        entry.token.id, entry.token.text, None if entry.logprob is None else finite(entry.logprob)
    )


def _top(entry: TokenLogprob) -> list[Token]:
    def token(text: TokenText, logprob: float) -> Token:
        return Token(text.id, text.text, finite(logprob), text.special)

    return [token(text, logprob) for text, logprob in entry.top]


def _reason(end: Choice | Chunk) -> str:
    if end.finish_reason == "length":
        return "length"
    return "stop_sequence" if isinstance(end.stop_reason, str) else "eos_token"
