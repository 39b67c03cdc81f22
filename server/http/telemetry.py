"""Operational metrics of the HTTP API for Prometheus, one registry per application.

Labels are routes, never ids: what concerns one run is read through the API.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class HttpTelemetry:
    """Counts requests, event streams and long polls."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.event_streams = Gauge("ludus_http_event_streams", "Open event streams.", registry=self.registry)
        self.waiters = Gauge("ludus_http_waiters", "Requests that wait for a state.", registry=self.registry)
        self._requests = Counter(
            "ludus_http_requests_total", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "ludus_http_request_seconds",
            "From the request's arrival to the end of its answer.",
            ["method", "route"],
            buckets=BUCKETS,
            registry=self.registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request. `status` 0 means that the client left before an answer began."""
        known = method if method in {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
