"""An upstream that costs next to nothing: it answers every question at once with the same few tokens.

    python benchmarks/scripted_upstream.py --port 9000 --tokens 16

So what stands before it is what is measured. OpenAI's /v1/chat/completions, streamed or whole, and /v1/models.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import uvloop

MODEL = "scripted"
_SENTENCE = "the morning is mild and clear , with a light wind from the west , and rain at night ."
_WORDS = _SENTENCE.split()


def _response(body: bytes, kind: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        kind.encode(),
        len(body),
        body,
    )


class Answers:
    """Ready-made."""

    def __init__(self, tokens: int) -> None:
        usage = {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": 12 + tokens}
        frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        words = [" " + _WORDS[number % len(_WORDS)] for number in range(tokens)]
        deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
        deltas += [({"content": word}, None) for word in words] + [({}, "stop")]
        events = [
            {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            for delta, reason in deltas
        ]
        events.append({**frame, "choices": [], "usage": usage})
        pieces = [b"data: %b\n\n" % json.dumps(event).encode() for event in events] + [b"data: [DONE]\n\n"]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.stream = (
            head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        )
        message = {"role": "assistant", "content": "".join(words)}
        whole = {
            **frame,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": usage,
        }
        self.whole = _response(json.dumps(whole).encode(), "application/json")
        models = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "nobody"}]}
        self.models = _response(json.dumps(models).encode(), "application/json")
        self.nothing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
        self.well = _response(b"{}", "application/json")


class Connection(asyncio.Protocol):
    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            _, found, rest = head.partition(b"content-length:")
            length = int(rest.partition(b"\r")[0]) if found else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._transport.write(self._answer(head, body))

    def _answer(self, head: bytes, body: bytes) -> bytes:
        answers = self._answers
        path = head.split(b" ", 2)[1]
        if path.endswith(b"/chat/completions"):
            streamed = b'"stream":true' in body or b'"stream": true' in body
            return answers.stream if streamed else answers.whole
        if path.endswith(b"/models"):
            return answers.models
        return answers.well if path == b"/health" else answers.nothing


async def main() -> None:
    parser = argparse.ArgumentParser(description="An upstream that costs next to nothing.")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--tokens", type=int, default=16)
    arguments = parser.parse_args()
    answers = Answers(arguments.tokens)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(answers), "127.0.0.1", arguments.port, backlog=1024
    )
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main()) if hasattr(uvloop, "run") else asyncio.run(main())
