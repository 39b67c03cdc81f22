"""Each way in which an attempt ends early leaves a reason of its own: with the attempt, events, the run, the log."""

import errno
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import text

from ludus.schemas.states import RunState
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.errors import LeaseLost, StorageFull, StorageRefused
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.leases.repository import LeaseRepository
from server.runs.events.repository import EventRepository
from server.runs.models import Attempt, Run
from tests.factories import make_claim, make_run, read_run
from tests.waiting import eventually
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.supervising import BEAT_SECONDS, LEASE_SECONDS, Separate
from worker.host import resources
from worker.host.supervisor.lease import Lease
from worker.host.supervisor.loop import Supervisor


@dataclass(frozen=True)
class Way:
    """A way in which an attempt ends."""

    trainer: Separate
    outcome: str
    """Recorded with the attempt, and where the restart budget is spent with the run."""
    says: str
    settings: dict[str, Any] | None = None
    stopping: bool = False
    """Whether the worker shuts down once the trainer listens."""


TALKS = Separate(trainers.speaks, listens=True, talks=True)
SLOW = Separate(trainers.speaks, listens=False, talks=False)
MUTE = Separate(trainers.speaks, listens=True, talks=False)
DEAF = Separate(trainers.ignores)
WAYS = {
    "the worker shuts down": Way(TALKS, "released", "handed back", stopping=True),
    "more memory than it may hold": Way(TALKS, "memory_limit", "may hold 1 MiB", {"trainer_memory_bytes": 2**20}),
    "more memory, and then deaf": Way(
        DEAF,
        "memory_limit",
        "may hold 1 MiB. Then the trainer took more than 1 s for its last checkpoint (LUDUS_WORKER__STOP_SECONDS).",
        {"trainer_memory_bytes": 2**20, "stop_seconds": 1.0},
    ),
    "killed by the kernel for want of memory": Way(
        Separate(trainers.is_killed, kills=1), "memory_limit", "the kernel killed the trainer for want of memory"
    ),
    "killed by somebody": Way(
        Separate(trainers.is_killed, kills=0), "trainer_lost", "(signal SIGKILL, not sent by Ludus): its log says more"
    ),
    "never listens": Way(
        SLOW, "trainer_lost", "took more than 0.5 s to start (LUDUS_WORKER__STARTUP_SECONDS)", {"startup_seconds": 0.5}
    ),
    "silent": Way(
        MUTE, "trainer_lost", "reported nothing for 0.5 s (LUDUS_WORKER__SILENCE_SECONDS)", {"silence_seconds": 0.5}
    ),
    "deaf while the worker shuts down": Way(
        DEAF,
        "trainer_lost",
        "took more than 1 s for its last checkpoint (LUDUS_WORKER__STOP_SECONDS)",
        {"stop_seconds": 1.0},
        stopping=True,
    ),
    "an error of its own": Way(Separate(trainers.fails), "trainer_error", "ZeroDivisionError: division by zero"),
}


def supervised(
    database: Database, folder: Path, way: Way, ledger: type[AttemptLedger] = AttemptLedger
) -> tuple[Attempt, list[Any], list[Any]]:
    """Execute an attempt; return it, the run's events, and what the supervisor has logged."""
    claim = make_claim(database, lease_seconds=LEASE_SECONDS)
    settings = WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=BEAT_SECONDS, **(way.settings or {}))

    def stopping() -> bool:
        return way.stopping and any(event.type == "trainer_listening" for event in events_of(database))

    supervisor = Supervisor(
        claim,
        ledger(database, claim),
        FolderStore(folder / "artifacts"),
        settings,
        folder / f"scratch-{claim.attempt}",
        GatewaySettings(),
        stopping,
    )
    with structlog.testing.capture_logs() as logged:
        supervisor.run(way.trainer)
    with database.read() as session:
        return session.get_one(Attempt, (claim.run_id, claim.attempt)), events_of(database), logged


def events_of(database: Database) -> list[Any]:
    with database.read() as session:
        return list(EventRepository(session).page(read_run(database, "run").id, limit=1000))


@pytest.mark.long
@pytest.mark.parametrize("name", WAYS)
def test_each_way_in_which_a_trainer_is_ended_records_its_own_reason(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    counts = tmp_path / "memory.events"
    way = WAYS[name]
    if "kills" in way.trainer.arguments:
        way = replace(way, trainer=way.trainer.with_arguments(counts=str(counts)))
    counts.write_text("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
    monkeypatch.setattr(resources, "KERNEL_COUNTS", (counts, tmp_path / "none"))
    make_run(database, name="run")

    attempt, events, logged = supervised(database, tmp_path, way)

    assert (attempt.outcome, way.says in (attempt.detail or "")) == (way.outcome, True), attempt.detail
    (recovering,) = [event for event in events if event.type == "run_recovering"]
    assert (recovering.data["outcome"], recovering.message) == (way.outcome, attempt.detail)
    (ended,) = [entry for entry in logged if entry["event"] == "attempt_ended"]
    assert ended["detail"] == attempt.detail
    assert "shutting down" not in (attempt.detail or "")
    for event in events:
        if event.type == "trainer_over_memory_limit":
            assert event.data["bytes"] > event.data["limit_bytes"] == 2**20


def test_a_run_whose_restart_budget_is_spent_fails_for_the_reason_that_spent_it(
    database: Database, tmp_path: Path
) -> None:
    make_run(database, name="run")
    with database.write() as session:
        session.execute(text("UPDATE runs SET restarts_without_progress = 3"))

    supervised(database, tmp_path, WAYS["never listens"])

    run = read_run(database, "run")
    assert (run.state, run.stop_reason) == (RunState.FAILED, "trainer_lost")
    assert WAYS["never listens"].says in (run.stop_detail or "")


@pytest.mark.parametrize(
    ("error", "state", "outcome"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), RunState.RECOVERING, "storage_full"),
        (OSError(errno.EACCES, "Permission denied"), RunState.RECOVERING, "trainer_lost"),
        (StorageRefused("403", "let it"), RunState.RECOVERING, "storage_unavailable"),
        (StorageFull("runs/x"), RunState.FAILED, "storage_full"),
    ],
    ids=["the worker's disk is full", "the worker's host fails", "the store refuses", "the store is full"],
)
def test_what_keeps_an_attempt_from_beginning_is_the_reason_that_is_recorded(
    database: Database, tmp_path: Path, error: Exception, state: RunState, outcome: str
) -> None:
    class Begins(AttemptLedger):
        def demonstrations(self) -> Any:
            raise error

    make_run(database, name="run")

    attempt, _events, _logged = supervised(database, tmp_path, Way(TALKS, "", ""), Begins)

    assert (read_run(database, "run").state, attempt.outcome) == (state, outcome)
    assert str(error) in (attempt.detail or "")


def test_a_configuration_with_keys_of_a_newer_release_ends_the_attempt_with_what_to_do(
    database: Database, tmp_path: Path
) -> None:
    make_run(database, name="run")
    with database.write() as session:
        run = session.get_one(Run, read_run(database, "run").id)
        run.config = {**run.config, "simulators": {"colour": "green"}}

    attempt, _events, _logged = supervised(database, tmp_path, Way(TALKS, "", ""))

    assert (read_run(database, "run").state, attempt.outcome) == (RunState.RECOVERING, "trainer_error")
    assert attempt.detail == (
        "this worker cannot read the run's configuration (simulators.colour: is not known here): its release is "
        "older than that of the api that stored it; upgrade the worker"
    )


@pytest.mark.long
def test_an_attempt_whose_lease_is_lost_writes_nothing_and_logs_why(database: Database, tmp_path: Path) -> None:
    make_run(database, name="run")

    def take_away() -> None:
        eventually(lambda: any(event.type == "trainer_listening" for event in events_of(database)))
        reaped = None
        while reaped is None:  # a run that the supervisor is just writing to is left for another time
            with database.write() as session:  # one transaction: the supervisor renews its lease every moment
                session.execute(text("UPDATE leases SET expires_at = 1"))
                leases = LeaseRepository(session)
                reaped = leases.reap(leases.expired()[0], 3)

    thief = threading.Thread(target=take_away)
    thief.start()
    attempt, _events, logged = supervised(database, tmp_path, Way(TALKS, "", ""))
    thief.join()

    assert attempt.outcome == "lease_expired"
    (lost,) = [entry for entry in logged if entry["event"] == "lease_lost"]
    assert "no longer holds run" in lost["reason"]


def test_a_worker_that_gives_up_on_its_database_says_so(database: Database) -> None:
    make_run(database, name="run")
    claim = make_claim(database, lease_seconds=LEASE_SECONDS)
    settings = WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=BEAT_SECONDS, outage_seconds=0.5)
    ledger = AttemptLedger(Database("postgresql+psycopg://nobody@127.0.0.1:9/none"), claim)

    lease = Lease(claim, ledger, settings)
    time.sleep(0.5)  # allow: sleep, because the outage lasts as long as the worker puts up with
    with pytest.raises(LeaseLost, match=r"the database has not answered for 0.5 s \(LUDUS_WORKER__OUTAGE_SECONDS\)"):
        lease.keep()
