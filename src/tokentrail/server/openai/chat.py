"""Chat completions: request → `Question`, chunks → response objects."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from tokentrail.answer import Answer, ChatPrompt, Choice, Chunk, Usage
from tokentrail.protocol import InvalidRequest, SamplingParams
from tokentrail.server.conversation import thinking_variables
from tokentrail.server.generation import Question
from tokentrail.server.openai.dialect import OpenAIDialect, SSEStream
from tokentrail.server.openai.messages import plain_messages, text_of
from tokentrail.server.openai.requests import ChatCompletionRequest
from tokentrail.server.openai.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    CompletionTokensDetails,
    DeltaBody,
    FunctionCall,
    FunctionCallDelta,
    MessageBody,
    PromptTokensDetails,
    ToolCall,
    ToolCallDelta,
    UsageBody,
)
from tokentrail.server.openai.scores import chat_logprobs, prompt_logprobs
from tokentrail.server.openai.tools import options_of, told_tools
from tokentrail.server.schemas import check_top_logprobs
from tokentrail.server.sse import DONE, TextEvents, event

# What a template sets itself, or what other parameters say.
_RESERVED = frozenset(
    {
        "messages",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
        "chat_template",
    }
)


def prompt_of(body: ChatCompletionRequest, *, trust_template: bool = False) -> ChatPrompt:
    """`trust_template`: the request may bring a template of its own."""
    if not body.messages:
        raise InvalidRequest("messages must not be empty.", param="messages")
    kwargs = body.chat_template_kwargs or {}
    for name in kwargs:
        if name in _RESERVED:
            raise InvalidRequest(f"chat_template_kwargs must not set {name!r}.", param="chat_template_kwargs")
    if body.chat_template and not trust_template:
        raise InvalidRequest(
            "chat_template is refused: a template is a program. The server takes those of requests if it is started "
            "with --trust-request-chat-template.",
            param="chat_template",
        )
    documents: dict[str, Any] = {} if body.documents is None else {"documents": body.documents}
    return ChatPrompt(
        messages=plain_messages(body.messages),
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        tools=told_tools(body),
        template_kwargs={
            **thinking_variables(body.reasoning_effort, body.enable_thinking),
            **documents,
            **kwargs,
        },
        template=body.chat_template or None,
        add_special_tokens=bool(body.add_special_tokens),
    )


def sampling_of(body: ChatCompletionRequest) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    check_top_logprobs(body.top_logprobs)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return body.sampling(max_tokens=limit, logprobs=(body.top_logprobs or 0) if body.logprobs else None)


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(usage.reasoning_tokens),
    )


class ChatDialect(OpenAIDialect[ChatCompletionRequest]):
    prefix = "chatcmpl-"

    def __init__(self, body: ChatCompletionRequest, *, trust_template: bool = False) -> None:
        super().__init__(body)
        self._trust_template = trust_template

    def question(self) -> Question:
        body = self.body
        prompt = prompt_of(body, trust_template=self._trust_template)
        return self.ask([prompt], sampling_of(body), chat=options_of(body))

    def whole(self, answer: Answer, choices: list[Choice]) -> ChatCompletion:
        return completion(answer, choices, self.body)

    def stream(self, answer: Answer) -> ChatStream:
        return ChatStream(answer, self.body)


def completion(answer: Answer, choices: list[Choice], body: ChatCompletionRequest) -> ChatCompletion:
    ids = bool(body.return_token_ids)
    scored = choices[0].prompt_logprobs
    return ChatCompletion(
        id=answer.id,
        created=answer.created,
        model=answer.model,
        choices=[_choice(choice, body) for choice in choices],
        usage=usage_body(answer.usage),
        system_fingerprint=answer.fingerprint,
        seed=answer.seed,
        service_tier=body.tier,
        metadata=UNSET if body.metadata is None else body.metadata,
        prompt_token_ids=answer.prompt_token_ids[0] if ids else UNSET,
        prompt_logprobs=UNSET if scored is None else prompt_logprobs(scored),
    )


def _choice(choice: Choice, body: ChatCompletionRequest) -> ChatChoice:
    as_ids = bool(body.return_tokens_as_token_ids)
    return ChatChoice(
        index=choice.index,
        message=_message(choice, body),
        logprobs=None if choice.logprobs is None else chat_logprobs(choice.logprobs, as_ids=as_ids),
        finish_reason=_reason(choice.finish_reason, body),
        stop_reason=UNSET if choice.stop_reason is None else choice.stop_reason,
        token_ids=choice.token_ids if body.return_token_ids else UNSET,
    )


def _message(choice: Choice, body: ChatCompletionRequest) -> MessageBody:
    text = _echoed(body) + choice.text
    message = MessageBody(text)
    if choice.calls:
        message.content = text or None
        calls = [FunctionCall(call.name or "", call.arguments) for call in choice.calls]
        if body.functions is not None:
            message.function_call = calls[0]
        else:
            message.tool_calls = [
                ToolCall(call.id or "", function) for call, function in zip(choice.calls, calls, strict=True)
            ]
    if choice.reasoning and body.include_reasoning is not False:
        message.reasoning_content = message.reasoning = choice.reasoning
    return message


def _reason(reason: str | None, body: ChatCompletionRequest) -> str | None:
    return "function_call" if reason == "tool_calls" and body.functions is not None else reason


def _echoed(body: ChatCompletionRequest) -> str:
    """vLLM's `echo`: the last message, where it is the assistant's, too."""
    last = body.messages[-1]
    return text_of(last.content, "messages") if body.echo and last.role == "assistant" else ""


class ChatStream(SSEStream):
    """Chunks → events: for each choice first its role, then its text, then why it ended; usage last."""

    def __init__(self, answer: Answer, body: ChatCompletionRequest) -> None:
        self._answer = answer
        self._body = body
        self._ids = bool(body.return_token_ids)
        self._as_ids = bool(body.return_tokens_as_token_ids)
        self._usage = body.include_usage
        self._continuous = body.continuous_usage
        self._reasoning = body.include_reasoning is not False
        self._frame = ChatChunk(
            id=answer.id,
            created=answer.created,
            model=answer.model,
            system_fingerprint=answer.fingerprint,
            seed=answer.seed,
            choices=[],
            usage=None if self._usage else UNSET,
            service_tier=body.tier,
        )
        self._plain: dict[int, TextEvents] = {}
        """By choice: events of text alone."""

    def settled(self) -> None:
        self._frame.system_fingerprint, self._frame.seed = self._answer.fingerprint, self._answer.seed

    def start(self) -> bytes:
        events = b""
        echoed = _echoed(self._body)
        for index in range(self._answer.num_choices):
            choice = ChatChunkChoice(index=index, delta=DeltaBody(content="", role="assistant", refusal=None))
            if self._ids and index == 0:
                self._frame.prompt_token_ids = self._answer.prompt_token_ids[0]
            events += self._event(choice)
            self._frame.prompt_token_ids = UNSET
            if echoed:
                events += self._event(ChatChunkChoice(index=index, delta=DeltaBody(content=echoed)))
        return events

    def chunk(self, chunk: Chunk) -> bytes:
        """Empty if there is nothing to show yet."""
        done = chunk.finish_reason is not None
        parts = b""
        if chunk.reasoning and self._reasoning:
            thoughts = DeltaBody(reasoning_content=chunk.reasoning, reasoning=chunk.reasoning)
            parts = self._event(ChatChunkChoice(index=chunk.index, delta=thoughts))
        if not done and chunk.logprobs is None and not self._ids:
            if chunk.text:
                parts += self._text(chunk)
            return parts + self._calls(chunk) if chunk.calls else parts
        if chunk.text or chunk.logprobs or (self._ids and chunk.token_ids):
            choice = ChatChunkChoice(index=chunk.index, delta=DeltaBody(content=chunk.text))
            if chunk.logprobs is not None:
                choice.logprobs = chat_logprobs(chunk.logprobs, as_ids=self._as_ids)
            if self._ids:
                choice.token_ids = chunk.token_ids
            parts += self._event(choice)
        parts += self._calls(chunk)
        if done:
            reason = _reason(chunk.finish_reason, self._body)
            choice = ChatChunkChoice(index=chunk.index, delta=DeltaBody(), finish_reason=reason)
            if chunk.stop_reason is not None:
                choice.stop_reason = chunk.stop_reason
            parts += self._event(choice)
        return parts

    def _event(self, choice: ChatChunkChoice) -> bytes:
        frame = self._frame
        frame.choices = [choice]
        if self._continuous:
            frame.usage = usage_body(self._answer.usage)
        return event(frame)

    def _calls(self, chunk: Chunk) -> bytes:
        """Of each call first its id and name, then its arguments."""
        events = b""
        legacy = self._body.functions is not None
        for piece in chunk.calls:
            deltas = []
            if legacy:
                if piece.index:
                    continue  # there is room for one
                if piece.name is not None:
                    deltas.append(DeltaBody(function_call=FunctionCallDelta("", piece.name)))
                if piece.arguments:
                    deltas.append(DeltaBody(function_call=FunctionCallDelta(piece.arguments)))
            else:
                if piece.name is not None:
                    function = FunctionCallDelta("", piece.name)
                    call = ToolCallDelta(piece.index, function, id=piece.id or "", type="function")
                    deltas.append(DeltaBody(tool_calls=[call]))
                if piece.arguments:
                    call = ToolCallDelta(piece.index, FunctionCallDelta(piece.arguments))
                    deltas.append(DeltaBody(tool_calls=[call]))
            for delta in deltas:
                events += self._event(ChatChunkChoice(index=chunk.index, delta=delta))
        return events

    def _text(self, chunk: Chunk) -> bytes:
        if self._continuous:
            return self._event(ChatChunkChoice(index=chunk.index, delta=DeltaBody(content=chunk.text)))
        events = self._plain.get(chunk.index)
        if events is None:
            self._frame.choices = [ChatChunkChoice(index=chunk.index, delta=DeltaBody(content=""))]
            events = self._plain[chunk.index] = TextEvents(self._frame, "content")
        return events.event(chunk.text)

    def end(self) -> bytes:
        if not self._usage:
            return DONE
        self._frame.choices = []
        self._frame.usage = usage_body(self._answer.usage)
        return event(self._frame) + DONE
