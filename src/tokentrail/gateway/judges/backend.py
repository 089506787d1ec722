"""Prompts are judged before a model reads them, answers before anybody sees them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

import msgspec

from tokentrail.answer import (
    Answer,
    AnswerRequest,
    Backend,
    Chunk,
    EmbeddingRequest,
    Embeddings,
    Prompt,
)
from tokentrail.gateway.filtering import ContentFiltered, add_flags
from tokentrail.gateway.forwarding import ForwardingAnswer, ForwardingBackend
from tokentrail.gateway.judges.rules import JudgeRule, Outcome, consult, masked, touches
from tokentrail.gateway.judges.verdicts import Mark, Matter
from tokentrail.gateway.prompt_texts import field_of, ids_of, texts_of, with_texts
from tokentrail.journey import Stage
from tokentrail.observability import Metrics

_BETWEEN = "\n"
"""Between the texts of a prompt, which are judged as one."""
_OVERLAP = 200
"""Characters before a window that are judged with it."""


class JudgingBackend(ForwardingBackend):
    """See `answer.backend.Backend`."""

    def __init__(self, inner: Backend, rules: Sequence[JudgeRule], metrics: Metrics) -> None:
        super().__init__(inner)
        self.rules = list(rules)
        """May be replaced at any time; what has begun goes on with those that it began with."""
        self._metrics = metrics

    async def open(self, request: AnswerRequest) -> Answer:
        rules = self.rules
        flagged = await self._check(request, [rule for rule in rules if rule.inputs])
        answer = await self.inner.open(request)
        outputs = [rule for rule in rules if rule.outputs]
        if outputs:
            answer = JudgedAnswer(answer, request, outputs, self._metrics)
        add_flags(answer.headers, flagged)
        return answer

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        await self._check(request, [rule for rule in self.rules if rule.inputs])
        return await self.inner.embed(request)

    async def _check(self, request: AnswerRequest | EmbeddingRequest, rules: list[JudgeRule]) -> list[str]:
        """Mask in place, refuse, or return the names of the rules that flag."""
        if not rules:
            return []
        start = time.time()
        try:
            outcomes = await asyncio.gather(
                *(self._check_prompt(request, at, rules) for at in range(len(request.prompts)))
            )
        finally:
            request.handling.stages.append(Stage(name="judged", start=start, end=time.time()))
        return list(dict.fromkeys(name for outcome in outcomes for name in outcome.flagged))

    async def _check_prompt(
        self, request: AnswerRequest | EmbeddingRequest, at: int, rules: list[JudgeRule]
    ) -> Outcome:
        prompt = request.prompts[at]
        texts = list(texts_of(prompt))
        ids = ids_of(prompt)
        spelled = "" if ids is None else self.inner.detokenize(ids)
        text = _BETWEEN.join([*texts, spelled] if ids is not None else texts)
        matter = Matter(text=text, direction="input", rule="", tenant=request.tenant, model=request.model)
        outcome = await consult(rules, matter, self._metrics)
        field = field_of(prompt)
        if outcome.blocked is not None:
            has = "have" if field == "messages" else "has"
            raise ContentFiltered(
                f"The {field} {has} something that the rule {outcome.blocked.name!r} does not let pass.",
                param=field,
            )
        if outcome.marks:
            if ids is not None and touches(outcome.marks, len(text) - len(spelled), len(text)):
                raise ContentFiltered(
                    "The prompt has something that must be masked, which token ids cannot be: send it as text.",
                    param="prompt",
                )
            request.prompts[at] = _with_marks(prompt, outcome.marks)
        return outcome


def _with_marks(prompt: Prompt, marks: Sequence[Mark]) -> Prompt:
    at = 0

    def change(text: str) -> str:
        nonlocal at
        start, at = at, at + len(text) + len(_BETWEEN)
        return masked(text, start, marks)

    return with_texts(prompt, change)


class JudgedAnswer(ForwardingAnswer):
    """See `answer.backend.Answer`. Each choice is held back until it, or a window of it, is judged. Judging goes on in
    the request's own task; the engine and other streams do not wait for it.
    """

    def __init__(
        self, inner: Answer, request: AnswerRequest, rules: Sequence[JudgeRule], metrics: Metrics
    ) -> None:
        super().__init__(inner)
        self._request = request
        self._rules = rules
        self._metrics = metrics
        # The widest of them: each rule reads at least its window, and none less than another.
        windows = [rule.window for rule in rules]
        self._window = None if None in windows else max(one for one in windows if one is not None)
        self._held: list[list[Chunk]] = [[] for _ in range(inner.num_choices)]
        self._length = [0] * inner.num_choices
        self._over = [False] * inner.num_choices
        self._before = [""] * inner.num_choices
        """The end of what was judged before."""
        self._blocked = False
        self._chunks = self._run()

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        """All chunks come by iteration: what is not judged yet is nobody's."""

    async def aclose(self) -> None:
        await super().aclose()
        await self._chunks.aclose()

    async def _run(self) -> AsyncGenerator[list[Chunk], None]:
        async for chunks in self.inner:
            due: dict[int, None] = {}
            for chunk in chunks:
                index = chunk.index
                if self._over[index]:
                    continue
                self._held[index].append(chunk)
                self._length[index] += _length(chunk)
                full = self._window is not None and self._length[index] >= self._window
                if chunk.finish_reason is not None or full:
                    due[index] = None
            if not due:
                continue
            passed = [chunk for part in await asyncio.gather(*map(self._judge, due)) for chunk in part]
            if passed:
                yield passed
            if self._blocked and all(self._over):
                # What a rule has ended need not be written to its end.
                await self.inner.aclose()
                return

    async def _judge(self, index: int) -> list[Chunk]:
        """What may be shown of what was held of a choice."""
        held, self._held[index] = self._held[index], []
        self._length[index] = 0
        text = "".join(piece for chunk in held for piece in _pieces(chunk))
        finished = held[-1].finish_reason is not None
        if not text:
            self._over[index] = finished
            return held
        start = time.time()
        before = self._before[index]
        self._before[index] = (before + text)[-_OVERLAP:]
        matter = Matter(
            text=before + text,
            direction="output",
            rule="",
            tenant=self._request.tenant,
            model=self._request.model,
        )
        outcome = await consult(self._rules, matter, self._metrics)
        self._request.handling.stages.append(Stage(name="judged", start=start, end=time.time()))
        add_flags(self.headers, outcome.flagged)
        if outcome.blocked is not None:
            self._over[index] = self._blocked = True
            return [Chunk(index=index, finish_reason="content_filter")]
        self._over[index] = finished
        return _marked(held, outcome.marks, len(before)) if outcome.marks else held


def _pieces(chunk: Chunk) -> list[str]:
    return [chunk.reasoning, chunk.text, *(call.arguments for call in chunk.calls)]


def _length(chunk: Chunk) -> int:
    return sum(map(len, _pieces(chunk)))


def _marked(held: Sequence[Chunk], marks: Sequence[Mark], at: int) -> list[Chunk]:
    """`at`: where they begin in what was judged. Ids and log-probabilities spell the text, too: of chunks that are
    masked they are left out.
    """
    made = []
    for chunk in held:
        start, at = at, at + _length(chunk)
        if not touches(marks, start, at):
            made.append(chunk)
            continue
        position = start
        reasoning = masked(chunk.reasoning, position, marks)
        position += len(chunk.reasoning)
        text = masked(chunk.text, position, marks)
        position += len(chunk.text)
        calls = []
        for call in chunk.calls:
            arguments = masked(call.arguments, position, marks, json=True)
            calls.append(msgspec.structs.replace(call, arguments=arguments, before=None))
            position += len(call.arguments)
        made.append(
            msgspec.structs.replace(
                chunk,
                reasoning=reasoning,
                text=text,
                calls=calls,
                token_ids=[],
                logprobs=None if chunk.logprobs is None else [],
            )
        )
    return made
