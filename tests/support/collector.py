"""An OpenTelemetry collector's place: takes spans by OTLP over real HTTP and keeps them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedSpan:
    """A span as it arrived: ids as hex digits."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]
    raw: bytes = field(repr=False)


@dataclass(slots=True)
class Collector:
    """What has arrived, and where to send more."""

    url: str = ""
    spans: list[CollectedSpan] = field(default_factory=list)

    def named(self, name: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def collector() -> Iterator[Collector]:
    """A running collector for the block."""
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.spans += _spans(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=180)


def _spans(body: bytes) -> list[CollectedSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        CollectedSpan(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            attributes={each.key: each.value.string_value for each in span.attributes},
            raw=span.SerializeToString(),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
