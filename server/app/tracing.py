"""Middleware that sends spans of requests to OpenTelemetry. The application has it only where traces are on."""

import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.kit.http.idempotency import REPLAYED
from server.kit.tracing import Tracer

RUNS = "/v1/runs"


class RequestSpans:
    """Sends a span for each request that creates a run, that is slow, or whose caller records its own trace.

    The request that creates a run is the first span of the run's trace. If it comes with a `traceparent`, as that of a
    pipeline does, it has another span in the caller's trace, and the two are linked: a run lives longer than the trace
    of the pipeline that queued it.

    A request is slow if its answer has not begun in `slow_request_seconds`. Long polls wait as they are asked to, so
    they are never slow, and the answers of event streams and downloads begin at once.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, clock, answered = time.time(), time.perf_counter(), 0.0
        status, created = 0, None

        async def answer(message: Message) -> None:
            nonlocal answered, status, created
            if message["type"] == "http.response.start":
                answered, status = time.perf_counter() - clock, message["status"]
                headers = Headers(raw=message["headers"])
                if (scope["method"], scope["path"], status) == ("POST", RUNS, 201) and REPLAYED not in headers:
                    created = headers["location"].rpartition("/")[2]
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            traceparent = Headers(scope=scope).get("traceparent")
            caller = None if traceparent is None else self._tracer.caller(traceparent)
            recorded = caller is not None and caller.trace_flags.sampled
            waits = b"wait=" in scope["query_string"]
            slow = not waits and (answered or time.perf_counter() - clock) >= self._tracer.slow_seconds
            route = str(getattr(scope.get("route"), "path", "none"))
            name = f"{scope['method']} {route}"
            facts = {
                "http.request.method": scope["method"],
                "http.route": route,
                "http.response.status_code": status,
                "url.path": scope["path"],
                "ludus.request.id": scope["state"]["request_id"],
            }
            if created is not None:
                self._tracer.created_run(created, name, began, caller, facts)
            if recorded or (slow and created is None):
                self._tracer.request(name, began, caller if recorded else None, created, facts)
