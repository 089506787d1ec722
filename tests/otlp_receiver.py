"""A receiver of OTLP over HTTP, as collectors are: takes traces in protobuf and keeps their spans."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Received:
    """One span."""

    def __init__(self, span: Any, resource: dict[str, Any]) -> None:
        self.name: str = span.name
        self.trace_id: str = span.trace_id.hex()
        self.span_id: str = span.span_id.hex()
        self.parent_id: str = span.parent_span_id.hex()
        self.kind: int = span.kind
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.failed: bool = span.status.code == 2
        self.facts = _facts(span.attributes)
        self.resource = resource


class Receiver:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        """As they came."""
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.status = 200
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def spans(self) -> list[Received]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = []
        for body in self.bodies:
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = _facts(each.resource.attributes)
                found += [Received(span, resource) for scope in each.scope_spans for span in scope.spans]
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if receiver.status == 200:
                    receiver.bodies.append(body)
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                receiver.paths.append(self.path)
                self.send_response(receiver.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        return Handler


def _facts(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)
