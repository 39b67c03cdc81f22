"""Traces for OpenTelemetry: one trace for each run, and spans of slow requests, sent by OTLP over HTTP.

Off unless `LUDUS_TELEMETRY__OTLP_ENDPOINT` is set: without it no process imports OpenTelemetry's SDK or has a tracer.

A run's trace has an id that is computed from the run's id (the first 32 digits of its SHA-256), and so has the trace's
first span, the request that created the run. So every process can add its spans to the trace although nothing carries a
context from one to the next: not the database, not Celery's messages, not a worker that goes on after another one has
died. A run's spans are children of that first span. The share of runs that are traced is decided by the trace's id, so
that all processes decide alike.

Spans wait in a bounded queue; one thread sends them. If the collector is away or hangs, they are dropped, and nothing
waits for it, except the end of the process for `CLOSE_SECONDS`.
"""

import hashlib
import logging
import threading
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ludus.protocol.proxies import reached_directly
from server.kit.listening import TelemetrySettings
from server.kit.ports import CannotStart

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

CLOSE_SECONDS: Final = 2.0
"""Time that a process which ends gives the collector to take the last spans."""
TRACES_PATH: Final = "/v1/traces"
NEEDED: Final = ("opentelemetry.sdk", "opentelemetry.exporter")
"""Modules of the extra `telemetry`."""

Attributes = Mapping[str, str | int | float | bool]


def trace_id(run_id: str) -> str:
    """Return the id of a run's trace: 32 hexadecimal digits."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]


def first_span_id(run_id: str) -> str:
    """Return the id of the first span of a run's trace: 16 hexadecimal digits."""
    return hashlib.sha256(run_id.encode()).hexdigest()[32:48]


class Tracer:
    """Sends the spans of one process. Safe to share between threads, never across a fork.

    All times are seconds since 1970 on this host's clock. A span is sent when it has ended.
    """

    def __init__(self, settings: TelemetrySettings, role: str) -> None:
        """`role` names the process: spans are those of the service `ludus-ROLE`."""
        # Imported only where traces are on.
        import requests  # noqa: PLC0415
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import TraceIdRatioBased  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        class Ids(RandomIdGenerator):
            """Gives the first span of a run's trace the ids that are computed, and random ones to others."""

            run_id: str | None = None

            def generate_trace_id(self) -> int:
                return super().generate_trace_id() if self.run_id is None else int(trace_id(self.run_id), 16)

            def generate_span_id(self) -> int:
                return super().generate_span_id() if self.run_id is None else int(first_span_id(self.run_id), 16)

        self.slow_seconds = settings.slow_request_seconds
        self._api = trace
        self._ids = Ids()
        self._lock = threading.Lock()
        self._propagator = TraceContextTextMapPropagator()
        self._provider = TracerProvider(
            sampler=TraceIdRatioBased(settings.traced_share),
            resource=Resource.create({SERVICE_NAME: f"ludus-{role}", SERVICE_VERSION: version("ludus")}),
            id_generator=self._ids,
            shutdown_on_exit=False,  # it would wait for half a minute; `close` does not
        )
        session = requests.Session()
        session.trust_env = not reached_directly(urlsplit(settings.otlp_endpoint).hostname or "")
        self._exporter = OTLPSpanExporter(settings.otlp_endpoint.rstrip("/") + TRACES_PATH, session=session)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        logging.getLogger("opentelemetry.exporter").setLevel(
            logging.ERROR
        )  # a line for a lost batch, none for each try
        self._tracer = self._provider.get_tracer("ludus", version("ludus"))

    def of_run(
        self,
        run_id: str,
        name: str,
        began: float,
        ended: float | None = None,
        *,
        attempt: int | None = None,
        failed: str | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        """Send a span of a run's trace. `failed` marks it as an error, and says why."""
        facts: dict[str, str | int | float | bool] = {"ludus.run.id": run_id, **(attributes or {})}
        if attempt is not None:
            facts["ludus.attempt"] = attempt
        span = self._start(name, began, facts, parent=self._first_span(run_id))
        if failed is not None:
            span.set_status(self._api.Status(self._api.StatusCode.ERROR, failed))
        span.end(None if ended is None else nanoseconds(max(began, ended)))

    def created_run(
        self, run_id: str, name: str, began: float, caller: "SpanContext | None", facts: Attributes
    ) -> None:
        """Send the first span of a run's trace: the request that created it. `caller` is linked."""
        facts = {"ludus.run.id": run_id, **facts}
        self._start(name, began, facts, run_id=run_id, link=caller, server=True).end()

    def request(
        self, name: str, began: float, caller: "SpanContext | None", run_id: str | None, facts: Attributes
    ) -> None:
        """Send the span of a request, in the trace of its caller if it has one. The run that it created is linked."""
        link = None if run_id is None else self._first_span(run_id)
        self._start(name, began, facts, parent=caller, link=link, server=True).end()

    def caller(self, traceparent: str) -> "SpanContext | None":
        """Return the span that a request's header `traceparent` (W3C Trace Context) names; None if it is malformed."""
        context = self._propagator.extract({"traceparent": traceparent})
        span = self._api.get_current_span(context).get_span_context()
        return span if span.is_valid else None

    def close(self) -> None:
        """Send what waits, for `CLOSE_SECONDS` at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="tracer-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # no further tries

    def _first_span(self, run_id: str) -> "SpanContext":
        flags = self._api.TraceFlags(self._api.TraceFlags.SAMPLED)
        return self._api.SpanContext(
            int(trace_id(run_id), 16), int(first_span_id(run_id), 16), is_remote=True, trace_flags=flags
        )

    def _start(
        self,
        name: str,
        began: float,
        attributes: Attributes,
        *,
        parent: "SpanContext | None" = None,
        link: "SpanContext | None" = None,
        run_id: str | None = None,
        server: bool = False,
    ) -> "Span":
        """Begin a span, which is sent when it ends. Without a parent it is the first one of `run_id`'s trace, or of a
        new trace.
        """
        api = self._api
        context = None if parent is None else api.set_span_in_context(api.NonRecordingSpan(parent))
        with self._lock:
            self._ids.run_id = run_id
            return self._tracer.start_span(
                name,
                context,
                kind=api.SpanKind.SERVER if server else api.SpanKind.INTERNAL,
                attributes=attributes,
                links=() if link is None else (api.Link(link),),
                start_time=nanoseconds(began),
            )


def nanoseconds(seconds: float) -> int:
    """Return a time as OpenTelemetry counts it."""
    return round(seconds * 1e9)


def check_installed(settings: TelemetrySettings) -> None:
    """Refuse to start where traces are wanted and OpenTelemetry is not installed. Raises CannotStart."""
    if settings.otlp_endpoint and not all(find_spec("opentelemetry") and find_spec(name) for name in NEEDED):
        raise CannotStart(
            "LUDUS_TELEMETRY__OTLP_ENDPOINT is set, and OpenTelemetry's SDK and exporter are not installed: install "
            "them with `pip install '.[server,telemetry]'`, or leave the setting empty."
        )


def open_tracer(settings: TelemetrySettings, role: str) -> Tracer | None:
    """Return the tracer of this process; None where no endpoint is set. Raises CannotStart."""
    check_installed(settings)
    return Tracer(settings, role) if settings.otlp_endpoint else None
