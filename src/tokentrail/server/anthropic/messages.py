"""Answers → messages, whole or as a stream of events."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from pydantic_core import from_json

from tokentrail.answer import Answer, CallPiece, Choice, Chunk
from tokentrail.server.anthropic.errors import anthropic_shape
from tokentrail.server.anthropic.prompts import question_of
from tokentrail.server.anthropic.requests import MessagesRequest
from tokentrail.server.anthropic.responses import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Delta,
    Event,
    InputDelta,
    MessageBody,
    MessageDelta,
    MessageStart,
    MessageStop,
    OutputTokensDetails,
    Ping,
    SignatureDelta,
    Stop,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    UsageBody,
)
from tokentrail.server.errors import error_json
from tokentrail.server.generation import Question, in_order
from tokentrail.server.sse import MEDIA_TYPE, TextEvents, event, raw_event

# --- whole -----------------------------------------------------------------------------------------


def usage_of(answer: Answer) -> UsageBody:
    usage = answer.usage
    return UsageBody(
        usage.prompt_tokens - usage.cached_tokens,
        usage.completion_tokens,
        # The prefix cache keeps what it can by itself: nothing is written to it at a price.
        0,
        usage.cached_tokens,
        OutputTokensDetails(usage.reasoning_tokens),
    )


def signature_of(thoughts: str) -> str:
    """A checksum of thoughts: clients send it back with them, and want one."""
    return base64.b64encode(hashlib.sha256(thoughts.encode()).digest()).decode()


def input_of(arguments: str) -> dict[str, Any]:
    """A call's arguments as an object. As far as it goes where the answer was cut off: so the client reads streams."""
    try:
        value = from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        value = None
    # What is no object is shown as it is: a call of no arguments would be another call.
    return value if isinstance(value, dict) else {"arguments": arguments}


def stop_of(
    finish_reason: str | None, stop_reason: str | int | None, *, all_used: bool
) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence). `all_used`: the answer has max_tokens."""
    if finish_reason == "tool_calls":
        return "tool_use", None
    if finish_reason == "content_filter":
        return "refusal", None
    if finish_reason == "length":
        return "max_tokens" if all_used else "model_context_window_exceeded", None
    if isinstance(stop_reason, str):
        return "stop_sequence", stop_reason
    return "end_turn", None


class MessagesDialect:
    """See `generation.Dialect`."""

    prefix = "msg_"

    def __init__(self, body: MessagesRequest, request_id: str) -> None:
        """`request_id`: the client's own; otherwise the answer's id is its request's."""
        self._body = body
        self._request_id = request_id
        thinking = body.thinking
        self._show_thoughts = thinking is None or thinking.display != "omitted"

    @property
    def model(self) -> str:
        return self._body.model

    @property
    def streaming(self) -> bool:
        return bool(self._body.stream)

    def question(self) -> Question:
        return question_of(self._body)

    def whole(self, answer: Answer, choices: list[Choice]) -> MessageBody:
        choice = choices[0]
        content: list[Block] = []
        if choice.reasoning:
            shown = choice.reasoning if self._show_thoughts else ""
            content.append(ThinkingBlock(shown, signature_of(choice.reasoning)))
        for part in in_order(choice.text, choice.calls):
            if isinstance(part, str):
                content.append(TextBlock(part))
            else:
                content.append(ToolUseBlock(part.id or "", part.name or "", input_of(part.arguments)))
        all_used = answer.usage.completion_tokens >= self._body.max_tokens
        stop_reason, stop_sequence = stop_of(choice.finish_reason, choice.stop_reason, all_used=all_used)
        return MessageBody(
            id=answer.id,
            model=answer.model,
            content=content,
            stop_reason=stop_reason,
            stop_sequence=stop_sequence,
            usage=usage_of(answer),
            seed=answer.seed,
            system_fingerprint=answer.fingerprint,
        )

    def stream(self, answer: Answer) -> MessageStream:
        request_id = self._request_id or answer.id
        return MessageStream(answer, self._body.max_tokens, request_id, show_thoughts=self._show_thoughts)


# --- streamed --------------------------------------------------------------------------------------


class MessageStream:
    """Chunks → events: blocks one after the other, each begun, added to and ended."""

    media_type = MEDIA_TYPE

    def __init__(self, answer: Answer, max_tokens: int, request_id: str, *, show_thoughts: bool) -> None:
        self._answer = answer
        self._max_tokens = max_tokens
        self._request_id = request_id
        self._show_thoughts = show_thoughts
        self._index = -1
        """Of the newest block."""
        self._open = ""
        """Its type, while it is not ended."""
        self._thoughts: list[str] = []
        self._text: TextEvents | None = None
        self._call = -1
        self._shown = 0
        """Characters of text so far."""
        self._finish: tuple[str | None, str | int | None] = (None, None)

    def start(self) -> bytes:
        answer = self._answer
        usage = usage_of(answer)
        # What is in `answer` of the first chunks depends on when this is asked.
        usage.output_tokens, usage.output_tokens_details = 0, OutputTokensDetails(0)
        message = MessageBody(
            id=answer.id,
            model=answer.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=usage,
            seed=answer.seed,
            system_fingerprint=answer.fingerprint,
        )
        return _named(MessageStart(message)) + _named(Ping())

    def chunk(self, chunk: Chunk) -> bytes:
        data = b""
        if chunk.reasoning:
            data += self._think(chunk.reasoning)
        if not chunk.calls:
            if chunk.text:
                data += self._write(chunk.text)
        else:
            for part in in_order(chunk.text, chunk.calls, self._shown):
                data += self._write(part) if isinstance(part, str) else self._piece(part)
        self._shown += len(chunk.text)
        if chunk.finish_reason is not None:
            self._finish = (chunk.finish_reason, chunk.stop_reason)
        return data

    def end(self) -> bytes:
        data = self._close()
        all_used = self._answer.usage.completion_tokens >= self._max_tokens
        stop_reason, stop_sequence = stop_of(*self._finish, all_used=all_used)
        data += _named(MessageDelta(Stop(stop_reason, stop_sequence), usage_of(self._answer)))
        return data + _named(MessageStop())

    def failed(self, error: Exception) -> bytes:
        return b"event: error\n" + raw_event(error_json(error, anthropic_shape, self._request_id))

    def _think(self, text: str) -> bytes:
        data = self._begin("thinking", ThinkingBlock()) if self._open != "thinking" else b""
        self._thoughts.append(text)
        if not self._show_thoughts:
            return data
        return data + self._delta(ThinkingDelta(text))

    def _write(self, text: str) -> bytes:
        data = b""
        if self._open != "text":
            data = self._begin("text", TextBlock())
            self._text = TextEvents(BlockDelta(self._index, TextDelta("")), "text")
        assert self._text is not None
        return b"%bevent: content_block_delta\n%b" % (data, self._text.event(text))

    def _piece(self, piece: CallPiece) -> bytes:
        data = b""
        if piece.index != self._call:
            self._call = piece.index
            data = self._begin("tool_use", ToolUseBlock(piece.id or "", piece.name or "", {}))
        if not piece.arguments:
            return data
        return data + self._delta(InputDelta(piece.arguments))

    def _begin(self, kind: str, block: Block) -> bytes:
        data = self._close()
        self._index += 1
        self._open = kind
        return data + _named(BlockStart(self._index, block))

    def _close(self) -> bytes:
        if not self._open:
            return b""
        data = b""
        if self._open == "thinking":
            signature = signature_of("".join(self._thoughts))
            data = self._delta(SignatureDelta(signature))
            self._thoughts.clear()
        self._open = ""
        return data + _named(BlockStop(self._index))

    def _delta(self, delta: Delta) -> bytes:
        return _named(BlockDelta(self._index, delta))


def _named(data: Event) -> bytes:
    kind: Any = data.__struct_config__.tag
    return b"event: %b\n" % kind.encode() + event(data)
