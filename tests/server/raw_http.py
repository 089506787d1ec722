"""HTTP by hand: raw sockets for clients that no library lets one be."""

from __future__ import annotations

import json
import select
import socket
from typing import Any, NamedTuple


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/json", self
        found = json.loads(self.body)["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return dict(found)


class RawClient:
    """One connection."""

    def __init__(self, url: str, *, window: int = 0) -> None:
        """`window`: bytes that it takes in unread; 0: as many as usual."""
        host, port = url.split("//")[1].split(":")
        self.socket = socket.socket()
        if window:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self.socket.settimeout(100)
        self.socket.connect((host, int(port)))
        self.buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def finish_sending(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with a reset (RST)."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def ready(self) -> bool:
        """Something has come."""
        return bool(self.buffer or select.select([self.socket], [], [], 0)[0])

    def _more(self) -> bool:
        data = self.socket.recv(65536)
        self.buffer += data
        return bool(data)

    def _until(self, end: bytes) -> bytes:
        while end not in self.buffer:
            if not self._more():
                raise EOFError(f"closed after {self.buffer!r}")
        found, _, self.buffer = self.buffer.partition(end)
        return found

    def reply(self, *, head: bool = False) -> Reply:
        """The next response, interim ones left out. `head`: it has no body. EOFError: there is none."""
        status = 100
        while status < 200:
            first, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            status = int(first.split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if head:
            return Reply(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._until(b"\r\n"), 16):
                body += self._bytes(size)
                assert self._bytes(2) == b"\r\n"
            assert self._bytes(2) == b"\r\n"
            return Reply(status, headers, body)
        if "content-length" in headers:
            return Reply(status, headers, self._bytes(int(headers["content-length"])))
        while self._more():
            pass
        return Reply(status, headers, self._bytes(len(self.buffer)))

    def _bytes(self, count: int) -> bytes:
        while len(self.buffer) < count:
            if not self._more():
                raise EOFError(f"{count} bytes wanted, {len(self.buffer)} there")
        found, self.buffer = self.buffer[:count], self.buffer[count:]
        return found

    @property
    def ended(self) -> bool:
        """The server has closed the connection, after all of its responses."""
        try:
            return not self._more()
        except ConnectionError:
            return True


def request(
    path: str,
    body: Any = None,
    *,
    method: str = "",
    version: str = "1.1",
    headers: str = "",
    length: int = -1,
) -> bytes:
    """The bytes of a request. `body`: bytes as they are, anything else as JSON. `length`: a lie about its length."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method or ('GET' if body is None else 'POST')} {path} HTTP/{version}\r\nHost: localhost\r\n{headers}"
    if body is not None:
        length = len(data) if length < 0 else length
        head += f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
    return head.encode("latin-1") + b"\r\n" + data
