"""Chat and generate: request → `Question`, chunks → lines of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET

from tokentrail.answer import (
    Answer,
    CallPiece,
    ChatOptions,
    ChatPrompt,
    Choice,
    Chunk,
    InfillPrompt,
    ModelDetails,
    TextPrompt,
    TokenLogprob,
)
from tokentrail.protocol import InvalidRequest
from tokentrail.server.conversation import thinking_variables
from tokentrail.server.errors import ErrorBody, Shaped, error_json
from tokentrail.server.generation import Question
from tokentrail.server.ollama.requests import (
    ChatRequest,
    GenerateRequest,
    GenerationRequest,
    Message,
    Options,
)
from tokentrail.server.ollama.responses import CallBody, CallFunction, ErrorReply, MessageBody, Reply
from tokentrail.server.openai.scores import logprob_body
from tokentrail.server.openai.tools import functions
from tokentrail.server.openapi import LINES
from tokentrail.server.sse import one_line

_ROLES = ("system", "user", "assistant", "tool")
Body = TypeVar("Body", bound=GenerationRequest)


def shape(error: ErrorBody, status: int) -> Any:
    """`{"error": "what is wrong"}`; a full queue is "server busy"."""
    return Shaped(ErrorReply(error.message), 503 if error.code == "queue_full" else status)


class OllamaDialect(Generic[Body]):
    """What both ways of generating share."""

    prefix = "ollama-"

    def __init__(self, body: Body, model: str, details: ModelDetails) -> None:
        """`model`: the name without a tag that `body.model` stands for; `details`: what it is."""
        self.body = body
        self.model = model
        self.details = details

    @property
    def streaming(self) -> bool:
        return self.body.stream is not False

    def question(self) -> Question:
        raise NotImplementedError

    def ask(self, prompt: ChatPrompt | TextPrompt | InfillPrompt, chat: ChatOptions | None) -> Question:
        options = self.body.options or Options()
        limit = options.num_predict
        return Question(
            prompts=[prompt],
            sampling=options.sampling(logprobs=self.body.num_logprobs, structured_outputs=self.body.form()),
            unset=options.unset(),
            # Cut where the context ends, rather than refused.
            default_max_tokens=limit if limit is not None and limit > 0 else None,
            chat=chat,
            names=options.names(),
        )

    def thinking(self) -> dict[str, Any]:
        """What templates know of thinking, as their variables."""
        think = self.body.think
        if think not in (None, False) and not self.details.thinks:
            raise InvalidRequest(f"'{self.body.model[:200]}' does not support thinking", param="think")
        effort = think if isinstance(think, str) else None
        return thinking_variables(effort, None if think is None else think is not False)

    def said(self, text: str, thoughts: str, calls: Sequence[CallBody]) -> dict[str, Any]:
        """The fields of a reply that hold what was said."""
        raise NotImplementedError

    def reply(
        self,
        text: str,
        thoughts: str = "",
        calls: Sequence[CallBody] = (),
        logprobs: Sequence[TokenLogprob] | None = None,
    ) -> Reply:
        """One line of a stream, or the whole answer without its end."""
        return Reply(
            model=self.body.model,
            created_at=datetime.now(timezone.utc),
            logprobs=[logprob_body(entry) for entry in logprobs] if logprobs else UNSET,
            done=False,
            **self.said(text, thoughts, calls),
        )

    def whole(self, answer: Answer, choices: list[Choice]) -> Reply:
        choice = choices[0]
        calls = [call for piece in choice.calls if (call := call_body(piece)) is not None]
        reply = self.reply(choice.text, choice.reasoning, calls, choice.logprobs)
        return ended(reply, answer, choice.finish_reason)

    def stream(self, answer: Answer) -> OllamaStream:
        return OllamaStream(self, answer)


class OllamaStream:
    """Chunks → lines: text and thoughts as they come, calls when they are whole, in the end why and how fast."""

    media_type = LINES

    def __init__(self, dialect: OllamaDialect[Any], answer: Answer) -> None:
        self._dialect = dialect
        self._answer = answer
        self._call: CallPiece | None = None
        """Not whole yet."""
        self._finish_reason: str | None = None

    def start(self) -> bytes:
        return b""

    def chunk(self, chunk: Chunk) -> bytes:
        self._finish_reason = chunk.finish_reason
        calls = self._whole_calls(chunk)
        if not (chunk.text or chunk.reasoning or calls or chunk.logprobs):
            return b""
        return _line(self._dialect.reply(chunk.text, chunk.reasoning, calls, chunk.logprobs))

    def _whole_calls(self, chunk: Chunk) -> list[CallBody]:
        calls = []
        for piece in chunk.calls:
            if piece.name is None:
                assert self._call is not None
                self._call.arguments += piece.arguments
                continue
            calls.append(self._call)
            self._call = CallPiece(piece.index, piece.arguments, piece.id, piece.name)
        if chunk.finish_reason is not None:
            calls.append(self._call)
            self._call = None
        return [body for call in calls if call is not None and (body := call_body(call)) is not None]

    def end(self) -> bytes:
        return _line(ended(self._dialect.reply(""), self._answer, self._finish_reason))

    def failed(self, error: Exception) -> bytes:
        return one_line(error_json(error, shape)) + b"\n"


class ChatDialect(OllamaDialect[ChatRequest]):
    def question(self) -> Question:
        body = self.body
        messages = [message_of(message, at) for at, message in enumerate(body.messages or ())]
        tools = functions(body.tools or ())
        # An answer that has been begun is gone on with.
        begun = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
        begun = begun and bool(messages[-1]["content"])
        prompt = ChatPrompt(
            messages=messages,
            tools=tools,
            add_generation_prompt=not begun,
            continue_final_message=begun,
            template_kwargs=self.thinking(),
        )
        return self.ask(prompt, ChatOptions(tools=tools))

    def said(self, text: str, thoughts: str, calls: Sequence[CallBody]) -> dict[str, Any]:
        message = MessageBody(content=text, thinking=thoughts or UNSET, tool_calls=list(calls) or UNSET)
        return {"message": message}


class GenerateDialect(OllamaDialect[GenerateRequest]):
    def question(self) -> Question:
        body = self.body
        if body.suffix:
            if not self.details.infills:
                raise InvalidRequest(f"'{body.model[:200]}' does not support insert", param="suffix")
            if body.system:
                raise InvalidRequest(
                    "system is not used with suffix: write it into the prompt.", param="system"
                )
            return self.ask(InfillPrompt(body.prompt or "", body.suffix), None)
        if body.raw:
            if body.system:
                raise InvalidRequest("system is not used with raw: write it into the prompt.", param="system")
            return self.ask(TextPrompt(body.prompt or ""), None)
        if self.details.chat_template is None:
            return self.ask(TextPrompt("\n\n".join(filter(None, (body.system, body.prompt)))), None)
        messages = [{"role": "system", "content": body.system}] if body.system else []
        messages.append({"role": "user", "content": body.prompt or ""})
        return self.ask(ChatPrompt(messages=messages, template_kwargs=self.thinking()), ChatOptions())

    def said(self, text: str, thoughts: str, calls: Sequence[CallBody]) -> dict[str, Any]:
        return {"response": text, "thinking": thoughts or UNSET}


def loaded(dialect: OllamaDialect[Any]) -> Reply:
    """The reply to who asks nothing: the model is there."""
    reply: Reply = dialect.reply("")
    reply.done, reply.done_reason = True, "load"
    return reply


def ended(reply: Reply, answer: Answer, finish_reason: str | None) -> Reply:
    """With why the answer ended, its counts and durations."""
    now = time.time()
    timing = answer.timing
    first = timing.first_token or now
    last = timing.last_token or now
    reply.done = True
    reply.done_reason = "length" if finish_reason == "length" else "stop"
    reply.total_duration = _nanoseconds(now - timing.received)
    reply.load_duration = 0
    reply.prompt_eval_count = answer.usage.prompt_tokens
    reply.prompt_eval_duration = _nanoseconds(first - timing.received)
    reply.eval_count = answer.usage.completion_tokens
    reply.eval_duration = _nanoseconds(last - first)
    return reply


def _nanoseconds(seconds: float) -> int:
    """Never 0: clients divide by it."""
    return max(1, int(seconds * 1e9))


def call_body(piece: CallPiece) -> CallBody | None:
    """A whole call; None for one that was cut off, whose arguments are no object."""
    try:
        arguments = json.loads(piece.arguments or "{}")
    except ValueError:
        return None
    if not isinstance(arguments, dict):
        return None
    return CallBody(piece.id or "", CallFunction(piece.index, piece.name or "", arguments))


def message_of(message: Message, at: int) -> dict[str, Any]:
    """As templates get it, which is as OpenAI has it."""
    where = f"messages[{at}]"
    if message.role not in _ROLES:
        raise InvalidRequest(
            f"{where}.role must be one of {', '.join(_ROLES)}, not {message.role[:40]!r}.",
            param=f"{where}.role",
        )
    if message.images:
        raise InvalidRequest(
            f"{where}.images is not supported: the model reads text only.", param=f"{where}.images"
        )
    fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.thinking:
        fields["reasoning_content"] = message.thinking
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id or f"call_{at}_{number}",
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": json.dumps(call.function.arguments or {}),
                },
            }
            for number, call in enumerate(message.tool_calls)
        ]
    if message.tool_name:
        fields["name"] = message.tool_name
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _line(reply: Reply) -> bytes:
    return one_line(msgspec.json.encode(reply)) + b"\n"
