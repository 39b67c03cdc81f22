"""Makers of things that tests need: plain functions with defaults that keyword arguments override."""

import time
from typing import Any

from sqlalchemy import select

from ludus.config.run import RunConfig
from ludus.schemas.states import RunState
from server.checkpoints.models import Checkpoint
from server.checkpoints.refs import NewCheckpoint
from server.kit.db.database import Database
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim, RunQueue
from server.lifecycle.service import RunService
from server.metrics.models import MetricTail
from server.metrics.points import Points
from server.metrics.repository import MetricRepository, PackingRepository
from server.runs.models import Run
from server.runs.repository import NewRun, RunRepository

CONFIG: dict[str, Any] = {"behaviors": {"CartPole": {"trainer_type": "ppo"}}, "seed": 7}
LEASE_SECONDS = 10.0
FIRST = 1_000_000
"""A priority that puts a run before all others of its project."""


class RecordingWakeUp:
    """Records the runs for which workers were to be woken."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.kinds: list[str | None] = []
        """Of the slots that each of them was for."""
        self.unheard = 0
        self.deaf: set[str] = set()
        """Kinds with a message that no slot has heard."""

    def wake(self, run_id: str, kind: str | None = None) -> None:
        """Record a wake-up."""
        self.woken.append(run_id)
        self.kinds.append(kind)

    def ping(self) -> None:
        """Answer."""

    def pending(self, kind: str | None = None) -> int:
        """Return how many messages no worker has heard, as the test set it."""
        return self.unheard if kind is None else int(kind in self.deaf)


def make_run(database: Database, wake_up: RecordingWakeUp | None = None, **overrides: Any) -> Run:
    """Queue a run."""
    config = overrides.pop("config", CONFIG)
    with database.write() as session:
        return RunService(session, wake_up or RecordingWakeUp()).create(
            NewRun(RunConfig.model_validate(config), **overrides)
        )


def make_claim(database: Database, worker_id: str = "worker-1", lease_seconds: float = LEASE_SECONDS) -> Claim:
    """Claim the best run that waits; there must be one."""
    claim = RunQueue(database).claim(worker_id, lease_seconds)
    assert claim is not None
    return claim


def claim_run(database: Database, run_id: str, worker_id: str = "host/1/1", lease_seconds: float = 600) -> Claim:
    """Claim this run, although others may wait: in a database that tests share they have left some there."""
    with database.write() as session:
        run = session.get_one(Run, run_id)
        priority, run.priority = run.priority, FIRST
    claim = RunQueue(database).claim(worker_id, lease_seconds)
    assert claim is not None
    assert claim.run_id == run_id
    with database.write() as session:
        session.get_one(Run, run_id).priority = priority
    return claim


def make_ledger(database: Database, *, state: RunState = RunState.RUNNING, **overrides: Any) -> AttemptLedger:
    """Queue and claim a run, and move it to STARTING or RUNNING."""
    make_run(database, **overrides)
    ledger = AttemptLedger(database, make_claim(database))
    if state is RunState.RUNNING:
        ledger.move(RunState.RUNNING)
    return ledger


def make_checkpoint(step: int = 1000, **overrides: Any) -> NewCheckpoint:
    """Describe a checkpoint without files."""
    values: dict[str, Any] = {
        "step": step,
        "steps": {"CartPole": step},
        "reason": "interval",
        "path": f"runs/x/1/checkpoints/{step}",
        "files": [],
        "metrics": {"CartPole": 20.0},
    }
    return NewCheckpoint(**{**values, **overrides})


def save_checkpoints(database: Database, *steps: int, **overrides: Any) -> list[str]:
    """Have a run of its own, `trained`, save checkpoints; return their ids."""
    run_id = make_run(database, name="trained", **overrides).id
    ledger = AttemptLedger(database, claim_run(database, run_id))
    return [ledger.checkpoints.add(make_checkpoint(step, path=f"runs/a/{step}")) for step in steps]


def give_up(database: Database, checkpoint_id: str) -> None:
    """Have retention give a checkpoint up; its files are still there."""
    with database.write() as session:
        session.get_one(Checkpoint, checkpoint_id).deleted_at = time.time()


def pack_metrics(database: Database, *runs: str) -> None:
    """Pack the tails of these runs, by default of all, as the controller does sooner or later."""
    with database.write() as session:
        ids = session.scalars(select(MetricTail.run_id).distinct()).all()
        for run_id in [RunRepository(session).id_of(run) for run in runs] or ids:
            while PackingRepository(session).pack(run_id):
                pass


def read_metric(database: Database, run: str, behavior: str, key: str) -> Points:
    """Return the points of a metric that no later attempt superseded; none where there is no such metric."""
    with database.read() as session:
        run_id = RunRepository(session).id_of(run)
        metrics = MetricRepository(session).by_attempt([run_id], [key], behavior)
    return Points.joined([points for by_attempt in metrics.values() for points in by_attempt.values()])


def read_run(database: Database, run: str) -> Run:
    """Return a run as it is now."""
    with database.read() as session:
        return RunRepository(session).get(run)
