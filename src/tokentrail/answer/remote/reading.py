"""What an upstream answers → `Chunk`s."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from tokentrail.answer.remote.wire import (
    Alternative,
    Call,
    Choice,
    Entry,
    Event,
    Logprobs,
    Message,
    Part,
    PromptLogprobs,
    PromptPlace,
)
from tokentrail.answer.remote.wire import Usage as ToldUsage
from tokentrail.answer.types import CallPiece, Chunk, TokenLogprob, TokenText, Usage

_REASONS = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_FAILED = ("abort", "error", "cancelled")
_BYTES = re.compile(r"\\x([0-9a-fA-F]{2})")
_TOKEN_ID = "token_id:"


class Unreadable(Exception):
    """An answer that contradicts itself or what was asked. The message says how."""


class GaveUp(Exception):
    """The upstream ended a choice without having finished it."""


class _Choice:
    """What is known of one choice so far."""

    __slots__ = ("calls", "finished", "ids", "length", "started", "tokens")

    def __init__(self) -> None:
        self.length = 0
        """Characters of its text."""
        self.calls: dict[int, int] = {}
        """The upstream's number of a call → ours."""
        self.ids: list[str] = []
        """Of its calls."""
        self.tokens = 0
        """As far as they can be counted: at least one for each piece."""
        self.finished: str | None = None
        self.started = False


class AnswerReader:
    """Turns one answer's events into chunks, and keeps count."""

    def __init__(
        self,
        num_choices: int,
        usage: Usage,
        prompt_token_ids: list[list[int]],
        *,
        logprobs: bool = False,
        prompt_logprobs: int = 0,
    ) -> None:
        """`usage` and `prompt_token_ids` are filled in. `logprobs`: they were asked for; `prompt_logprobs`: so many."""
        self._choices = [_Choice() for _ in range(num_choices)]
        self._usage = usage
        self._prompt_token_ids = prompt_token_ids
        self._logprobs = logprobs
        self._prompt_logprobs = prompt_logprobs
        self.new_tokens = 0
        """Of the latest event."""
        self.unfinished = num_choices
        self.told = False
        """The upstream has counted the tokens."""
        self.fingerprint: str | None = None

    def finish_reasons(self) -> list[str | None]:
        return [choice.finished for choice in self._choices]

    def read(self, event: Event) -> list[Chunk]:
        """The chunks of an event, or of a whole answer, mostly one. Raises `Unreadable` or `GaveUp`."""
        if event.system_fingerprint:
            self.fingerprint = event.system_fingerprint
        if event.prompt_token_ids is not None and len(self._prompt_token_ids) == 1:
            self._prompt_token_ids[0][:] = event.prompt_token_ids
        chunks = []
        self.new_tokens = 0
        for choice in event.choices or ():
            if (chunk := self._choice(choice, event.prompt_logprobs)) is not None:
                chunks.append(chunk)
        if event.usage is not None:
            self._count(event.usage)
        return chunks

    def _choice(self, choice: Choice, scored: PromptLogprobs | None) -> Chunk | None:
        if not 0 <= choice.index < len(self._choices):
            raise Unreadable(f"a choice number {choice.index} of {len(self._choices)}")
        state = self._choices[choice.index]
        if state.finished is not None:
            return None
        chunk = Chunk(choice.index)
        message = choice.delta or choice.message
        if message is not None:
            self._message(message, chunk, state)
        elif choice.text is not None:
            chunk.text = choice.text
        if choice.token_ids:
            chunk.token_ids = choice.token_ids
        if choice.prompt_token_ids is not None:
            each = len(self._choices) // len(self._prompt_token_ids)
            self._prompt_token_ids[choice.index // each][:] = choice.prompt_token_ids
        if self._logprobs:
            found = choice.logprobs
            chunk.logprobs = [] if found is None else _logprobs(found, chunk.token_ids, state.length)
        if not state.started:
            if (scored := choice.prompt_logprobs or scored) is not None:
                chunk.prompt_logprobs = [_prompt_place(place, self._prompt_logprobs) for place in scored]
            state.started = True
        state.length += len(chunk.text)
        tokens = len(chunk.token_ids) or len(chunk.logprobs or ())
        if not tokens and (chunk.text or chunk.reasoning or chunk.calls):
            tokens = 1
        if tokens:
            state.tokens += tokens
            self.new_tokens += tokens
            if not self.told:
                self._usage.completion_tokens += tokens
                self._usage.reasoning_tokens += tokens if chunk.reasoning else 0
        if choice.finish_reason:
            self._finish(choice, chunk, state)
        elif not (tokens or chunk.prompt_logprobs):
            return None  # its role, say
        return chunk

    def _finish(self, choice: Choice, chunk: Chunk, state: _Choice) -> None:
        reason = choice.finish_reason or ""
        if reason in _FAILED:
            raise GaveUp
        reason = _REASONS.get(reason, "stop")
        if reason == "stop" and state.ids:
            reason = "tool_calls"
        chunk.finish_reason = state.finished = reason
        chunk.stop_reason = choice.stop_reason
        self.unfinished -= 1

    def _message(self, message: Message, chunk: Chunk, state: _Choice) -> None:
        content = message.content
        if content.__class__ is str:
            chunk.text = content
        elif content is not None:
            for part in content:
                self._part(part, chunk)  # type: ignore[arg-type]
        if thoughts := message.reasoning_content or message.reasoning:
            chunk.reasoning += thoughts
        if message.refusal:
            chunk.text += message.refusal
        if message.tool_calls:
            chunk.calls = [
                piece
                for at, call in enumerate(message.tool_calls)
                for piece in self._call(call, at, state, state.length + len(chunk.text))
            ]

    @staticmethod
    def _part(part: Part, chunk: Chunk) -> None:
        if part.type == "thinking":
            thoughts = part.thinking
            if isinstance(thoughts, list):
                thoughts = "".join(one.text or "" for one in thoughts)
            chunk.reasoning += thoughts or ""
        else:
            chunk.text += part.text or ""

    @staticmethod
    def _call(call: Call, at: int, state: _Choice, before: int) -> list[CallPiece]:
        function = call.function
        name = None if function is None else function.name
        given = None if function is None else function.arguments
        arguments = given if isinstance(given, str) else ""
        if isinstance(given, dict):
            import json

            arguments = json.dumps(given, ensure_ascii=False)
        theirs = at if call.index is None else call.index
        ours = state.calls.get(theirs)
        # Some number all calls alike, and tell them apart by their ids.
        new = ours is None or (bool(name) and bool(call.id) and call.id != state.ids[ours])
        if not new:
            assert ours is not None
            return [CallPiece(ours, arguments)] if arguments else []
        if not name:
            raise Unreadable("a piece of a tool call that has not begun")
        ours = state.calls[theirs] = len(state.ids)
        id = call.id or f"call_{secrets.token_hex(12)}"
        state.ids.append(id)
        pieces = [CallPiece(ours, "", id=id, name=name, before=before)]
        return [*pieces, CallPiece(ours, arguments)] if arguments else pieces

    def _count(self, told: ToldUsage) -> None:
        """The upstream's own numbers go before ours."""
        usage = self._usage
        if told.prompt_tokens is not None:
            usage.prompt_tokens = told.prompt_tokens
        if told.completion_tokens is not None:
            usage.completion_tokens = told.completion_tokens
            self.told = True
        if (prompt := told.prompt_tokens_details) is not None and prompt.cached_tokens is not None:
            usage.cached_tokens = prompt.cached_tokens
        details = told.completion_tokens_details
        if details is not None and details.reasoning_tokens is not None:
            usage.reasoning_tokens = details.reasoning_tokens


# --- log-probabilities -----------------------------------------------------------------------------


def _logprobs(found: Logprobs, ids: Sequence[int], offset: int) -> list[TokenLogprob]:
    """`offset`: characters of the choice's text before these tokens."""
    if found.content is not None:
        entries = []
        known = ids if len(ids) == len(found.content) else ()
        for at, entry in enumerate(found.content):
            token = _token(entry, known[at] if known else None)
            top = [
                (_token(other), other.logprob)
                for other in entry.top_logprobs or ()
                if other.logprob is not None
            ]
            entries.append(TokenLogprob(token, entry.logprob, top, offset))
            offset += len(token.text)
        return entries
    if found.tokens is None:
        return []
    entries = []
    count = len(found.tokens)
    logprobs = found.token_logprobs or [None] * count
    tops = found.top_logprobs or [None] * count
    offsets = found.text_offset or []
    if len(logprobs) != count or len(tops) != count:
        raise Unreadable("log-probabilities of other tokens than it names")
    known = ids if len(ids) == count else ()
    for at, text in enumerate(found.tokens):
        token = _named(text, known[at] if known else None)
        top = [(_named(name), value) for name, value in (tops[at] or {}).items()]
        at_offset = offsets[at] if at < len(offsets) else offset
        entries.append(TokenLogprob(token, logprobs[at], top, at_offset))
        offset += len(token.text)
    return entries


def _token(entry: Entry | Alternative, id: int | None = None) -> TokenText:
    text = entry.token
    data = text.encode() if entry.bytes is None else _bytes(entry.bytes)
    if text.startswith(_TOKEN_ID) and text[len(_TOKEN_ID) :].isdecimal():
        id, text = int(text[len(_TOKEN_ID) :]), data.decode("utf-8", "replace")
    return TokenText(-1 if id is None else id, text, data)


def _bytes(values: list[int]) -> bytes:
    try:
        return bytes(values)
    except ValueError:
        raise Unreadable("bytes of a token that are none") from None


def _named(name: str, id: int | None = None) -> TokenText:
    """Of completions: a text, `bytes:\\xe4` of a part of a character, or `token_id:7`."""
    if name.startswith(_TOKEN_ID) and name[len(_TOKEN_ID) :].isdecimal():
        return TokenText(int(name[len(_TOKEN_ID) :]) if id is None else id, "", b"")
    if name.startswith("bytes:\\x"):
        data = bytes(int(pair, 16) for pair in _BYTES.findall(name))
        return TokenText(-1 if id is None else id, data.decode("utf-8", "replace"), data)
    return TokenText(-1 if id is None else id, name, name.encode())


def _prompt_place(place: dict[str, PromptPlace] | None, count: int) -> TokenLogprob:
    """vLLM's shape: the token that stood there first, then the likeliest by their rank, itself perhaps among them."""

    def token(id: str, one: PromptPlace) -> TokenText:
        text = one.decoded_token or ""
        if not id.lstrip("-").isdecimal():
            raise Unreadable("log-probabilities of a prompt without ids")
        return TokenText(int(id), text, text.encode())

    if not place:
        return TokenLogprob(TokenText(-1, "", b""), None, [], 0)
    here = next(iter(place.items()))
    ranked = sorted((one.rank, id) for id, one in place.items() if one.rank is not None)
    top = [(token(id, place[id]), place[id].logprob) for rank, id in ranked if rank <= count]
    return TokenLogprob(token(*here), here[1].logprob, top, 0)
