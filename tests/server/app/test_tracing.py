"""Spans of requests: of slow ones, of those whose caller records its trace, and of those that create runs."""

from collections.abc import Iterator

import httpx2
import pytest

from server.kit.tracing import first_span_id, trace_id
from tests.otlp import Collector, Received, collector
from tests.server.app.world import CARTPOLE, World, open_world
from tests.waiting import eventually

CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def spans() -> Iterator[Collector]:
    with collector() as spans, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield spans


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory, spans: Collector) -> Iterator[World]:
    """An API for which no request is slow."""
    settings = {"otlp_endpoint": spans.endpoint, "slow_request_seconds": 600}
    with open_world(tmp_path_factory.mktemp("quick"), telemetry=settings) as world:
        yield world


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, spans: Collector) -> Iterator[World]:
    """An API for which each request is slow."""
    settings = {"otlp_endpoint": spans.endpoint, "slow_request_seconds": 1e-6}
    with open_world(tmp_path_factory.mktemp("slow"), telemetry=settings) as world:
        yield world


def of(spans: Collector, answer: httpx2.Response) -> list[Received]:
    """Return the spans of one request."""
    wanted = answer.headers["x-request-id"]
    return [span for span in spans.spans() if span.attributes.get("ludus.request.id") == wanted]


def test_a_slow_request_has_a_span_and_a_long_poll_and_a_quick_request_have_none(
    quick: World, slow: World, spans: Collector
) -> None:
    run = slow.create()["id"]
    fast = quick.http.get("/v1/runs")
    polled = slow.http.get(f"/v1/runs/{run}", params={"wait": "terminal", "timeout": 0.1})
    missing = slow.http.get("/v1/runs/absent")
    (span,) = eventually(lambda: of(spans, missing), "the span of a slow request")
    assert (span.name, span.parent_id, span.failed) == ("GET /v1/runs/{run:name}", "", False)
    assert span.attributes["http.response.status_code"] == 404
    assert of(spans, polled) == of(spans, fast) == []


def test_a_request_whose_caller_records_its_trace_is_in_it(quick: World, spans: Collector) -> None:
    trace, parent = CALLER
    ignored = quick.http.get("/v1/runs", headers={"traceparent": f"00-{trace}-{parent}-00"})
    garbage = quick.http.get("/v1/runs", headers={"traceparent": "00-0-0-01"})
    recorded = quick.http.get("/v1/runs", headers={"traceparent": f"00-{trace}-{parent}-01"})
    (span,) = eventually(lambda: of(spans, recorded), "the span of a recorded request")
    assert (span.trace_id, span.parent_id) == CALLER
    assert of(spans, ignored) == of(spans, garbage) == []


def test_a_repeated_request_does_not_begin_the_trace_of_its_run_again(quick: World, spans: Collector) -> None:
    headers = {"Idempotency-Key": "once"}
    first, second = (quick.http.post("/v1/runs", json={"config": CARTPOLE}, headers=headers) for _ in range(2))
    run = first.json()["id"]
    assert second.json()["id"] == run
    quick.http.post(f"/v1/runs/{run}:cancel")
    eventually(lambda: len(spans.spans(trace_id(run))) == 2, "the run's trace")
    created, ended = spans.spans(trace_id(run))
    assert (created.name, created.span_id) == ("POST /v1/runs", first_span_id(run))
    assert (ended.name, ended.service) == ("run", "ludus-api")
    assert ended.attributes["ludus.run.state"] == "CANCELLED"
