"""What an upstream's bytes are taken for: responses (http1) and their events (sse), however they arrive."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentrail.answer.remote.http1 import ProtocolError, ResponseParser
from tokentrail.answer.remote.sse import LARGEST_EVENT, EventReader, EventTooLarge


class Heard:
    """What a parser told."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False

    def head(self, status: int, headers: dict[str, str]) -> None:
        assert not self.status
        self.status, self.headers = status, headers

    def data(self, data: bytes) -> None:
        assert self.status
        assert not self.ended
        self.body += data

    def end(self) -> None:
        assert not self.ended
        self.ended = True


def parsed(pieces: list[bytes]) -> tuple[Heard, ResponseParser]:
    heard = Heard()
    parser = ResponseParser(heard)
    for piece in pieces:
        parser.feed(piece)
    return heard, parser


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: Chunked\r\n\r\n"
WHOLE = [
    (HEAD + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
    (HEAD + b"Content-Length: 0\r\n\r\n", b"", True),
    (HEAD + b"Content-Length: 5, 5\r\nConnection: close\r\n\r\nhello", b"hello", False),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello", True),
    (
        HEAD + b"Transfer-Encoding: Chunked\r\n\r\n2 ; x=y\r\nhe\r\n003\r\nllo\r\n0\r\nTrailer: 1\r\n\r\n",
        b"hello",
        True,
    ),
    (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n"
        + HEAD
        + b"content-length:1\r\n\r\nx",
        b"x",
        True,
    ),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x", False),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    (b"HTTP/1.1 200\r\ncontent-length: 1\r\n\r\nx", b"x", True),
]


@pytest.mark.parametrize(("data", "body", "keep_alive"), WHOLE)
def test_a_response_is_the_same_however_it_is_cut(data: bytes, body: bytes, keep_alive: bool) -> None:
    ways = [[data], [data[at : at + 1] for at in range(len(data))]]
    ways += [[data[:at], data[at:]] for at in range(1, len(data))]
    for pieces in ways:
        heard, parser = parsed(pieces)
        assert (heard.body, heard.ended, parser.done) == (body, True, True)
        assert parser.keep_alive is keep_alive


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    heard, parser = parsed([HEAD + b"\r\nhel", b"lo"])
    assert not heard.ended
    assert parser.eof()
    assert heard.body == b"hello"
    assert not parser.keep_alive


@pytest.mark.parametrize("data", [HEAD, HEAD + b"Content-Length: 5\r\n\r\nhell", WHOLE[3][0][:-3]])
def test_what_is_cut_off_is_not_whole(data: bytes) -> None:
    assert not parsed([data])[1].eof()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 17,
        HEAD + b" folded\r\n\r\n",
        HEAD + b"no colon\r\n\r\n",
        HEAD + b"spa ce: x\r\n\r\n",
        HEAD + b"nul: \0\r\n\r\n",
        HEAD + b"lone: a\rb\r\n\r\n",
        HEAD + b"x: " + b"a" * 70_000,
        HEAD + b"x: y\r\n" * 20_000,
        HEAD + b"Content-Length: 5, 6\r\n\r\nhello",
        HEAD + b"Content-Length: +5\r\n\r\nhello",
        HEAD + b"Content-Length: 5\r\nContent-Length: 4\r\n\r\nhello",
        HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5_0\r\nhello\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 2000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 5000,
        HEAD + b"Content-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n",
    ],
)
def test_what_is_no_response_is_an_error(data: bytes) -> None:
    for pieces in ([data], [data[at : at + 997] for at in range(0, len(data), 997)]):
        with pytest.raises(ProtocolError):
            parsed(pieces)


def test_both_a_length_and_chunks_are_read_as_chunks_on_a_connection_that_is_not_used_again() -> None:
    heard, parser = parsed(
        [HEAD + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"]
    )
    assert heard.body == b"x"
    assert not parser.keep_alive


# --- events ----------------------------------------------------------------------------------------


def events(pieces: list[bytes]) -> list[bytes]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


STREAM = (
    b"data: one\n\n: ping\n\nevent: x\ndata: two\nid: 7\n\ndata:three\r\n\r\ndata: a\ndata: b\n\n"
    b"data\n\nretry: 5\n\ndata: four\r\rdata: \xe2\x80\xa8 five\n\nerror: {}\n\ndata: never whole\n"
)
FOUND = [b"one", b"two", b"three", b"a\nb", b"", b"four", b"\xe2\x80\xa8 five", b'{"error":{}}']


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    at = sorted({0, *cuts, len(STREAM)})
    assert events([STREAM[a:b] for a, b in itertools.pairwise(at)]) == FOUND


def test_events_byte_by_byte() -> None:
    assert events([STREAM[at : at + 1] for at in range(len(STREAM))]) == FOUND


def test_whole_events_in_one_piece() -> None:
    assert events([b"data: a\n\ndata: b\n\n", b"data: [DONE]\n\n"]) == [b"a", b"b", b"[DONE]"]
    assert events([b"data: a\nevent: x\n\n", b"data: c\n\n"]) == [b"a", b"c"]


@pytest.mark.parametrize("filling", [b"x" * 65536, b"data: " + b"y" * 1000 + b"\n"])
def test_an_event_without_end_is_an_error_and_costs_no_more_than_its_limit(filling: bytes) -> None:
    reader = EventReader()
    reader.feed(b"data: ")
    fed = 0

    def fill() -> None:
        nonlocal fed
        while fed < 2 * LARGEST_EVENT:
            reader.feed(filling)
            fed += len(filling)

    with pytest.raises(EventTooLarge):
        fill()
    assert fed < 1.1 * LARGEST_EVENT
