"""Spans: sent in the trace of their run, dropped where nothing takes them, and never waited for."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from server.kit.listening import TelemetrySettings
from server.kit.ports import CannotStart
from server.kit.tracing import CLOSE_SECONDS, NEEDED, Tracer, first_span_id, open_tracer, trace_id
from tests.otlp import collector
from tests.ports import free_port
from tests.waiting import eventually

SPANS = 3000
"""More than the queue holds (2,048)."""


@contextmanager
def hanging() -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def dead() -> Iterator[str]:
    """Yield the address of a server that is not there."""
    yield f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("away", [dead, hanging])
def test_a_collector_that_is_away_or_hangs_delays_neither_spans_nor_the_end(
    away: Callable[[], AbstractContextManager[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with away() as endpoint:
        tracer = Tracer(TelemetrySettings(otlp_endpoint=endpoint), "worker")
        began = time.monotonic()
        for _ in range(SPANS):
            tracer.of_run("run_1", "checkpoint", time.time())
        sent = time.monotonic() - began
        tracer.close()
        closed = time.monotonic() - began - sent

    # The exporter gives up after 10 s, and OpenTelemetry's own end of a process after 30 s.
    assert sent < 5
    assert closed < CLOSE_SECONDS + 5
    assert not [line for line in caplog.messages if "Transient" in line], "a line for each try"


def test_all_processes_trace_the_same_share_of_runs() -> None:
    runs = [f"run_{number}" for number in range(200)]
    with collector() as spans:
        for role in ("api", "worker"):
            tracer = Tracer(TelemetrySettings(otlp_endpoint=spans.endpoint, traced_share=0.5), role)
            for run in runs:
                if role == "api":
                    tracer.created_run(run, "POST /v1/runs", time.time(), None, {})
                else:
                    tracer.of_run(run, "queue", time.time())
            tracer.close()
        found = spans.spans()
    traced = {role: {span.trace_id for span in found if span.service == f"ludus-{role}"} for role in ("api", "worker")}
    assert traced["api"] == traced["worker"]
    assert 60 < len(traced["api"]) < 140
    assert traced["api"] < {trace_id(run) for run in runs}


def test_a_span_says_when_why_and_of_which_run() -> None:
    with collector() as spans:
        tracer = Tracer(TelemetrySettings(otlp_endpoint=spans.endpoint + "/"), "controller")
        tracer.of_run("run_7", "lease expired", 100.25, 103.5, attempt=2, failed="silent", attributes={"ludus.step": 9})
        tracer.close()
        (span,) = eventually(spans.spans, "the span")
    assert (span.service, span.name, span.failed) == ("ludus-controller", "lease expired", True)
    assert (span.trace_id, span.parent_id) == (trace_id("run_7"), first_span_id("run_7"))
    assert (span.began, span.ended) == (100_250_000_000, 103_500_000_000)
    assert span.attributes == {"ludus.run.id": "run_7", "ludus.attempt": 2, "ludus.step": 9}


@pytest.mark.long
def test_without_an_endpoint_no_process_imports_the_sdk_or_has_a_tracer() -> None:
    script = """
import sys, tempfile
from pathlib import Path
import server.controller.controller, server.gateway.main, worker.host.tasks
from server.app.app import create_app
from server.app.tracing import RequestSpans
from server.kit.settings import Settings
app = create_app(Settings(home=Path(tempfile.mkdtemp())))
assert app.state.services.tracer is None and app.state.services.database.tracer is None
assert RequestSpans not in [each.cls for each in app.user_middleware]
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert open_tracer(TelemetrySettings(), "api") is None


def test_an_endpoint_without_the_packages_is_refused_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.kit.tracing.find_spec", lambda name: None if name in NEEDED else object())
    with pytest.raises(CannotStart, match=r"pip install '\.\[server,telemetry\]'"):
        open_tracer(TelemetrySettings(otlp_endpoint="http://127.0.0.1:4318"), "api")


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector:4317", "http://", "http://c:4318/?key=1"])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="otlp_endpoint"):
        TelemetrySettings(otlp_endpoint=endpoint)
