"""An OpenTelemetry collector for tests: takes spans by OTLP over HTTP, and keeps them."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass(frozen=True)
class Received:
    """One span. Times are nanoseconds since 1970."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began: int
    ended: int
    attributes: dict[str, str | int | float | bool]
    links: list[tuple[str, str]]
    failed: bool


class Collector:
    """The spans that a server has received."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._spans: list[Received] = []

    def take(self, body: bytes) -> None:
        """Keep the spans of one request."""
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = str(_values(group.resource.attributes)["service.name"])
            for span in (span for scope in group.scope_spans for span in scope.spans):
                self._spans.append(
                    Received(
                        service,
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        _values(span.attributes),
                        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                        span.status.code == span.status.STATUS_CODE_ERROR,
                    )
                )

    def spans(self, trace_id: str | None = None) -> list[Received]:
        """Return the spans (of one trace) in the order of their beginnings."""
        found = [span for span in self._spans if trace_id is None or span.trace_id == trace_id]
        return sorted(found, key=lambda span: span.began)


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector on any free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            spans.take(self.rfile.read(int(self.headers["Content-Length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        spans = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield spans
        finally:
            server.shutdown()
            thread.join()


def _values(pairs: Sequence[KeyValue]) -> dict[str, str | int | float | bool]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}
