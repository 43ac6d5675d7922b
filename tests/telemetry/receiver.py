"""A collector: it takes spans by OTLP over HTTP, decodes them, and keeps each that it was sent."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from refold.dev.ports import free_port


class Told:
    """A span as it came: ids in hex, times in nanoseconds, attributes as values."""

    def __init__(self, span: Any) -> None:
        self.name, self.kind = span.name, span.kind
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.said = {each.key: _value(each.value) for each in span.attributes}
        self.links = [(each.trace_id.hex(), each.span_id.hex()) for each in span.links]
        self.beside = [(each.name, {a.key: _value(a.value) for a in each.attributes}) for each in span.events]
        self.failed = span.status.code == 2
        self.bytes = span.SerializeToString(deterministic=True)


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


class Receiver:
    """See the module. While it `refuses`, it answers 503 and keeps nothing."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Told] = []
        self.refuses = False
        self.requests = 0
        self.request = ExportTraceServiceRequest()
        receiver, self.port = self, port or free_port()

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.take(body)
                self.send_response(503 if receiver.refuses else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Answer)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where spans are sent."""
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def take(self, body: bytes) -> None:
        """Keep what came."""
        self.requests += 1
        if self.refuses:
            return
        self.request = request = ExportTraceServiceRequest.FromString(body)
        self.spans += [Told(s) for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]

    @property
    def distinct(self) -> dict[tuple[str, str], Told]:
        """One of each id; that they are equal is for tests to say."""
        return {(span.trace, span.id): span for span in self.spans}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
