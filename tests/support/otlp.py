"""A receiver of OTLP over HTTP that holds the spans it is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """One span; times in nanoseconds since 1970, ids in hexadecimal. `parent` is empty for a root."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    began_ns: int
    ended_ns: int
    values: dict[str, Any]


@dataclass
class Receiver:
    """What has been received. Memory: the spans of one test."""

    url: str
    spans: list[Span] = field(default_factory=list)

    def named(self, name: str, **values: Any) -> list[Span]:
        """Return the spans of a name whose attributes `tailrace.*` have these values."""
        return [
            each
            for each in list(self.spans)
            if each.name == name and all(each.values.get(f"tailrace.{of}") == value for of, value in values.items())
        ]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver for the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            found.spans += _spans(request)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Receiver(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        service = _values(resource.resource.attributes)["service.name"]
        for each in (span for scope in resource.scope_spans for span in scope.spans):
            ids = (each.trace_id.hex(), each.span_id.hex(), each.parent_span_id.hex())
            times = (each.start_time_unix_nano, each.end_time_unix_nano)
            yield Span(service, each.name, *ids, *times, _values(each.attributes))


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
