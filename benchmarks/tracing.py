"""Traces: the processor time of a request and of an attempt with traces on, against off; and what is left when off.

    python -m benchmarks.tracing [--rounds 9] [--requests 300] [--attempts 15]

Both sides run in turn in this process, on the same SQLite file. The figures are processor time of all its threads, that
of the sender of spans included: all spans of a round are sent before its end, to a collector in a process of its own.

- request: `GET /v1/runs/{run}` through the whole application, without a socket, which would make the shares smaller.
  Traced twice: as most requests are, which are not slow and leave no span, and with a `traceparent`, one span each.
- attempt: what a slot's supervisor does with the database from the claim of a run to its end, with one simulator and
  one checkpoint, and the eight spans of it. It trains nothing: the shares of a real attempt are far smaller.

What is left when off is measured by itself: it is too little to be seen in a request. `Database._session` asks for the
tracer (its own line is timed), `tracer_of` looks for one in a session, and `is None` is asked where an attempt begins
and where a simulator joins. `sys.setprofile` counts the calls.
"""

import argparse
import asyncio
import gc
import inspect
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import structlog
from fastapi import FastAPI

from ludus.schemas.states import RunState, StopReason
from server.app.app import create_app
from server.app.services import Services
from server.kit.artifacts.opening import open_store
from server.kit.db import database as databases
from server.kit.db.database import Database, tracer_of
from server.kit.db.migrate import upgrade_database
from server.kit.settings import Settings
from server.kit.tracing import Tracer
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from tests.factories import RecordingWakeUp, make_checkpoint, make_run
from worker.host.telemetry import AttemptMeasurement, AttemptSpans, WorkerTelemetry

COLLECTOR = """
import sys
from tests.otlp import collector
with collector() as spans:
    print(spans.endpoint, flush=True)
    for line in sys.stdin:
        print(len(spans.spans()), flush=True)
"""
CALLER = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CALLS = 1_000_000
NEVER = "3600000"
"""Milliseconds between two sendings of spans: a round sends its own."""
Step = Callable[[], Coroutine[Any, Any, None]]


@contextmanager
def collector() -> Iterator[tuple[str, Callable[[], int]]]:
    """Run a collector of spans in a process of its own; yield its endpoint, and what counts the spans that it has."""
    with subprocess.Popen(
        [sys.executable, "-c", COLLECTOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asks, answers = process.stdin, process.stdout

        def count() -> int:
            asks.write("count\n")
            asks.flush()
            return int(answers.readline())

        yield answers.readline().strip(), count
        asks.close()


def build(home: Path, **telemetry: object) -> Services:
    """Build the services of an api on the database in `home`."""
    settings = Settings(home=home, telemetry=telemetry)  # type: ignore[arg-type]  # pydantic makes the model
    database = Database.from_settings(settings.database)
    upgrade_database(database)
    store = open_store(settings.storage)
    return Services.build(settings, database=database, wake_up=RecordingWakeUp(), artifacts=store)


def request(app: FastAPI, run_id: str, traceparent: bytes | None = None) -> Step:
    """Return what sends one GET of a run to the application."""
    headers = [(b"host", b"localhost"), (b"accept", b"application/json")]
    headers += [] if traceparent is None else [(b"traceparent", traceparent)]
    path = f"/v1/runs/{run_id}"

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    async def get() -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8080),
            "state": {},
        }
        await app(scope, receive, send)

    return get


def attempt(database: Database, tracer: Tracer | None) -> Step:
    """Return what claims a run and does what a supervisor does until its end."""
    queue, telemetry = RunQueue(database), WorkerTelemetry()

    async def execute() -> None:
        claim = queue.claim("worker-1", 600)
        assert claim is not None
        # As `worker.host.tasks.Slot` does.
        observers = [AttemptMeasurement(telemetry, claim).observe]
        observers += [] if tracer is None else [AttemptSpans(tracer, claim).observe]
        ledger = AttemptLedger(database, claim, 3, observers)
        ledger.listening([])
        ledger.simulators.connected("simulator", number=0, collector=0)
        ledger.simulators.plays("simulator", ["CartPole"], 1)
        ledger.move(RunState.RUNNING)
        ledger.event("learning_began", "The first update is done.")
        ledger.heartbeat(600, 1000)
        ledger.checkpoints.add(make_checkpoint())
        ledger.move(RunState.SUCCEEDED, reason=StopReason.COMPLETED)

    return execute


async def used(step: Step, times: int, tracer: Tracer | None) -> float:
    """Return the milliseconds of processor time that a step takes in the mean, with the sending of its spans."""
    gc.collect()
    began = time.process_time()
    for _ in range(times):
        await step()
    if tracer is not None:
        assert tracer._provider.force_flush()  # noqa: SLF001  # its queue must be empty before the next round
    return 1e3 * (time.process_time() - began) / times


async def compare(off: Step, on: Step, tracer: Tracer, times: int, rounds: int) -> tuple[float, list[float]]:
    """Return the median of the milliseconds with traces off, and the ratios on : off of all rounds."""
    await used(off, times // 10 + 1, None)
    await used(on, times // 10 + 1, tracer)
    pairs = [(await used(off, times, None), await used(on, times, tracer)) for _ in range(rounds)]
    return statistics.median(without for without, _ in pairs), sorted(traced / without for without, traced in pairs)


async def calls(step: Step, *codes: CodeType) -> list[int]:
    """Return how often one step calls some functions, in any thread: the loop must be a new one, without threads."""
    counts: Counter[CodeType] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        counts[frame.f_code] += event == "call"

    threading.setprofile(profile)
    sys.setprofile(profile)
    await step()  # what is made at the first time is not counted
    counts.clear()
    await step()
    sys.setprofile(None)
    threading.setprofile(None)
    return [counts[code] for code in codes]


def hooks(database: Database) -> dict[str, float]:
    """Return the nanoseconds of each thing that is left when traces are off, less those of an empty loop."""
    source = inspect.getsource(Database._session)  # noqa: SLF001
    (line,) = [line.strip() for line in source.splitlines() if "self.tracer" in line]
    statements = {"a session": line, "tracer_of": "tracer_of(session)", "is None": "self.tracer is not None"}
    with database.read() as session:
        names = {"self": database, "_TRACER": databases._TRACER, "tracer_of": tracer_of, "session": session}  # noqa: SLF001

        def nanoseconds(statement: str) -> float:
            timed = timeit.repeat(statement, "info = {}", time.process_time, number=CALLS, repeat=5, globals=names)
            return 1e9 * statistics.median(timed) / CALLS

        empty = nanoseconds("pass")
        return {name: nanoseconds(statement) - empty for name, statement in statements.items()}


def row(name: str, milliseconds: float, ratios: list[float]) -> str:
    """Return a line of the comparison."""
    middle = statistics.median(ratios)
    return f"{name}: off {milliseconds:.3f} ms; on : off {middle:.3f} (rounds {ratios[0]:.3f} to {ratios[-1]:.3f})\n"


async def measure(off: Services, on: Services, run_id: str, options: argparse.Namespace) -> dict[str, float]:
    """Print what traces cost; return the milliseconds without."""
    tracer = on.tracer
    assert tracer is not None
    app, traced = create_app(off.settings, off), create_app(on.settings, on)
    gc.collect()
    gc.freeze()
    took = {}
    for name, without, with_traces, times in (
        ("request without a span", request(app, run_id), request(traced, run_id), options.requests),
        ("request with a span", request(app, run_id), request(traced, run_id, CALLER), options.requests),
        ("attempt", attempt(off.database, None), attempt(on.database, tracer), options.attempts),
    ):
        took[name], ratios = await compare(without, with_traces, tracer, times, options.rounds)
        sys.stdout.write(row(name, took[name], ratios))
        sys.stdout.flush()
    return took


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=300, help="of a round")
    parser.add_argument("--attempts", type=int, default=15, help="of a round")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    os.environ["OTEL_BSP_SCHEDULE_DELAY"] = NEVER
    with tempfile.TemporaryDirectory() as folder, collector() as (endpoint, count):
        off = build(Path(folder))
        codes = (Database._session.__code__, tracer_of.__code__)  # noqa: SLF001
        for _ in range(2 + 2 * (options.attempts // 10 + 1 + options.rounds * options.attempts)):
            run_id = make_run(off.database).id
        in_request = asyncio.run(calls(request(create_app(off.settings, off), run_id), *codes))
        in_attempt = asyncio.run(calls(attempt(off.database, None), *codes))
        loaded = any(name.startswith("opentelemetry.sdk") for name in sys.modules)
        sys.stdout.write(f"traces off: OpenTelemetry's SDK is {'' if loaded else 'not '}loaded\n")
        left = hooks(off.database)
        on = build(Path(folder), otlp_endpoint=endpoint, slow_request_seconds=600)
        took = asyncio.run(measure(off, on, run_id, options))
        requests, attempts = (each // 10 + 1 + each * options.rounds for each in (options.requests, options.attempts))
        assert count() == requests + 8 * attempts, "all spans have arrived"
        sys.stdout.write("left when off: " + ", ".join(f"{name} {each:.0f} ns" for name, each in left.items()) + "\n")
        for name, (sessions, looks), milliseconds in (
            ("request", in_request, took["request without a span"]),
            ("attempt", in_attempt, took["attempt"]),
        ):
            nanoseconds = sessions * left["a session"] + looks * left["tracer_of"] + left["is None"]
            share = 100 * nanoseconds / (1e6 * milliseconds)
            sys.stdout.write(f"{name}: {sessions} sessions, {looks} x tracer_of: {nanoseconds:.0f} ns, {share:.4f} %\n")
        for services in (on, off):
            if services.tracer is not None:
                services.tracer.close()
            services.database.close()


if __name__ == "__main__":
    main()
