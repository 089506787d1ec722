"""Filters around a backend: prompts are checked before they reach it, answers before they leave."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

from tokentrail.answer import (
    Answer,
    AnswerRequest,
    Backend,
    CallPiece,
    Chunk,
    EmbeddingRequest,
    Embeddings,
    Prompt,
    TokenLogprob,
)
from tokentrail.gateway.filters import Action, Finding, Rule, StreamFilter, filtered
from tokentrail.gateway.forwarding import ForwardingAnswer, ForwardingBackend
from tokentrail.gateway.prompt_texts import field_of, ids_of, texts_of, with_texts
from tokentrail.journey import Stage
from tokentrail.observability import Metrics
from tokentrail.protocol import InvalidRequest

log = logging.getLogger(__name__)

FLAGGED = "x-tokentrail-flagged"
"""The header that names the rules which found something and let it pass."""
_LONG = 20_000
"""Characters of a prompt from which looking through it may hold up other streams, and goes to a thread."""


class ContentFiltered(InvalidRequest):
    """A rule does not let this prompt pass."""

    code = "content_filter"


class FilteringBackend(ForwardingBackend):
    """See `answer.backend.Backend`."""

    def __init__(self, inner: Backend, rules: Sequence[Rule], metrics: Metrics) -> None:
        super().__init__(inner)
        self.rules = list(rules)
        """May be replaced at any time; what has begun goes on with those that it began with."""
        self._metrics = metrics

    async def open(self, request: AnswerRequest) -> Answer:
        rules = self.rules
        stages = request.handling.stages
        inputs = [rule for rule in rules if rule.inputs]
        start = time.time()
        found: list[Finding] = []
        try:
            await self._check(request.prompts, inputs, found)
        finally:
            if inputs:
                stages.append(
                    Stage(
                        name="filtered",
                        start=start,
                        end=time.time(),
                        facts=_facts(one.rule.name for one in found),
                    )
                )
        flagged = _flagged(found)
        answer = await self.inner.open(request)
        outputs = [rule for rule in rules if rule.outputs]
        if not (outputs or flagged):
            return answer
        return FilteredAnswer(answer, outputs, self._metrics, flagged, stages)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        await self._check(request.prompts, [rule for rule in self.rules if rule.inputs], [])
        return await self.inner.embed(request)

    async def _check(self, prompts: list[Prompt], rules: list[Rule], found: list[Finding]) -> None:
        """Mask in place, or refuse; what is found is added to `found`."""
        if not rules:
            return
        if sum(map(_length, prompts)) < _LONG:
            self._checked(prompts, rules, found)
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._checked, prompts, rules, found)

    def _checked(self, prompts: list[Prompt], rules: list[Rule], found: list[Finding]) -> None:
        for number, prompt in enumerate(prompts):
            field = field_of(prompt)

            def clean(text: str, field: str = field) -> str:
                masked, stream = filtered(rules, text)
                found.extend(stream.findings)
                if stream.blocked is not None:
                    report(found, "input", self._metrics)
                    has = "have" if field == "messages" else "has"
                    raise ContentFiltered(
                        f"The {field} {has} something that the rule {stream.blocked.name!r} does not let pass.",
                        param=field,
                    )
                return masked

            prompts[number] = self._cleaned(prompt, clean)
        report(found, "input", self._metrics)

    def _cleaned(self, prompt: Prompt, clean: Callable[[str], str]) -> Prompt:
        if (ids := ids_of(prompt)) is not None:
            self._check_tokens(ids, clean)
        return with_texts(prompt, clean)

    def _check_tokens(self, ids: list[int], clean: Callable[[str], str]) -> None:
        text = self.inner.detokenize(ids)
        if clean(text) != text:
            raise ContentFiltered(
                "The prompt has something that must be masked, which token ids cannot be: send it as text.",
                param="prompt",
            )


def _flagged(found: Sequence[Finding]) -> list[str]:
    return list(dict.fromkeys(one.rule.name for one in found if one.rule.action is Action.FLAG))


def _facts(names: Iterable[str]) -> dict[str, str | int | float | bool]:
    """For the journey: which rules found something."""
    told = ", ".join(dict.fromkeys(names))
    return {"rules": told} if told else {}


def report(found: Sequence[Finding], side: str, metrics: Metrics) -> None:
    """Count what was found, and name the rules in the log: never the text."""
    for name, action in {(one.rule.name, one.rule.action.value) for one in found}:
        metrics.filter_matches[name, side, action] += 1
        log.info("the filter %r found something in the %s: %s", name, side, action)


def add_flags(headers: dict[str, str], names: Sequence[str]) -> None:
    """Name rules that found something and let it pass."""
    for name in (quote(name, safe=" .:/-") for name in names):  # headers are ASCII
        told = headers.get(FLAGGED)
        headers[FLAGGED] = name if told is None else f"{told}, {name}"


class FilteredAnswer(ForwardingAnswer):
    """See `answer.backend.Answer`."""

    def __init__(
        self,
        inner: Answer,
        rules: Sequence[Rule],
        metrics: Metrics,
        flagged: Sequence[str] = (),
        stages: list[Stage] | None = None,
    ) -> None:
        """`flagged`: names of rules that flagged the prompt; `stages`: where what filtering took is told."""
        super().__init__(inner)
        self._stages = stages
        self._began = 0.0
        """When the first chunk came; 0: none has."""
        self._busy = 0.0
        self._metrics = metrics
        self._choices = [_ChoiceFilter(index, rules) for index in range(inner.num_choices)]
        self._told: dict[str, None] = {}
        """Names of rules that found something, in order."""
        self._flag(flagged)
        self._kept: tuple[Chunk, Chunk | None] | None = None
        """A chunk that was filtered and not taken, which comes by iteration once more."""
        self._chunks = self._run()

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    async def _run(self) -> AsyncGenerator[list[Chunk], None]:
        async for chunks in self.inner:
            passed = [passed for chunk in chunks if (passed := self._pass(chunk)) is not None]
            if passed:
                yield passed
            if self._over and self._kept is None and any(choice.blocked for choice in self._choices):
                # What a rule has ended need not be written to its end.
                await self.inner.aclose()
                return

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        def through(chunk: Chunk) -> bool:
            passed = self._pass(chunk)
            if not self._over and (passed is None or take(passed)):
                return True
            self._kept = chunk, passed
            return False

        self.inner.divert(through)

    async def aclose(self) -> None:
        await super().aclose()
        await self._chunks.aclose()
        if self._stages is not None and self._began:
            self._stages.append(
                Stage(
                    name="filtered out",
                    start=self._began,
                    end=time.time(),
                    busy=self._busy,
                    facts=_facts(self._told),
                )
            )
            self._stages = None

    @property
    def _over(self) -> bool:
        return all(choice.over for choice in self._choices)

    def _pass(self, chunk: Chunk) -> Chunk | None:
        if self._kept is not None and self._kept[0] is chunk:
            passed, self._kept = self._kept[1], None
            return passed
        start = time.perf_counter()
        if not self._began:
            self._began = time.time()
        choice = self._choices[chunk.index]
        passed = choice.take(chunk)
        self._busy += time.perf_counter() - start
        for finding in choice.new_findings():
            rule = finding.rule
            if rule.name not in self._told:
                self._told[rule.name] = None
                report([finding], "output", self._metrics)
                if rule.action is Action.FLAG:
                    self._flag([rule.name])
        return passed

    def _flag(self, names: Sequence[str]) -> None:
        add_flags(self.headers, names)


class _Tokens(NamedTuple):
    """Tokens of a chunk, and the parts of texts that they spell: they wait until those are dealt with."""

    ids: list[int]
    logprobs: list[TokenLogprob]
    parts: list[tuple[StreamFilter, int, int]]


class _ChoiceFilter:
    """One choice: its text, its thoughts and each of its calls are texts of their own."""

    def __init__(self, index: int, rules: Sequence[Rule]) -> None:
        self._index = index
        self._rules = rules
        self._streams: list[StreamFilter] = []
        self._text = self._new()
        self._reasoning = self._new()
        self._call: tuple[int, StreamFilter] | None = None
        self.over = False
        self.blocked = False
        self._told = 0
        self._tokens: list[_Tokens] = []
        self._grown = 0
        """Characters that were shown, less those that came: what waits, and what masks have changed."""

    def _new(self, *, json: bool = False) -> StreamFilter:
        stream = StreamFilter(self._rules, json=json)
        self._streams.append(stream)
        return stream

    def take(self, chunk: Chunk) -> Chunk | None:
        """What may be shown; None: nothing now."""
        if self.over:
            return None
        finish = chunk.finish_reason
        parts: list[tuple[StreamFilter, int, int]] = []
        if self._is_plain(chunk):
            start = self._text.seen
            text = self._text.push(chunk.text)
            if text == chunk.text and self._text.done == start + len(text) and not self._text.findings:
                return chunk
            parts.append((self._text, start, start + len(chunk.text)))
            self._grown += len(text) - len(chunk.text)
            return self._shown(chunk, finish, text, "", [], parts)
        reasoning = self._push(self._reasoning, chunk.reasoning, parts)
        if chunk.text or chunk.calls or finish:
            reasoning += self._reasoning.flush()
            self._reasoning = self._fresh(self._reasoning)
        pushed = self._text
        text = self._push(pushed, chunk.text, parts)
        if chunk.calls or finish:
            text += pushed.flush()
            self._text = self._fresh(pushed)
        self._grown += len(text) - len(chunk.text)
        calls = list(self._calls(chunk.calls, bool(finish), parts))
        return self._shown(chunk, finish, text, reasoning, calls, parts)

    def _is_plain(self, chunk: Chunk) -> bool:
        """Nothing but text comes, behind nothing that waits: as most of the time."""
        return not (
            chunk.finish_reason
            or chunk.reasoning
            or chunk.calls
            or self._tokens
            or self._reasoning.seen
            or not chunk.text
        )

    def _shown(
        self,
        chunk: Chunk,
        finish: str | None,
        text: str,
        reasoning: str,
        calls: list[CallPiece],
        parts: list[tuple[StreamFilter, int, int]],
    ) -> Chunk | None:
        if any(stream.blocked for stream in self._streams):
            finish = "content_filter"
            self.blocked = True
        self.over = finish is not None
        # What has no text yet will have some: half a character, or what may be a stop string.
        parts = parts or [(self._text, self._text.seen, self._text.seen + 1)]
        self._tokens.append(_Tokens(chunk.token_ids, chunk.logprobs or [], parts))
        ids, logprobs = self._release()
        # What is computed before a text is there, and is none of the answer's.
        besides = chunk.prompt_logprobs is not None or chunk.logits is not None
        if not (text or reasoning or calls or ids or logprobs or finish or besides):
            return None
        return Chunk(
            index=self._index,
            text=text,
            reasoning=reasoning,
            calls=calls,
            token_ids=ids,
            logprobs=None if chunk.logprobs is None else logprobs,
            finish_reason=finish,
            stop_reason=None if finish == "content_filter" else chunk.stop_reason,
            prompt_logprobs=chunk.prompt_logprobs,
            logits=None if self.blocked else chunk.logits,
        )

    def new_findings(self) -> Sequence[Finding]:
        if sum(len(stream.findings) for stream in self._streams) == self._told:
            return ()
        found = [finding for stream in self._streams for finding in stream.findings]
        new, self._told = found[self._told :], len(found)
        return new

    @staticmethod
    def _push(stream: StreamFilter, text: str, parts: list[tuple[StreamFilter, int, int]]) -> str:
        start = stream.seen
        shown = stream.push(text)
        if text:
            parts.append((stream, start, start + len(text)))
        return shown

    def _fresh(self, stream: StreamFilter) -> StreamFilter:
        """After its end, a stream for what may follow: thoughts and text may alternate."""
        return stream if not stream.seen or stream.blocked is not None else self._new()

    def _calls(
        self, pieces: Sequence[CallPiece], finished: bool, parts: list[tuple[StreamFilter, int, int]]
    ) -> Iterator[CallPiece]:
        for piece in pieces:
            if self._call is None or self._call[0] != piece.index:
                yield from self._end_call()
                self._call = piece.index, self._new(json=True)
            arguments = self._push(self._call[1], piece.arguments, parts)
            if arguments or piece.name is not None:
                # No text waits when a call begins.
                before = None if piece.before is None else max(0, piece.before + self._grown)
                yield CallPiece(piece.index, arguments, piece.id, piece.name, before)
        if finished:
            yield from self._end_call()

    def _end_call(self) -> Iterator[CallPiece]:
        if self._call is not None:
            index, stream = self._call
            self._call = None
            if rest := stream.flush():
                yield CallPiece(index, rest)

    def _release(self) -> tuple[list[int], list[TokenLogprob]]:
        """Ids and log-probabilities spell the text, too: those of what is masked are left out."""
        ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        for number, tokens in enumerate(self._tokens):
            hidden = False
            for stream, start, end in tokens.parts:
                if stream.done < end and not self.over:
                    del self._tokens[:number]
                    return ids, logprobs
                hidden = hidden or stream.done < start or stream.hides(start, end)
            if not hidden:
                ids += tokens.ids
                logprobs += tokens.logprobs
        self._tokens.clear()
        return ids, logprobs


def _length(prompt: Prompt) -> int:
    return sum(map(len, texts_of(prompt))) + len(ids_of(prompt) or ())
