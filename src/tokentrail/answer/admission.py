"""A request from its check to its end: its sequences, what they brought, its journey, its measurements.

Synchronous and without an engine: `LocalAnswer` and `LLM` each drive it their own way.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from tokentrail.answer.choice import ChoiceWriter, TokenTexts
from tokentrail.answer.parsing import AnswerPlan, format_for, tools_of
from tokentrail.answer.parts import TextParts
from tokentrail.answer.prompts import Prepared, echo_of, prepare, resolve_max_tokens
from tokentrail.answer.types import AnswerRequest, ChatOptions, Chunk, InfillPrompt, Timing, Usage
from tokentrail.journey import Asked, Journey, JourneyStore, SequenceTrail
from tokentrail.observability import Metrics
from tokentrail.protocol import (
    Delta,
    EngineInfo,
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    SamplingParams,
    StructuredOutputsParams,
    TokentrailError,
)
from tokentrail.text.continuing import ContinuedText
from tokentrail.text.grammar import (
    Calls,
    Thoughts,
    build_form,
    build_grammar,
    literals,
    marks_in,
    marks_of,
)

SEED_BITS = 53
"""Drawn seeds stay below 2^53, so that JSON readers with floating-point numbers repeat them exactly."""

# Of a request with several choices the worst outcome is told.
_BADNESS = {"stop": 0, "length": 1, "abort": 2, "rejected": 3, "timeout": 4, "error": 5}


def check_priority(priority: int) -> None:
    """Raise `InvalidRequest` for what a message to the engine cannot hold."""
    if not -(2**63) <= priority < 2**63:
        raise InvalidRequest(
            f"priority must be from {-(2**63)} to {2**63 - 1}, not {priority}.", param="priority"
        )


def draw_seed() -> int:
    return secrets.randbits(SEED_BITS)


class Desk:
    """Where requests for one model are admitted."""

    def __init__(
        self,
        parts: TextParts,
        journeys: JourneyStore,
        metrics: Metrics,
        *,
        draw_seed: Callable[[], int] = draw_seed,
    ) -> None:
        """`draw_seed`: makes the seeds of requests that bring none."""
        self.parts = parts
        self.journeys = journeys
        self.metrics = metrics
        self.texts = TokenTexts(parts.tokenizer)
        self.draw_seed = draw_seed

    @cached_property
    def _marks(self) -> dict[str, int]:
        return marks_of(self.parts.tokenizer)

    def check(self, request: AnswerRequest, info: EngineInfo) -> None:
        """Fill in what the model's makers recommend, and check the ranges of the parameters that do not depend on the
        prompt. Raises `InvalidRequest`.
        """
        unset = set(request.unset)
        if request.default_max_tokens is not None:
            unset.discard("max_tokens")
        request.sampling = self.parts.defaults.fill(request.sampling, unset)
        request.unset = ()
        check_priority(request.priority)
        request.sampling.replace(max_tokens=None).validate(vocab_size=info.vocab_size)
        if request.sampling.bad_words:
            request.sampling = self._with_bad_tokens(request.sampling)
        keep, most = request.truncate_prompt_tokens, info.max_model_len - 1
        if keep is not None and not (keep == -1 or 1 <= keep <= most):
            raise InvalidRequest(
                f"truncate_prompt_tokens must be from 1 to {most}, or -1, not {keep}.",
                param="truncate_prompt_tokens",
            )

    def _with_bad_tokens(self, sampling: SamplingParams) -> SamplingParams:
        """`bad_words` as the tokens that they are written with: where they go on behind a text, and as words."""
        text = self._continued
        runs = dict.fromkeys(sampling.bad_token_ids)
        for word in sampling.bad_words:
            for written in (word, " " + word.lstrip(" ")):
                runs.setdefault(tuple(text.encode(written)))
        return sampling.replace(bad_token_ids=tuple(run for run in runs if run))

    @cached_property
    def _continued(self) -> ContinuedText:
        return ContinuedText(self.parts.tokenizer)

    def prepare(self, request: AnswerRequest, info: EngineInfo) -> Prepared:
        """Prompts to tokens, and the wanted form to a grammar. Safe in another thread."""
        parts, options = self.parts, request.chat
        wanted = request.sampling.structured_outputs
        grammar = None
        if wanted is not None and options is None:
            grammar = build_grammar(wanted, self._marks_for(wanted))
        keep = request.truncate_prompt_tokens
        if keep == -1:
            # What the answer wants is left free, as far as that leaves anything of the prompt.
            room = request.sampling.max_tokens or request.default_max_tokens or 1
            keep = max(1, info.max_model_len - room)
        prepared = prepare(
            request.prompts,
            parts.tokenizer,
            parts.template,
            info.max_model_len,
            infill=parts.infill,
            keep=keep,
        )
        if options is not None:
            prepared.plan = plan = self._plan(options, prepared.texts[0] or "")
            grammar = self._grammar(wanted, options, plan)
        if grammar is not None and request.sampling.allowed_token_ids is not None:
            raise InvalidRequest(
                "allowed_token_ids cannot be combined with a form of the answer, with tool calls that must come or a "
                "budget of thoughts: these decide themselves which tokens may come.",
                param="allowed_token_ids",
            )
        prepared.grammar = grammar
        return prepared

    def _marks_for(self, wanted: StructuredOutputsParams | None) -> dict[str, int]:
        """Marks that are tokens of the vocabulary: those around thoughts and calls, and those that a structural tag
        writes.
        """
        if wanted is None or wanted.structural_tag is None:
            return self._marks
        spec: Any = wanted.structural_tag
        if isinstance(spec, str):
            try:
                spec = json.loads(spec)
            except (ValueError, RecursionError):
                return self._marks  # refused soon, in words
        return {**self._marks, **marks_in(literals(spec), self.parts.tokenizer)}

    def _plan(self, options: ChatOptions, prompt: str) -> AnswerPlan | None:
        """How the answer to `prompt` is taken apart; None: it is text alone."""
        formats = self.parts.formats
        tools = tools_of(options)
        always = formats.tools is not None and formats.tools.always
        tool_format = format_for(options, formats) if tools or always else None
        if tool_format is None and formats.reasoning is None:
            return None
        markers = [*(tool_format.markers if tool_format is not None else ())]
        markers += formats.reasoning.markers if formats.reasoning is not None else ()
        shown = frozenset(self._marks[mark] for mark in markers if mark in self._marks)
        return AnswerPlan(prompt, tool_format, tools, formats.reasoning, shown)

    def _grammar(
        self, wanted: StructuredOutputsParams | None, options: ChatOptions, plan: AnswerPlan | None
    ) -> str | None:
        if plan is None:
            if options.thinking_token_budget is not None and not options.thoughts_optional:
                raise InvalidRequest(
                    "thinking_token_budget is not supported: this model does not mark its thoughts.",
                    param="thinking_token_budget",
                )
            return None if wanted is None else build_grammar(wanted, self._marks_for(wanted))
        calls = thoughts = None
        if plan.tool_format is not None and plan.tools:
            required = options.tool_choice != "auto"
            several = options.parallel_tool_calls and options.tool_choice in ("auto", "required")
            calls = Calls(plan.tool_format, plan.tools, required, several)
        if plan.reasoning is not None and not plan.reasoning.ended(plan.prompt):
            begun = plan.reasoning.begun(plan.prompt)
            thoughts = Thoughts(plan.reasoning, begun, options.thinking_token_budget)
        begin = "" if plan.tool_format is None else plan.tool_format.answer_begin
        return build_form(wanted, calls, thoughts, self._marks_for(wanted), answer_begin=begin)

    def begin_journey(self, request: Asked, prepared: Prepared) -> Journey:
        """Of a request that is admitted."""
        journey = self.journeys.begin_for(request)
        journey.template_done(
            sum(map(len, prepared.token_ids)),
            template_seconds=prepared.template_seconds,
            tokenize_seconds=prepared.tokenize_seconds,
        )
        journey.token_text = self.texts.text
        return journey

    def admit(self, request: AnswerRequest, prepared: Prepared, info: EngineInfo) -> Admission:
        """Begin the request's journey. Raises `InvalidRequest` before, if it does not fit the context."""
        context = info.max_model_len
        limits = [resolve_max_tokens(request, ids, context) for ids in prepared.token_ids]
        for limit in limits:
            request.sampling.replace(max_tokens=max(1, limit)).validate()
        return Admission(self, request, prepared, limits, info)


class Admission:
    """An admitted request."""

    def __init__(
        self, desk: Desk, request: AnswerRequest, prepared: Prepared, limits: Sequence[int], info: EngineInfo
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.adapter = request.model if request.model in {one.name for one in info.adapters} else ""
        self.fingerprint = info.fingerprint_with(self.adapter)
        self.seed = desk.draw_seed() if sampling.seed is None else sampling.seed
        self.prompt_token_ids = prepared.token_ids
        self.prompt_texts = prepared.texts
        self._grammar, self._plan = prepared.grammar, prepared.plan
        self.usage = Usage(prompt_tokens=sum(map(len, prepared.token_ids)))
        self.journey = desk.begin_journey(request, prepared)
        self.journey.seed = self.seed
        self.journey.fingerprint = self.fingerprint
        self._metrics = desk.metrics
        self.timing = Timing(self.journey.received)
        self._ended = False
        self.sequences = [
            self._sequence(desk, limits[prompt], prompt, choice)
            for prompt in range(len(request.prompts))
            for choice in range(sampling.n)
        ]

    def _sequence(self, desk: Desk, limit: int, prompt: int, choice: int) -> AnswerSequence:
        request, tokenizer = self.request, desk.parts.tokenizer
        ids, text = self.prompt_token_ids[prompt], self.prompt_texts[prompt]
        index = prompt * request.sampling.n + choice
        sampling = request.sampling.replace(
            seed=self.seed, max_tokens=max(1, limit), n=1, structured_outputs=None
        )
        if isinstance(request.prompts[prompt], InfillPrompt) and desk.parts.infill is not None:
            ends = (*sampling.stop_token_ids, *desk.parts.infill.end_ids)
            sampling = sampling.replace(stop_token_ids=ends)
        # The choices of a prompt have it in common.
        scored = sampling.prompt_logprobs if choice == 0 else None
        echo, wanted = None, scored
        if request.echo:
            echo = echo_of(ids, text, sampling, tokenizer)
            if sampling.logprobs is not None:
                wanted = max(sampling.logprobs, scored or 0)
        sampling = sampling.replace(prompt_logprobs=wanted)
        generate = GenerateRequest(
            id=f"{request.id}-{index}",
            group=request.id,
            prompt=ids,
            sampling=sampling,
            # Of its own prompt: a prompt in a list is answered as if it were alone.
            choice=choice,
            priority=request.priority,
            tenant=request.tenant,
            weight=request.identity.weight,
            salt=request.salt,
            session=request.session,
            adapter=self.adapter,
            deadline=request.deadline,
            grammar=self._grammar,
            output=request.begun,
            reveal=request.reveal,
            trace=request.trace,
            arrival=self.journey.received,
        )
        writer = ChoiceWriter(
            index,
            sampling,
            tokenizer,
            desk.texts,
            echo=echo,
            score_only=limit == 0,
            plan=self._plan,
            scored=None if scored is None else ids,
            prompt_logprobs=scored or 0,
            lines=request.lines,
        )
        trail = self.journey.add_sequence(generate.id, prompt_tokens=len(ids), prompt=text, prompt_ids=ids)
        return AnswerSequence(generate, writer, trail)

    def write(self, sequence: AnswerSequence, delta: Delta) -> Chunk:
        """What `delta` adds to the answer. Raises `TokentrailError` if the engine gave the sequence up."""
        finish = delta.finish
        if finish is not None and finish.reason is FinishReason.TIMEOUT:
            raise self.request.late()
        if finish is not None and finish.reason in (FinishReason.ABORT, FinishReason.ERROR):
            raise TokentrailError(finish.error or "The engine gave the request up.", code=finish.reason.value)
        writer = sequence.writer
        before, thoughts = writer.num_tokens, writer.num_thoughts
        start = time.perf_counter()
        chunk = writer.push(delta)
        self.journey.detokenize_seconds += time.perf_counter() - start
        chunk.logits = delta.logits
        new = writer.num_tokens - before
        self.usage.completion_tokens += new
        self.usage.reasoning_tokens += writer.num_thoughts - thoughts
        self._observe(sequence, new)
        if delta.cached_tokens is not None and sequence.request.choice == 0:
            self.usage.cached_tokens += delta.cached_tokens
        if self.journey.keep_text:
            sequence.texts.append(chunk.reasoning + chunk.text)
        if chunk.finish_reason is not None:
            text = "".join(sequence.texts)
            self.journey.sequence_done(sequence.trail, chunk.finish_reason, writer.num_tokens, text)
        return chunk

    def _observe(self, sequence: AnswerSequence, tokens: int) -> None:
        if not tokens:
            return
        now = time.time()
        if self.timing.first_token is None:
            self.timing.first_token = now
            self._metrics.first_token.observe(now - self.journey.received)
        if sequence.last_token is not None:
            self._metrics.inter_token.observe((now - sequence.last_token) / tokens, tokens)
        sequence.last_token = self.timing.last_token = now

    @property
    def outcome(self) -> str:
        """How its choices ended, the worst of them."""
        reasons = [sequence.writer.finish_reason or "error" for sequence in self.sequences]
        return max(reasons, key=_BADNESS.__getitem__)

    def end(self, outcome: str) -> None:
        """The request is over. Only the first call counts."""
        if self._ended:
            return
        self._ended = True
        self.journey.end(outcome)
        metrics = self._metrics
        metrics.requests[outcome] += 1
        if outcome == "rejected":
            return
        metrics.latency.observe(time.time() - self.journey.received)
        metrics.request_prompt_tokens.observe(self.usage.prompt_tokens)
        metrics.request_generation_tokens.observe(self.usage.completion_tokens)
        between = self.usage.completion_tokens - len(self.sequences)
        first, last = self.timing.first_token, self.timing.last_token
        if first is not None and last is not None and between > 0:
            seconds = (last - first) * len(self.sequences)
            metrics.per_output_token.observe(seconds / between)
        queue = self.journey.queue_seconds()
        if queue is not None:
            metrics.queue_time.observe(queue)


class AnswerSequence:
    """One choice of one prompt on its way."""

    __slots__ = ("last_token", "request", "texts", "trail", "writer")

    def __init__(self, request: GenerateRequest, writer: ChoiceWriter, trail: SequenceTrail) -> None:
        self.request = request
        self.writer = writer
        self.trail = trail
        self.last_token: float | None = None
        self.texts: list[str] = []
