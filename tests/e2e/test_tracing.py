"""A run of a real stack is one trace: from the request that created it to its end, over four roles and two workers."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from server.kit.tracing import first_span_id, trace_id
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.otlp import Collector, collector
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.xdist_group("stack")]
PIPELINE = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
"""Trace and span of a pipeline."""


@pytest.fixture
def spans() -> Iterator[Collector]:
    with collector() as spans:
        yield spans


@pytest.fixture
def traced(tmp_path: Path, spans: Collector) -> Iterator[LudusUp]:
    """A stack that sends its spans, each soon."""
    up = LudusUp(
        tmp_path,
        LUDUS_TELEMETRY__OTLP_ENDPOINT=spans.endpoint,
        OTEL_BSP_SCHEDULE_DELAY="100",
        LUDUS_WORKER__LEASE_SECONDS="3",
        LUDUS_WORKER__HEARTBEAT_SECONDS="0.5",
    )
    yield up
    up.stop()


def test_a_run_is_one_trace_from_its_request_to_its_end_also_if_its_worker_dies(
    traced: LudusUp, spans: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with traced.client() as client:
        monkeypatch.setenv("TRACEPARENT", f"00-{'-'.join(PIPELINE)}-01")
        run = client.runs.create(cartpole(max_steps=20_000), name="traced")
        player = Player(traced, run.id)
        try:
            wait_for_step(client, run, 1100)
            saved_first = "the span of a checkpoint: the killed process would take it along"
            eventually(lambda: any(span.name == "checkpoint" for span in spans.spans(trace_id(run.id))), saved_first)
            slot = next(each for each in client.runs.attempts(run.id) if each.ended_at is None).worker_id
            psutil.Process(int(slot.split("/")[1])).kill()
            ended = client.runs.wait(run.id, timeout=90)
        finally:
            player.kill()
        assert (ended.state, ended.attempt) == ("SUCCEEDED", 2), ended.stop_detail
        saved = Counter(each.attempt for each in client.events.list(run.id) if each.type == "checkpoint_saved")

    eventually(lambda: any(span.name == "run" for span in spans.spans(trace_id(run.id))), "the run's span")
    eventually(lambda: sum(each.name == "attempt" for each in spans.spans(trace_id(run.id))) == 2, "both attempts")
    trace = spans.spans(trace_id(run.id))
    first, *others = trace
    assert (first.service, first.name) == ("ludus-api", "POST /v1/runs")
    assert (first.span_id, first.parent_id) == (first_span_id(run.id), "")
    assert first.links == [PIPELINE]
    assert {span.parent_id for span in others} == {first.span_id}
    assert {span.attributes["ludus.run.id"] for span in trace} == {run.id}
    joins = [span for span in others if (span.service, span.name) == ("ludus-gateway", "join")]
    assert {span.attributes["ludus.attempt"] for span in joins} == {1, 2}
    checkpoints = [span for span in others if span.name == "checkpoint"]
    of_attempts = Counter(span.attributes["ludus.attempt"] for span in checkpoints)
    assert of_attempts[2] == saved[2]
    assert 1 <= of_attempts[1] <= saved[1], "what a killed process has not sent yet is lost"
    alone = [span for span in others if span not in joins and span not in checkpoints]
    assert Counter((span.service, span.name) for span in alone) == Counter(
        {
            ("ludus-worker", "queue"): 1,
            ("ludus-worker", "recovery"): 1,
            ("ludus-worker", "trainer start"): 2,
            ("ludus-worker", "first simulator"): 2,
            ("ludus-worker", "first action"): 2,
            ("ludus-worker", "first update"): 2,
            ("ludus-worker", "attempt"): 1,
            ("ludus-controller", "attempt"): 1,
            ("ludus-controller", "lease expired"): 1,
            ("ludus-worker", "run"): 1,
        }
    )
    for attempt, wait in ((1, "queue"), (2, "recovery")):
        of_attempt = [span for span in others if span.attributes.get("ludus.attempt") == attempt]
        path = [wait, "trainer start", "first simulator", "first action", "first update", "checkpoint"]
        ends = [next(span for span in of_attempt if span.name == name).ended for name in path]
        assert ends == sorted(ends), path
        whole = next(span for span in of_attempt if span.name == "attempt")
        assert whole.failed == (attempt == 1)
    whole = next(span for span in others if span.name == "run")
    assert whole.attributes["ludus.run.state"] == "SUCCEEDED"
    assert whole.ended >= max(span.ended for span in others if span.name == "checkpoint")
    (queued,) = spans.spans(PIPELINE[0])
    assert (queued.name, queued.parent_id, queued.links) == (
        "POST /v1/runs",
        PIPELINE[1],
        [(first.trace_id, first.span_id)],
    )
