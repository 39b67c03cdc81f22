"""Operational metrics of processes without an HTTP API of their own: gateway, controller, worker.

Each role serves its own numbers on a port of its own, where one is set; the api serves what the database has of the
whole installation (`server.workers.fleet`). Labels are kinds and outcomes, never ids.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector, make_wsgi_app
from prometheus_client import start_http_server as _start

from server.kit.listening import TelemetrySettings
from server.kit.ports import CannotStart

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
"""Seconds."""
_log = structlog.get_logger(__name__)
_TEXT: Final = [("Content-Type", "text/plain; charset=utf-8")]


class LoopHeartbeat:
    """Notes that a process' main loop turns. A process can live although its loop hangs."""

    def __init__(self, limit_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`limit_seconds`: a turn that takes longer counts as hanging."""
        self._limit = limit_seconds
        self._monotonic = monotonic
        self._at = monotonic()

    def beat(self) -> None:
        """Note one turn."""
        self._at = self._monotonic()

    def is_alive(self) -> bool:
        """Return whether the newest turn was recent. Safe to call from any thread."""
        return self._monotonic() - self._at < self._limit


@dataclass(frozen=True)
class Probes:
    """The answers of a process to probes: `/healthz` and `/readyz`, on the port of its metrics.

    `/healthz` says whether the process works, and asks nothing outside it: an orchestrator that ended processes because
    the database is away would add a second outage to the first one. `/readyz` says whether it can do what it is asked
    for.
    """

    is_alive: Callable[[], bool]
    is_ready: Callable[[], bool]

    def around(self, app: "WSGIApplication") -> "WSGIApplication":
        """Return an application that answers probes itself: 200, or 503."""

        def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
            probe = {"/healthz": self.is_alive, "/readyz": self.is_ready}.get(environ["PATH_INFO"])
            if probe is None:
                return app(environ, start_response)
            good = probe()
            start_response("200 OK" if good else "503 Service Unavailable", _TEXT)
            return [b"ok\n" if good else b"failed\n"]

        return answer


def new_registry() -> CollectorRegistry:
    """Return a registry with what every process tells of itself: release, memory, processor time, collections."""
    registry = CollectorRegistry()
    build = Gauge("ludus_build_info", "Always 1; the label has the release.", ["version"], registry=registry)
    build.labels(version("ludus")).set(1)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def serve_metrics(registry: CollectorRegistry, settings: TelemetrySettings, port: int, probes: Probes) -> None:
    """Serve `/metrics` and probes in a thread, if a port is set. Raises CannotStart."""
    if not port:
        return
    try:
        server, _ = _start(port, settings.host, registry)
        server.set_app(probes.around(make_wsgi_app(registry)))
    except OSError as error:
        raise CannotStart(
            f"Metrics cannot be served on {settings.host}:{port} ({error.strerror}): choose another address with "
            "LUDUS_TELEMETRY__HOST and LUDUS_TELEMETRY__..._PORT."
        ) from None
    _log.info("metrics_served", host=settings.host, port=port)


class GatewayTelemetry:
    """Counts what simulators ask."""

    def __init__(self) -> None:
        self.registry = new_registry()
        self.relayed = Gauge(
            "ludus_gateway_relayed_streams", "Streams that this gateway forwards.", registry=self.registry
        )
        self.held = Gauge(
            "ludus_gateway_held_joins",
            "Simulators whose run is not ready and whose question is held.",
            registry=self.registry,
        )
        self.not_held = Counter(
            "ludus_gateway_joins_not_held_total",
            "Questions that were answered with a wait at once, because as many as possible are held.",
            registry=self.registry,
        )
        self.calls = Histogram(
            "ludus_gateway_call_seconds",
            "From a simulator's call to its answer.",
            ["call", "outcome"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        """By call, for instance `join`, and outcome: `ok` or the code of an error."""


class ControllerTelemetry:
    """Counts rounds of jobs, runs that were taken from silent workers, and attempts to deliver messages."""

    def __init__(self) -> None:
        self.registry = new_registry()
        self.rounds = Histogram(
            "ludus_controller_round_seconds",
            "One round of a job.",
            ["job_name", "outcome"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        """By job (`server.kit.jobs`), and outcome: `ok` or the code of an error."""
        self.expired_leases = Counter(
            "ludus_controller_leases_expired_total", "Runs taken from workers that fell silent.", registry=self.registry
        )
        self.lost_sessions = Counter(
            "ludus_controller_sessions_lost_total",
            "Sessions of simulators that were connected to workers that fell silent.",
            registry=self.registry,
        )
        self.attempts = Histogram(
            "ludus_webhook_attempt_seconds",
            "Attempts to deliver a message: succeeded, failed (tried again later) or given_up.",
            ["outcome"],
            buckets=BUCKETS,
            registry=self.registry,
        )
