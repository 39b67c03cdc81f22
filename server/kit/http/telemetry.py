"""Operational metrics of the HTTP API for Prometheus, one registry per application.

Labels are routes, never ids: what concerns one run is read through the API.
"""

from prometheus_client import Counter, Gauge, Histogram, generate_latest
from prometheus_client.registry import Collector

from server.kit.telemetry import BUCKETS, new_registry


class HttpTelemetry:
    """Counts requests, event streams and long polls."""

    def __init__(self, *collectors: Collector) -> None:
        """Expose the metrics of `collectors`, too."""
        self.registry = new_registry()
        for collector in collectors:
            self.registry.register(collector)
        self.event_streams = Gauge("ludus_http_event_streams", "Open event streams.", registry=self.registry)
        self.dropped_streams = Counter(
            "ludus_http_event_streams_dropped_total",
            "Event streams whose client took nothing for too long.",
            registry=self.registry,
        )
        self.waiters = Gauge("ludus_http_waiters", "Requests that wait for a state.", registry=self.registry)
        self._requests = Counter(
            "ludus_http_requests_total", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "ludus_http_request_seconds",
            "From the request's arrival to the end of its answer, without long polls and event streams.",
            ["method", "route"],
            buckets=BUCKETS,
            registry=self.registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count one answered request. `status` 0 means that the client left before an answer began.

        `seconds` is None for long polls and event streams: they last as long as their clients want.
        """
        label = method if method in {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} else "other"
        self._requests.labels(label, route, str(status)).inc()
        if seconds is not None:
            self._seconds.labels(label, route).observe(seconds)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
