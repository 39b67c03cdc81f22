"""The progress of runs, computed when they are read: a few queries for all runs of a list."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import InstrumentedAttribute

from ludus.schemas import STEPS_PER_SECOND
from ludus.schemas.states import RunState
from server.kit.db.clock import now
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository
from server.kit.states import LEASED
from server.metrics.repository import MetricRepository
from server.runs.models import Run
from server.simulators.models import Simulator
from server.simulators.repository import CONNECTED

Value = TypeVar("Value")
STANDSTILL_SECONDS: Final = 60.0
"""A run whose step has not changed for so long stands still: heartbeats write it every few seconds."""
SUMMARY_SECONDS: Final = 1800.0
"""A behavior whose newest summary is older is not counted: it has reached its `max_steps`, or stands still."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run, in the fields of `ludus.schemas.RunSummary`."""

    max_steps: int | None
    steps_per_second: float | None
    finishes_at: float | None
    """Seconds since 1970."""
    simulators: int
    findings: tuple[str, ...]


class ProgressRepository(Repository):
    """Reads the progress of runs."""

    def of(self, runs: Sequence[Run]) -> Mapping[str, Progress]:
        """Return the progress of runs by their ids."""
        simulators = self._simulators([run.id for run in runs if run.state in LEASED])
        speeds = self._speeds([run.id for run in runs if run.state == RunState.RUNNING])
        stored = self._stored([run.id for run in runs])
        return {run.id: _progress(run, *stored[run.id], speeds.get(run.id), simulators.get(run.id, 0)) for run in runs}

    def _stored(self, run_ids: Sequence[str]) -> Mapping[str, tuple[int | None, tuple[str, ...]]]:
        """Return `max_steps` and the codes of findings. A list sorts thousands of rows without them (`BEHIND`)."""
        query = select(Run.id, Run.max_steps, Run.health)
        return {
            run_id: (max_steps, tuple(dict.fromkeys(finding["code"] for finding in health or ())))
            for part in parts(run_ids)
            for run_id, max_steps, health in self._session.execute(query.where(Run.id.in_(part)))
        }

    def _simulators(self, run_ids: Sequence[str]) -> Mapping[str, int]:
        """Return how many simulators are connected, without the runs that have none."""
        query = select(Simulator.run_id, func.count()).where(Simulator.state == CONNECTED).group_by(Simulator.run_id)
        return self._by_run(query, Simulator.run_id, run_ids)

    def _speeds(self, run_ids: Sequence[str]) -> Mapping[str, float]:
        """Return the agent steps per second of all behaviors together, without the runs of which it is unknown."""
        moving = select(Run.id, now()).where(Run.updated_at >= now() - STANDSTILL_SECONDS)
        clocks = self._by_run(moving, Run.id, run_ids)
        speeds: defaultdict[str, float] = defaultdict(float)
        for newest in MetricRepository(self._session).newest(list(clocks), [STEPS_PER_SECOND]).values():
            if newest.value is not None and newest.at >= clocks[newest.run_id] - SUMMARY_SECONDS:
                speeds[newest.run_id] += newest.value
        return speeds

    def _by_run(
        self, query: Select[str, Value], column: InstrumentedAttribute[str], run_ids: Sequence[str]
    ) -> Mapping[str, Value]:
        """Return the second value of each row by its first, the id of one of the runs; `column` has the id."""
        return {
            run_id: value
            for part in parts(run_ids)
            for run_id, value in self._session.execute(query.where(column.in_(part)))
        }


def _progress(
    run: Run, max_steps: int | None, findings: tuple[str, ...], speed: float | None, simulators: int
) -> Progress:
    remaining = None if max_steps is None else max_steps - run.step
    # From the time of the step, so that two answers without a step between them are the same (and have one ETag).
    end = None if not speed or remaining is None or remaining <= 0 else float(round(run.updated_at + remaining / speed))
    return Progress(max_steps, speed, end, simulators, findings)
