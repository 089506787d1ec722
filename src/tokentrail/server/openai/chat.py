"""Chat completions: request → `AnswerRequest`, chunks → response objects."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from tokentrail.answer import Answer, ChatOptions, ChatPrompt, Choice, Chunk, TokenLogprob, Usage
from tokentrail.protocol import InvalidRequest, SamplingParams
from tokentrail.server.conversation import thinking_variables
from tokentrail.server.generation import Question
from tokentrail.server.openai.dialect import OpenAIDialect, SSEStream
from tokentrail.server.openai.requests import ChatCompletionRequest, ChatMessage, ToolChoice
from tokentrail.server.openai.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    DeltaBody,
    FunctionCall,
    MessageBody,
    PromptTokensDetails,
    TokenLogprobBody,
    ToolCall,
    ToolCallDelta,
    TopLogprobBody,
    UsageBody,
)
from tokentrail.server.sse import DONE, TextEvents, event

# OpenAI's. A role that the template does not know would be taken for another, or left out.
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# What a template sets itself, or what other parameters say.
_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token"}
)
_LONGEST_THOUGHTS = 1_000_000
_LOWEST_LOGPROB = -9999.0
"""For tokens that were impossible: JSON has no infinity."""


def prompt_of(body: ChatCompletionRequest) -> ChatPrompt:
    if not body.messages:
        raise InvalidRequest("messages must not be empty.", param="messages")
    kwargs = body.chat_template_kwargs or {}
    for name in kwargs:
        if name in _RESERVED:
            raise InvalidRequest(f"chat_template_kwargs must not set {name!r}.", param="chat_template_kwargs")
    return ChatPrompt(
        messages=[_message(message, at) for at, message in enumerate(body.messages)],
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        tools=_told_tools(body),
        template_kwargs={**thinking_variables(body.reasoning_effort, body.enable_thinking), **kwargs},
    )


def _told_tools(body: ChatCompletionRequest) -> list[dict[str, Any]]:
    """What the template is told of: nothing where the model must not call anything."""
    return [] if body.tool_choice == "none" else _tools(body)


def _tools(body: ChatCompletionRequest) -> list[dict[str, Any]]:
    for at, tool in enumerate(body.tools or ()):
        if tool.type != "function":
            where = f"tools[{at}].type"
            raise InvalidRequest(f"{where} must be function, not {tool.type[:40]!r}.", param=where)
    return [tool.model_dump(exclude_none=True) for tool in body.tools or ()]


def options_of(body: ChatCompletionRequest) -> ChatOptions:
    tools = _tools(body)
    choice = body.tool_choice
    if isinstance(choice, ToolChoice):
        named = choice.function.name
        if all(tool["function"]["name"] != named for tool in tools):
            raise InvalidRequest(
                f"tool_choice names {named[:80]!r}, which is not among the tools.", param="tool_choice"
            )
    elif choice not in (None, "auto", "none", "required"):
        raise InvalidRequest(
            f"tool_choice must be auto, none, required or a function, not {choice[:40]!r}.",
            param="tool_choice",
        )
    else:
        named = choice or "auto"
    if named == "required" and not tools:
        raise InvalidRequest("tool_choice is required, but there are no tools.", param="tool_choice")
    budget = body.thinking_token_budget
    if budget is not None and not 1 <= budget <= _LONGEST_THOUGHTS:
        raise InvalidRequest(
            f"thinking_token_budget must be from 1 to {_LONGEST_THOUGHTS}, not {budget}.",
            param="thinking_token_budget",
        )
    return ChatOptions(
        tools=tools,
        tool_choice=named,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        thinking_token_budget=budget,
    )


def _message(message: ChatMessage, at: int) -> dict[str, Any]:
    """As the template gets it: text alone. `developer` is OpenAI's newer word for `system`."""
    # Not `model_dump`, which takes ten times as long: a body may have a hundred thousand messages.
    given = {"name": message.name, **(message.model_extra or {})}
    if message.role not in _ROLES:
        where = f"messages[{at}].role"
        raise InvalidRequest(
            f"{where} must be one of {', '.join(_ROLES)}, not {message.role[:40]!r}.", param=where
        )
    if message.content is None and not (given.get("tool_calls") or given.get("function_call")):
        where = f"messages[{at}].content"
        raise InvalidRequest(f"You must provide {where}.", param=where)
    fields: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    fields |= {key: value for key, value in given.items() if value is not None}
    if isinstance(message.content, str):
        fields["content"] = message.content
    elif message.content is not None:
        texts = []
        for number, part in enumerate(message.content):
            text = part.refusal if part.type == "refusal" else part.text
            where = f"messages[{at}].content[{number}]"
            if part.type not in ("text", "refusal"):
                raise InvalidRequest(
                    f"{where} is of type {part.type[:40]!r}, but the model reads text only.", param=where
                )
            if text is None:
                raise InvalidRequest(f"{where} has no {part.type}.", param=where)
            texts.append(text)
        fields["content"] = "\n".join(texts)
    return fields


def sampling_of(body: ChatCompletionRequest) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= 20:
        raise InvalidRequest(
            f"top_logprobs must be from 0 to 20, not {body.top_logprobs}.", param="top_logprobs"
        )
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return body.sampling(max_tokens=limit, logprobs=(body.top_logprobs or 0) if body.logprobs else None)


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.cached_tokens),
    )


def completion(answer: Answer, choices: list[Choice], body: ChatCompletionRequest) -> ChatCompletion:
    ids = bool(body.return_token_ids)
    return ChatCompletion(
        id=answer.id,
        created=answer.created,
        model=answer.model,
        choices=[
            ChatChoice(
                index=choice.index,
                message=_whole_message(choice, reasoning=body.include_reasoning is not False),
                logprobs=None if choice.logprobs is None else _logprobs(choice.logprobs),
                finish_reason=choice.finish_reason,
                stop_reason=UNSET if choice.stop_reason is None else choice.stop_reason,
                token_ids=choice.token_ids if ids else UNSET,
            )
            for choice in choices
        ],
        usage=usage_body(answer.usage),
        system_fingerprint=answer.fingerprint,
        seed=answer.seed,
        prompt_token_ids=answer.prompt_token_ids[0] if ids else UNSET,
    )


def _whole_message(choice: Choice, *, reasoning: bool) -> MessageBody:
    message = MessageBody(choice.text)
    if choice.calls:
        message.content = choice.text or None
        message.tool_calls = [
            ToolCall(call.id or "", FunctionCall(call.arguments, call.name or "")) for call in choice.calls
        ]
    if choice.reasoning and reasoning:
        message.reasoning_content = message.reasoning = choice.reasoning
    return message


class ChatDialect(OpenAIDialect[ChatCompletionRequest]):
    prefix = "chatcmpl-"

    def question(self) -> Question:
        return self.ask([prompt_of(self.body)], sampling_of(self.body), chat=options_of(self.body))

    def whole(self, answer: Answer, choices: list[Choice]) -> ChatCompletion:
        return completion(answer, choices, self.body)

    def stream(self, answer: Answer) -> ChatStream:
        return ChatStream(answer, self.body)


class ChatStream(SSEStream):
    """Chunks → events: for each choice first its role, then its text, then why it ended; usage last."""

    def __init__(self, answer: Answer, body: ChatCompletionRequest) -> None:
        self._answer = answer
        self._ids = bool(body.return_token_ids)
        self._usage = body.include_usage
        self._reasoning = body.include_reasoning is not False
        self._frame = ChatChunk(
            id=answer.id,
            created=answer.created,
            model=answer.model,
            system_fingerprint=answer.fingerprint,
            seed=answer.seed,
            choices=[],
            usage=None if self._usage else UNSET,
        )
        self._plain: dict[int, TextEvents] = {}
        """By choice: events of text alone."""

    def start(self) -> bytes:
        events = []
        for index in range(self._answer.num_choices):
            choice = ChatChunkChoice(index=index, delta=DeltaBody(content="", role="assistant", refusal=None))
            frame = self._frame
            if self._ids and index == 0:
                frame = msgspec.structs.replace(frame, prompt_token_ids=self._answer.prompt_token_ids[0])
            frame.choices = [choice]
            events.append(event(frame))
        return b"".join(events)

    def chunk(self, chunk: Chunk) -> bytes:
        """Empty if there is nothing to show yet."""
        done = chunk.finish_reason is not None
        parts = b""
        if chunk.reasoning and self._reasoning:
            thoughts = DeltaBody(reasoning_content=chunk.reasoning, reasoning=chunk.reasoning)
            self._frame.choices = [ChatChunkChoice(index=chunk.index, delta=thoughts)]
            parts = event(self._frame)
        if not done and chunk.logprobs is None and not self._ids:
            if chunk.text:
                parts += self._text(chunk)
            return parts + self._calls(chunk) if chunk.calls else parts
        if chunk.text or chunk.logprobs or (self._ids and chunk.token_ids):
            choice = ChatChunkChoice(index=chunk.index, delta=DeltaBody(content=chunk.text))
            if chunk.logprobs is not None:
                choice.logprobs = _logprobs(chunk.logprobs)
            if self._ids:
                choice.token_ids = chunk.token_ids
            self._frame.choices = [choice]
            parts += event(self._frame)
        parts += self._calls(chunk)
        if done:
            choice = ChatChunkChoice(index=chunk.index, delta=DeltaBody(), finish_reason=chunk.finish_reason)
            if chunk.stop_reason is not None:
                choice.stop_reason = chunk.stop_reason
            self._frame.choices = [choice]
            parts += event(self._frame)
        return parts

    def _calls(self, chunk: Chunk) -> bytes:
        """Of each call first its id and name, then its arguments."""
        events = []
        for piece in chunk.calls:
            deltas = []
            if piece.name is not None:
                function = FunctionCall("", piece.name)
                deltas.append(ToolCallDelta(piece.index, function, id=piece.id or "", type="function"))
            if piece.arguments:
                deltas.append(ToolCallDelta(piece.index, FunctionCall(piece.arguments)))
            for delta in deltas:
                choice = ChatChunkChoice(index=chunk.index, delta=DeltaBody(tool_calls=[delta]))
                self._frame.choices = [choice]
                events.append(event(self._frame))
        return b"".join(events)

    def _text(self, chunk: Chunk) -> bytes:
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


def _logprobs(entries: list[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs([logprob_body(entry) for entry in entries])


def logprob_body(entry: TokenLogprob) -> TokenLogprobBody:
    return TokenLogprobBody(
        entry.token.text,
        finite(entry.logprob),
        list(entry.token.bytes),
        [TopLogprobBody(token.text, finite(value), list(token.bytes)) for token, value in entry.top],
    )


def finite(logprob: float | None) -> float:
    return _LOWEST_LOGPROB if logprob is None else max(logprob, _LOWEST_LOGPROB)
