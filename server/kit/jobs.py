"""Background jobs: rounds of due work, several jobs on one thread. docs/jobs.md explains the mechanism."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog

from ludus.backoff import Backoff
from server.kit.db.database import Database, Session
from server.kit.errors import LudusError, Unavailable
from server.kit.telemetry import ControllerTelemetry

LONGEST_PAUSE_SECONDS: Final = 10.0
"""Longest pause after failures, beyond that of the job's loop."""
RARE_SECONDS: Final = 10.0
"""Rounds that are so far apart, and handled rows, are logged."""
REPEAT_SECONDS: Final = 300.0
"""Rows that fail are logged so often for each job: the same ones fail in each round."""
Row = TypeVar("Row")
_log = structlog.get_logger(__name__)


class RowsFailed(Exception):
    """Rows of a round raised errors of their own; the others were handled."""

    def __init__(self, handled: int, errors: Mapping[str, LudusError]) -> None:
        """`handled` is the result of the others; `errors` are by row."""
        super().__init__(f"{len(errors)} rows failed")
        self.handled = handled
        self.errors = errors


@dataclass(frozen=True)
class Job:
    """Work that is due again and again."""

    name: str
    """Label of its rounds in logs and metrics."""
    work: Callable[[], int]
    """Does one round; returns how many rows it handled. A LudusError ends the round, not the process. Raises RowsFailed
    once it has handled the other rows."""
    every_seconds: float = 0.0
    """Time from the end of a round to the next one; 0: each turn of the loop has one."""
    after_seconds: float = 0.0
    """Time before the first round: a process that is started again and again does nothing of it."""
    again_seconds: float | None = None
    """Time after which a round that handled rows is followed by the next one. None: that of other rounds."""
    longest_pause_seconds: float = LONGEST_PAUSE_SECONDS
    """Longest pause after failures in a row, which double it. 0: the loop's own pause."""


class JobLoop:
    """Runs jobs in turn. One that fails delays itself alone."""

    def __init__(
        self,
        jobs: Sequence[Job],
        pause_seconds: float,
        telemetry: ControllerTelemetry | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        called: threading.Event | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """`called` begins the next turn at once when it is set. `beat` is called at the beginning of each turn."""
        self._pause = pause_seconds
        self._telemetry = telemetry or ControllerTelemetry()
        self._monotonic = monotonic
        self._called = called or threading.Event()
        self._beat = beat
        self._again = pause_seconds
        """Pause after the newest turn."""
        self._due = {job: monotonic() + job.after_seconds for job in jobs}
        self._logged = dict[Job, float]()
        """When a job's failing rows were logged last."""
        self._backoffs = {job: Backoff(pause_seconds, job.longest_pause_seconds, immediate=1) for job in jobs}

    def tick(self) -> dict[str, int]:
        """Do a round of each job that is due; return how many rows each of them handled, by name."""
        self._beat()
        self._again = self._pause
        handled = dict[str, int]()
        for job, due in self._due.items():
            began, outcome, rows = self._monotonic(), "ok", 0
            if began < due:
                continue
            try:
                rows, pause = job.work(), job.every_seconds
            except RowsFailed as error:
                rows, pause, outcome = error.handled, job.every_seconds, "rows_failed"
                if began - self._logged.get(job, -math.inf) >= REPEAT_SECONDS:
                    self._logged[job] = began
                    row, of_row = next(iter(error.errors.items()))
                    _log.warning(
                        "rows_failed",
                        job=job.name,
                        rows=len(error.errors),
                        row=row,
                        code=of_row.code,
                        error=str(of_row),
                    )
            except LudusError as error:
                outcome, pause = error.code, self._backoffs[job].pause()
                _log.warning("job_failed", job=job.name, code=error.code, error=str(error))
            if outcome in {"ok", "rows_failed"}:
                self._backoffs[job].reset()
                if rows and job.again_seconds is not None:
                    pause = job.again_seconds
                    self._again = min(pause, self._again)
            if rows and max(self._pause, job.every_seconds) >= RARE_SECONDS:
                _log.info("job_done", job=job.name, rows=rows)
            ended = self._monotonic()
            self._telemetry.rounds.labels(job.name, outcome).observe(ended - began)
            self._due[job] = ended + pause
            handled[job.name] = rows
        return handled

    def run(self, stop: threading.Event) -> None:
        """Do rounds until `stop` is set; who sets it calls `wake`, too, unless it waits for a pause."""
        while not stop.is_set():
            self.tick()
            self._called.wait(self._again)
            self._called.clear()

    def wake(self) -> None:
        """Begin the next turn at once. Waits for nothing; safe to call from any thread."""
        self._called.set()


def handle_rows(
    database: Database, due: Callable[[Session], Sequence[Row]], handle: Callable[[Session, Row], int]
) -> int:
    """Read what is due, then handle each row in a writing transaction of its own; return the sum of the results.

    `handle` locks the row first (`FOR UPDATE SKIP LOCKED`; SQLite's writing transactions exclude each other anyway) and
    looks again: another process may have the row, or have done the work since. A row that raises an error of its own
    is left for the next round: raises RowsFailed once all others were handled. An outage ends the round.
    """
    with database.read() as session:
        rows = due(session)
    handled, errors = 0, dict[str, LudusError]()
    for row in rows:
        try:
            with database.write() as session:
                handled += handle(session, row)
        except Unavailable:
            raise
        except LudusError as error:
            errors[str(row)] = error
    if errors:
        raise RowsFailed(handled, errors)
    return handled
