"""Answers → responses, whole or as a stream of typed events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tokentrail.answer import Answer, CallPiece, ChatPrompt, Choice, Chunk
from tokentrail.protocol import TokentrailError
from tokentrail.server.generation import Question, in_order
from tokentrail.server.openai.responses import TokenLogprobBody
from tokentrail.server.openai.scores import logprob_body
from tokentrail.server.responses.questions import question_of
from tokentrail.server.responses.requests import ResponsesRequest, ToolChoice
from tokentrail.server.sse import MEDIA_TYPE, event

# --- on the wire -----------------------------------------------------------------------------------


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[Any] = []
    logprobs: list[TokenLogprobBody] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str = ""


class MessageItem(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    id: str
    role: str = "assistant"
    status: str
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning", kw_only=True):
    id: str
    status: str
    summary: list[Any] = []
    """Always empty: thoughts are shown as they are."""
    content: list[ReasoningText]


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call", kw_only=True):
    id: str
    call_id: str
    name: str
    arguments: str
    status: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem
_PREFIXES = {MessageItem: "msg", ReasoningItem: "rs", FunctionCallItem: "fc"}


def usage_of(answer: Answer) -> dict[str, Any]:
    usage = answer.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


INCOMPLETE: dict[str | None, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of answers that are not whole → OpenAI's words for them."""
Keep = Callable[[dict[str, Any], Sequence[OutputItem]], None]
"""Keeps a response, and its items, which it holds."""


class ResponsesDialect:
    """See `generation.Dialect`."""

    prefix = "resp_"

    def __init__(
        self, body: ResponsesRequest, prompt: Callable[[], ChatPrompt], keep: Keep | None = None
    ) -> None:
        """`prompt` may raise `InvalidRequest`. `keep`: where finished responses go; None: nowhere."""
        self._body = body
        self._prompt = prompt
        self._keep = keep

    @property
    def model(self) -> str:
        return self._body.model

    @property
    def streaming(self) -> bool:
        return bool(self._body.stream)

    def question(self) -> Question:
        return question_of(self._body, self._prompt())

    def whole(self, answer: Answer, choices: list[Choice]) -> dict[str, Any]:
        choice = choices[0]
        items: list[OutputItem] = []
        if choice.reasoning:
            content = [ReasoningText(choice.reasoning)]
            items.append(ReasoningItem(id=_id(answer, ReasoningItem, 0), status="completed", content=content))
        logprobs = [logprob_body(entry) for entry in choice.logprobs or ()]
        parts = list(in_order(choice.text, choice.calls))
        if not parts and not items:
            parts = [""]
        for part in parts:
            if isinstance(part, str):
                id = _id(answer, MessageItem, len(items))
                text = OutputText(part, logprobs=logprobs)
                items.append(MessageItem(id=id, status="completed", content=[text]))
                logprobs = []
            else:
                items.append(
                    FunctionCallItem(
                        id=_id(answer, FunctionCallItem, len(items)),
                        call_id=part.id or "",
                        name=part.name or "",
                        arguments=part.arguments,
                        status="completed",
                    )
                )
        return self.ended(answer, items, choice.finish_reason)

    def stream(self, answer: Answer) -> ResponseStream:
        return ResponseStream(answer, self)

    def frame(self, answer: Answer) -> dict[str, Any]:
        """A response that has no output yet."""
        body = self._body
        reasoning, text, choice = body.reasoning, body.text, body.tool_choice
        format = text.format if text is not None else None
        return {
            "id": answer.id,
            "object": "response",
            "created_at": answer.created,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": answer.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {
                "effort": reasoning and reasoning.effort,
                "summary": reasoning and (reasoning.summary or reasoning.generate_summary),
            },
            "store": self._keep is not None,
            "temperature": body.temperature,
            "text": {
                "format": {"type": "text"}
                if format is None
                else format.model_dump(by_alias=True, exclude_none=True),
                **({"verbosity": text.verbosity} if text is not None and text.verbosity else {}),
            },
            "tool_choice": choice.model_dump(exclude_none=True)
            if isinstance(choice, ToolChoice)
            else choice or "auto",
            "tools": [
                {"parameters": None, "strict": None, **tool.model_dump(exclude_none=True)}
                for tool in body.tools or ()
            ],
            "top_logprobs": body.top_logprobs,
            "top_p": body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": body.user,
            "metadata": body.metadata or {},
            # Ours: the seed used, given or drawn. Sent again, it brings the same answer.
            "seed": answer.seed,
            "system_fingerprint": answer.fingerprint,
        }

    def ended(self, answer: Answer, items: Sequence[OutputItem], reason: str | None) -> dict[str, Any]:
        """The response as it is at its end, which is kept."""
        response = self.frame(answer)
        response |= {"status": "completed", "completed_at": int(time.time())}
        if reason in INCOMPLETE:
            response |= {
                "status": "incomplete",
                "completed_at": None,
                "incomplete_details": {"reason": INCOMPLETE[reason]},
            }
            if items:
                items[-1].status = "incomplete"
        response |= {"output": items, "usage": usage_of(answer)}
        if self._keep is not None:
            self._keep(response, items)
        return response


def _id(answer: Answer, kind: type[OutputItem], index: int) -> str:
    return f"{_PREFIXES[kind]}_{answer.id.partition('_')[2]}{index:04x}"


# --- streamed --------------------------------------------------------------------------------------


class ResponseStream:
    """Chunks → events: items one after the other, each added, written and done."""

    media_type = MEDIA_TYPE

    def __init__(self, answer: Answer, dialect: ResponsesDialect) -> None:
        self._answer = answer
        self._dialect = dialect
        self._number = 0
        """Of the next event."""
        self._items: list[OutputItem] = []
        """The last of which may be open."""
        self._open = False
        self._pieces: list[str] = []
        """Of the open item's text."""
        self._logprobs: list[TokenLogprobBody] = []
        """Of tokens whose text is held back."""
        self._written: list[TokenLogprobBody] = []
        """Of the open item's text."""
        self._call = -1
        self._shown = 0
        """Characters of text so far."""
        self._reason: str | None = None

    def start(self) -> bytes:
        response = self._dialect.frame(self._answer)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def chunk(self, chunk: Chunk) -> bytes:
        data = b""
        if chunk.logprobs:
            self._logprobs += [logprob_body(entry) for entry in chunk.logprobs]
        if chunk.reasoning:
            data += self._of_kind(ReasoningItem) + self._think(chunk.reasoning)
        for part in in_order(chunk.text, chunk.calls, self._shown):
            data += self._write(part) if isinstance(part, str) else self._piece(part)
        self._shown += len(chunk.text)
        if chunk.finish_reason is not None:
            self._reason = chunk.finish_reason
        return data

    def end(self) -> bytes:
        data = b"" if self._items else self._of_kind(MessageItem)
        incomplete = self._reason in INCOMPLETE
        data += self._close("incomplete" if incomplete else "completed")
        response = self._dialect.ended(self._answer, self._items, self._reason)
        return data + self._event(
            "response.incomplete" if incomplete else "response.completed", response=response
        )

    def failed(self, error: Exception) -> bytes:
        response = self._dialect.frame(self._answer)
        message = error.message if isinstance(error, TokentrailError) else "The server had an internal error."
        busy = isinstance(error, TokentrailError) and error.status == 429
        code = "rate_limit_exceeded" if busy else "server_error"
        # Closes nothing: what is open stays a piece.
        response |= {
            "status": "failed",
            "error": {"code": code, "message": message},
            "output": self._items[:-1] if self._open else self._items,
            "usage": usage_of(self._answer),
        }
        return self._event("response.failed", response=response)

    # --- items ---

    def _of_kind(self, kind: type[MessageItem | ReasoningItem]) -> bytes:
        """Have an item of this kind open, with its one part."""
        if self._open and isinstance(self._items[-1], kind):
            return b""
        part: OutputText | ReasoningText = OutputText() if kind is MessageItem else ReasoningText()
        data = self._begin(kind(id=self._next_id(kind), status="in_progress", content=[]))
        return data + self._event("response.content_part.added", **self._place(), content_index=0, part=part)

    def _think(self, text: str) -> bytes:
        self._pieces.append(text)
        return self._event("response.reasoning_text.delta", **self._place(), content_index=0, delta=text)

    def _write(self, text: str) -> bytes:
        return self._of_kind(MessageItem) + self._delta(text)

    def _delta(self, text: str) -> bytes:
        self._pieces.append(text)
        entries, self._logprobs = self._logprobs, []
        self._written += entries
        return self._event(
            "response.output_text.delta", **self._place(), content_index=0, delta=text, logprobs=entries
        )

    def _piece(self, piece: CallPiece) -> bytes:
        data = b""
        if piece.index != self._call:
            self._call = piece.index
            item = FunctionCallItem(
                id=self._next_id(FunctionCallItem),
                call_id=piece.id or "",
                name=piece.name or "",
                arguments="",
                status="in_progress",
            )
            data = self._begin(item)
        if not piece.arguments:
            return data
        self._pieces.append(piece.arguments)
        return data + self._event(
            "response.function_call_arguments.delta", **self._place(), delta=piece.arguments
        )

    def _begin(self, item: OutputItem) -> bytes:
        data = self._close("completed")
        self._items.append(item)
        self._open = True
        self._pieces = []
        self._written = []
        place = self._place()
        return data + self._event("response.output_item.added", output_index=place["output_index"], item=item)

    def _close(self, status: str) -> bytes:
        if not self._open:
            return b""
        item, place = self._items[-1], self._place()
        data = b""
        if isinstance(item, MessageItem) and self._logprobs:
            data += self._delta("")
        text = "".join(self._pieces)
        if isinstance(item, FunctionCallItem):
            item.arguments = text
            data += self._event(
                "response.function_call_arguments.done", **place, name=item.name, arguments=text
            )
        elif isinstance(item, ReasoningItem):
            item.content = [ReasoningText(text)]
            data += self._event("response.reasoning_text.done", **place, content_index=0, text=text)
            data += self._event("response.content_part.done", **place, content_index=0, part=item.content[0])
        else:
            item.content = [OutputText(text, logprobs=self._written)]
            data += self._event(
                "response.output_text.done", **place, content_index=0, text=text, logprobs=self._written
            )
            data += self._event("response.content_part.done", **place, content_index=0, part=item.content[0])
        item.status = status
        self._open = False
        return data + self._event("response.output_item.done", output_index=place["output_index"], item=item)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1].id, "output_index": len(self._items) - 1}

    def _next_id(self, kind: type[OutputItem]) -> str:
        return _id(self._answer, kind, len(self._items))

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        return b"event: %b\n" % kind.encode() + event({"type": kind, "sequence_number": number, **fields})
