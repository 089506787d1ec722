"""Answers → responses, whole or as a stream of typed events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from tokentrail.answer import Answer, CallPiece, ChatPrompt, Choice, Chunk
from tokentrail.protocol import TokentrailError
from tokentrail.server.generation import Question, in_order
from tokentrail.server.openai.responses import TokenLogprobBody
from tokentrail.server.openai.scores import logprob_body
from tokentrail.server.responses.bodies import (
    ArgumentsDelta,
    ArgumentsDone,
    Completed,
    Created,
    ErrorBody,
    Event,
    Failed,
    FunctionCallItem,
    Incomplete,
    IncompleteDetails,
    InProgress,
    InputTokensDetails,
    ItemAdded,
    ItemDone,
    MessageItem,
    OutputItem,
    OutputText,
    OutputTokensDetails,
    PartAdded,
    PartDone,
    ReasoningBody,
    ReasoningDelta,
    ReasoningDone,
    ReasoningItem,
    ReasoningText,
    ResponseBody,
    TextBody,
    TextDelta,
    TextDone,
    UsageBody,
)
from tokentrail.server.responses.questions import question_of
from tokentrail.server.responses.requests import ResponsesRequest, ToolChoice
from tokentrail.server.sse import MEDIA_TYPE, event

_PREFIXES = {MessageItem: "msg", ReasoningItem: "rs", FunctionCallItem: "fc"}


def usage_of(answer: Answer) -> UsageBody:
    usage = answer.usage
    return UsageBody(
        usage.prompt_tokens,
        InputTokensDetails(usage.cached_tokens),
        usage.completion_tokens,
        OutputTokensDetails(usage.reasoning_tokens),
        usage.prompt_tokens + usage.completion_tokens,
    )


INCOMPLETE: dict[str | None, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of answers that are not whole → OpenAI's words for them."""
Keep = Callable[[ResponseBody], None]
"""Keeps a response."""


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

    def whole(self, answer: Answer, choices: list[Choice]) -> ResponseBody:
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

    def frame(self, answer: Answer) -> ResponseBody:
        """A response that has no output yet."""
        body = self._body
        reasoning, text, choice = body.reasoning, body.text, body.tool_choice
        format = text.format if text is not None else None
        return ResponseBody(
            id=answer.id,
            created_at=answer.created,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            model=answer.model,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            reasoning=ReasoningBody(None, None)
            if reasoning is None
            else ReasoningBody(reasoning.effort, reasoning.summary or reasoning.generate_summary),
            store=self._keep is not None,
            temperature=body.temperature,
            text=TextBody(
                {"type": "text"} if format is None else format.model_dump(by_alias=True, exclude_none=True),
                text.verbosity if text is not None and text.verbosity else UNSET,
            ),
            tool_choice=choice.model_dump(exclude_none=True)
            if isinstance(choice, ToolChoice)
            else choice or "auto",
            tools=[
                {"parameters": None, "strict": None, **tool.model_dump(exclude_none=True)}
                for tool in body.tools or ()
            ],
            top_logprobs=body.top_logprobs,
            top_p=body.top_p,
            truncation=body.truncation or "disabled",
            user=body.user,
            metadata=body.metadata or {},
            seed=answer.seed,
            system_fingerprint=answer.fingerprint,
        )

    def ended(self, answer: Answer, items: list[OutputItem], reason: str | None) -> ResponseBody:
        """The response as it is at its end, which is kept."""
        response = self.frame(answer)
        response.output, response.usage = items, usage_of(answer)
        if reason in INCOMPLETE:
            response.status, response.completed_at = "incomplete", None
            response.incomplete_details = IncompleteDetails(INCOMPLETE[reason])
            if items:
                items[-1].status = "incomplete"
        else:
            response.status, response.completed_at = "completed", int(time.time())
        if self._keep is not None:
            self._keep(response)
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
        self._all_logprobs: list[TokenLogprobBody] = []
        self._call = -1
        self._shown = 0
        """Characters of text so far."""
        self._reason: str | None = None

    def start(self) -> bytes:
        response = self._dialect.frame(self._answer)
        return self._event(Created(response=response)) + self._event(InProgress(response=response))

    def chunk(self, chunk: Chunk) -> bytes:
        data = b""
        if chunk.logprobs:
            entries = [logprob_body(entry) for entry in chunk.logprobs]
            self._logprobs += entries
            self._all_logprobs += entries
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
        self._gather_logprobs()
        response = self._dialect.ended(self._answer, self._items, self._reason)
        kind = Incomplete if incomplete else Completed
        return data + self._event(kind(response=response))

    def failed(self, error: Exception) -> bytes:
        response = self._dialect.frame(self._answer)
        message = error.message if isinstance(error, TokentrailError) else "The server had an internal error."
        busy = isinstance(error, TokentrailError) and error.status == 429
        code = "rate_limit_exceeded" if busy else "server_error"
        # Closes nothing: what is open stays a piece.
        response.status, response.error = "failed", ErrorBody(code, message)
        response.output = self._items[:-1] if self._open else self._items
        response.usage = usage_of(self._answer)
        return self._event(Failed(response=response))

    # --- items ---

    def _of_kind(self, kind: type[MessageItem | ReasoningItem]) -> bytes:
        """Have an item of this kind open, with its one part."""
        if self._open and isinstance(self._items[-1], kind):
            return b""
        part: OutputText | ReasoningText = OutputText() if kind is MessageItem else ReasoningText()
        data = self._begin(kind(id=self._next_id(kind), status="in_progress", content=[]))
        return data + self._event(PartAdded(**self._place(), part=part))

    def _think(self, text: str) -> bytes:
        self._pieces.append(text)
        return self._event(ReasoningDelta(**self._place(), delta=text))

    def _write(self, text: str) -> bytes:
        return self._of_kind(MessageItem) + self._delta(text)

    def _delta(self, text: str) -> bytes:
        self._pieces.append(text)
        entries, self._logprobs = self._logprobs, []
        self._written += entries
        return self._event(TextDelta(**self._place(), delta=text, logprobs=entries))

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
        return data + self._event(ArgumentsDelta(**self._place(), delta=piece.arguments))

    def _begin(self, item: OutputItem) -> bytes:
        data = self._close("completed")
        self._items.append(item)
        self._open = True
        self._pieces = []
        self._written = []
        return data + self._event(ItemAdded(output_index=len(self._items) - 1, item=item))

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
            data += self._event(ArgumentsDone(**place, name=item.name, arguments=text))
        elif isinstance(item, ReasoningItem):
            item.content = [ReasoningText(text)]
            data += self._event(ReasoningDone(**place, text=text))
            data += self._event(PartDone(**place, part=item.content[0]))
        else:
            item.content = [OutputText(text, logprobs=self._written)]
            data += self._event(TextDone(**place, text=text, logprobs=self._written))
            data += self._event(PartDone(**place, part=item.content[0]))
        item.status = status
        self._open = False
        return data + self._event(ItemDone(output_index=place["output_index"], item=item))

    def _gather_logprobs(self) -> None:
        """The first text of a response has them all, as in one that is sent whole: those of calls behind it, too."""
        rest = self._all_logprobs
        for item in self._items:
            if isinstance(item, MessageItem):
                item.content[0].logprobs, rest = rest, []

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1].id, "output_index": len(self._items) - 1}

    def _next_id(self, kind: type[OutputItem]) -> str:
        return _id(self._answer, kind, len(self._items))

    def _event(self, data: Event) -> bytes:
        data.sequence_number = self._number
        self._number += 1
        kind: Any = data.__struct_config__.tag
        return b"event: %b\n" % kind.encode() + event(data)
