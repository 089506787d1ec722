"""One choice's tokens → text: detokenized, searched for stop strings, with its log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tokentrail.answer.parsing import AnswerPlan
from tokentrail.answer.types import Chunk, LineEnds, TokenLogprob, TokenText
from tokentrail.protocol import Delta, FinishReason, SamplingParams, TokenAlternatives
from tokentrail.text import IncrementalDetokenizer, LineLimit, StopBuffer, Tokenizer


class TokenTexts:
    """Tokens of the vocabulary as text, each made once. At most one entry per token of the vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, TokenText] = {}

    def __getitem__(self, id: int) -> TokenText:
        known = self._known.get(id)
        if known is None:
            data = self._tokenizer.token_bytes(id)
            known = self._known[id] = TokenText(
                id, data.decode("utf-8", "replace"), data, self._tokenizer.is_special(id)
            )
        return known

    def text(self, id: int) -> str:
        return self[id].text


@dataclass(frozen=True)
class PromptEcho:
    """A prompt to be repeated before the answer."""

    token_ids: Sequence[int]
    text: str
    pieces: list[str] = field(default_factory=list)
    """The text by token, when log-probabilities are wanted: their lengths give the offsets."""


class ChoiceWriter:
    """Turns the deltas of one sequence into chunks.

    What it makes of the tokens does not depend on how they were cut into deltas: the chunks joined are always
    the same, and the answer always ends at the same token.
    """

    def __init__(
        self,
        index: int,
        sampling: SamplingParams,
        tokenizer: Tokenizer,
        texts: TokenTexts,
        *,
        echo: PromptEcho | None = None,
        score_only: bool = False,
        plan: AnswerPlan | None = None,
        scored: Sequence[int] | None = None,
        prompt_logprobs: int = 0,
        lines: LineEnds | None = None,
    ) -> None:
        """`score_only`: the generated token is not wanted, only the echo. `plan`: how the text is taken apart.
        `scored`: the prompt's tokens, where their log-probabilities are asked for, and `prompt_logprobs` alternatives.
        """
        self.index = index
        self.num_thoughts = 0
        """Tokens of thoughts so far."""
        self._undecided = 0
        """Tokens that may turn out to begin them."""
        self._scored = scored
        self._num_prompt_top = prompt_logprobs
        self.num_tokens = 0
        """Tokens of the answer so far, as they are counted in `usage`."""
        self.finish_reason: str | None = None
        self._sampling = sampling
        self._texts = texts
        self._echo = echo
        self._score_only = score_only
        self._parser = None if plan is None else plan.parser()
        shown = frozenset[int]() if plan is None else plan.shown
        self._detokenizer = IncrementalDetokenizer(tokenizer, sampling.skip_special_tokens, shown)
        self._stop = StopBuffer(sampling.stop, sampling.include_stop_str_in_output) if sampling.stop else None
        self._lines = LineLimit(lines.indent, lines.seconds) if lines else None
        self._offset = 0

    def push(self, delta: Delta) -> Chunk:
        """What `delta` adds. After a chunk with `finish_reason`, the sequence is over even if the engine
        goes on.
        """
        chunk = Chunk(self.index)
        if self._sampling.logprobs is not None:
            chunk.logprobs = []
        if self._echo is not None:
            self._repeat_prompt(self._echo, delta, chunk)
            self._echo = None
        if self._scored is not None:
            chunk.prompt_logprobs = self._score_prompt(self._scored, delta)
            self._scored = None
        if self._score_only:
            chunk.finish_reason = self.finish_reason = FinishReason.LENGTH.value
            return chunk
        self._add_tokens(delta, chunk)
        if chunk.finish_reason is None and delta.finish is not None:
            self._finish(delta, chunk)
        self.finish_reason = chunk.finish_reason
        if chunk.finish_reason is not None and self._parser is not None:
            self._parser.end(chunk)
        return chunk

    def _show(self, text: str, chunk: Chunk) -> None:
        if self._parser is None:
            chunk.text += text
        elif text:
            self._parser.push(text, chunk)

    def _add_tokens(self, delta: Delta, chunk: Chunk) -> None:
        ids = delta.token_ids
        finish = delta.finish
        # A token that ends the answer is counted, and shown only if it was asked for.
        hidden = int(
            finish is not None
            and finish.stop_token is not None
            and not self._sampling.include_stop_str_in_output
        )
        parser = self._parser
        # Tokens of thoughts are counted one by one, and so seen one by one.
        together = self._stop is None and self._lines is None and chunk.logprobs is None
        if together and (parser is None or not parser.may_think):
            self._show(self._detokenizer.push(ids[: len(ids) - hidden]), chunk)
            chunk.token_ids = ids
            self.num_tokens += len(ids)
            return
        chunk.token_ids = []
        for at, id in enumerate(ids):
            if chunk.logprobs is not None:
                top = delta.top[at] if delta.top else None
                chunk.logprobs.append(self._logprob(id, delta.logprobs[at], top))
            chunk.token_ids.append(id)
            self.num_tokens += 1
            text = "" if at >= len(ids) - hidden else self._detokenizer.push((id,))
            self._offset += len(text)
            matched = None
            # Until there are min_tokens, no stop string ends the answer, and none begins.
            if self._stop is not None and self.num_tokens > self._sampling.min_tokens:
                text, matched = self._stop.push(text)
            text, cut = self._within_lines(text)
            thinking = parser is not None and parser.thinking
            self._show(text, chunk)
            if parser is not None:
                self._count_thoughts(thinking or parser.thinking, parser.undecided)
            if cut:  # before the stop string, if there is one
                chunk.finish_reason = FinishReason.LENGTH.value
                return
            if matched is not None:
                chunk.finish_reason = FinishReason.STOP.value
                chunk.stop_reason = matched
                return

    def _within_lines(self, text: str) -> tuple[str, bool]:
        return (text, False) if self._lines is None else self._lines.push(text)

    def _count_thoughts(self, thinking: bool, undecided: bool) -> None:
        """One more token. The mark that begins thoughts may be written with several."""
        self._undecided += undecided
        if thinking:
            self.num_thoughts += 1 + self._undecided
        if not undecided:
            self._undecided = 0

    def _finish(self, delta: Delta, chunk: Chunk) -> None:
        assert delta.finish is not None
        rest = self._detokenizer.flush()
        matched = None
        if self._stop is not None:
            rest, matched = self._stop.push(rest)
            rest += self._stop.flush()
        rest, cut = self._within_lines(rest)
        self._show(rest, chunk)
        if cut:
            chunk.finish_reason = FinishReason.LENGTH.value
            return
        if matched is not None:
            chunk.finish_reason = FinishReason.STOP.value
            chunk.stop_reason = matched
            return
        chunk.finish_reason = delta.finish.reason.value
        if delta.finish.stop_token in self._sampling.stop_token_ids:
            chunk.stop_reason = delta.finish.stop_token

    def _logprob(
        self, id: int, logprob: float | None, top: TokenAlternatives | None, count: int | None = None
    ) -> TokenLogprob:
        texts = self._texts
        count = self._sampling.logprobs or 0 if count is None else count
        alternatives: list[tuple[TokenText, float]] = []
        if top is not None:
            alternatives = [
                (texts[id], value)
                for id, value in zip(top.token_ids[:count], top.logprobs[:count], strict=True)
            ]
        return TokenLogprob(texts[id], logprob, alternatives, self._offset)

    def _repeat_prompt(self, echo: PromptEcho, delta: Delta, chunk: Chunk) -> None:
        chunk.text = echo.text
        if chunk.logprobs is None:
            return
        logprobs, top = _of_prompt(delta)
        for id, piece, logprob, alternatives in zip(echo.token_ids, echo.pieces, logprobs, top, strict=True):
            chunk.logprobs.append(self._logprob(id, logprob, alternatives))
            self._offset += len(piece)

    def _score_prompt(self, ids: Sequence[int], delta: Delta) -> list[TokenLogprob]:
        logprobs, top = _of_prompt(delta)
        return [
            self._logprob(id, logprob, alternatives, self._num_prompt_top)
            for id, logprob, alternatives in zip(ids, logprobs, top, strict=True)
        ]


def _of_prompt(delta: Delta) -> tuple[list[float | None], list[TokenAlternatives | None]]:
    """Log-probabilities and alternatives of a prompt's tokens, of which the first has none."""
    logprobs: list[float | None] = [None, *(delta.prompt_logprobs or ())]
    top: list[TokenAlternatives | None] = [None, *(delta.prompt_top or ())]
    return logprobs, top + [None] * (len(logprobs) - len(top))
