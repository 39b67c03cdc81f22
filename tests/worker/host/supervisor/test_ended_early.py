"""Each way in which an attempt ends early leaves a reason of its own: with the attempt, events, the run, the log."""

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import select, text

from ludus.config.run import RunConfig
from ludus.schemas.states import RunState
from server.checkpoints.models import Checkpoint
from server.checkpoints.service import CheckpointService
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.errors import InvalidConfig, LeaseLost, StorageFull, StorageRefused, StorageUnavailable
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.leases.repository import LeaseRepository
from server.lifecycle.service import RunService
from server.runs.events.repository import EventRepository
from server.runs.models import Attempt, Event, Run
from server.runs.repository import NewRun, RunRepository
from tests.factories import RecordingWakeUp, make_claim, make_run, read_run
from tests.waiting import eventually
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.supervising import (
    BEAT_SECONDS,
    LEASE_SECONDS,
    Separate,
    Threaded,
    messages_of,
    supervise,
    with_checkpoints,
)
from worker.host import resources
from worker.host.process import WarmTrainer
from worker.host.supervisor import job
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
        Separate(trainers.is_killed, kills=0), "trainer_lost", "ended unexpectedly (signal SIGKILL, not sent by Ludus)"
    ),
    "never listens": Way(
        SLOW,
        "trainer_lost",
        "took more than 0.5 s to start (LUDUS_WORKER__STARTUP_SECONDS)",
        {"startup_seconds": 0.5},
    ),
    "silent": Way(
        MUTE,
        "trainer_lost",
        "reported nothing for 0.5 s (LUDUS_WORKER__SILENCE_SECONDS)",
        {"silence_seconds": 0.5},
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


def with_counts(way: Way, counts: Path) -> Way:
    """Tell a trainer that the kernel kills where the kernel's counts are."""
    trainer = way.trainer
    return replace(way, trainer=trainer.with_arguments(counts=str(counts))) if "kills" in trainer.arguments else way


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


@pytest.mark.parametrize("name", WAYS)
def test_each_way_in_which_a_trainer_is_ended_records_its_own_reason(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    counts = tmp_path / "memory.events"
    way = with_counts(WAYS[name], counts)
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


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.outcome != "released"])
def test_a_run_whose_restart_budget_is_spent_fails_for_the_reason_that_spent_it(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    counts = tmp_path / "memory.events"
    counts.write_text("oom_kill 0\n")
    monkeypatch.setattr(resources, "KERNEL_COUNTS", (counts,))
    way = with_counts(WAYS[name], counts)
    make_run(database, name="run")
    with database.write() as session:
        session.execute(text("UPDATE runs SET restarts_without_progress = 3"))

    supervised(database, tmp_path, way)

    run = read_run(database, "run")
    assert (run.state, run.stop_reason) == (RunState.FAILED, way.outcome)
    assert way.says in (run.stop_detail or "")


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


@pytest.mark.long
def test_a_real_trainer_that_outgrows_a_small_limit_leaves_that_reason_everywhere(
    database: Database, tmp_path: Path
) -> None:
    config = {"behaviors": {"Corridor": {"hyperparameters": {"batch_size": 32, "buffer_size": 64}}}, "seed": 1}
    make_run(database, name="run", config=config)
    claim = make_claim(database, lease_seconds=60)
    settings = WorkerSettings(lease_seconds=60, heartbeat_seconds=1.0, trainer_memory_bytes=2**20)
    supervisor = Supervisor(
        claim,
        AttemptLedger(database, claim),
        FolderStore(tmp_path / "artifacts"),
        settings,
        tmp_path / "scratch",
        GatewaySettings(),
        lambda: False,
    )
    warm = WarmTrainer()
    try:
        supervisor.run(warm)
    finally:
        warm.close()

    run = read_run(database, "run")
    with database.read() as session:
        attempt = session.get_one(Attempt, (run.id, 1))
    events = events_of(database)
    logs = "".join(file.read_text() for file in (tmp_path / "artifacts").rglob("trainer.log"))
    assert (run.state, attempt.outcome) == (RunState.RECOVERING, "memory_limit")
    assert "may hold 1 MiB" in (attempt.detail or "")
    assert {"trainer_over_memory_limit", "run_recovering"} <= {event.type for event in events}
    assert "trainer_finished" in logs
    assert "may hold 1 MiB" in logs
    everything = logs + "".join(event.message for event in events)
    assert "shutting down" not in everything


def files_of(folder: Path) -> dict[str, Path]:
    return {file.parent.name: file for file in (folder / "artifacts").rglob("state.json")}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def begin_with(database: Database, checkpoint: str, name: str) -> None:
    """Queue a run that begins with a checkpoint. Raises InvalidConfig."""
    document = {"behaviors": {"CartPole": {"trainer_type": "ppo", "initialize_from": checkpoint}}}
    with database.write() as session:
        config = RunConfig.model_validate(document)
        named = CheckpointService(session).check(config, lock=True)
        RunService(session, RecordingWakeUp()).create(NewRun(config, name=name, checkpoints=named))


def outcomes(database: Database) -> list[str | None]:
    """Return how the attempts of the run ended, in order."""
    with database.read() as session:
        attempts = RunRepository(session).attempts(read_run(database, "run").id)
        return [attempt.outcome for attempt in attempts]


def damaged(database: Database) -> set[str]:
    with database.read() as session:
        return {row.id for row in session.scalars(select(Checkpoint)) if row.damaged_at is not None}


@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
def test_recovery_begins_with_the_newest_checkpoint_that_is_good(
    database: Database, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    store = FolderStore(tmp_path / "artifacts")
    ids = with_checkpoints(database, store, tmp_path, [100, 200, 300])
    for name in ("200", "300"):
        harm(files_of(tmp_path)[name])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    events = messages_of(database)
    assert events["resumed"] == "100"
    assert ids[1] in events["checkpoint_damaged"]
    assert "state.json" in events["checkpoint_damaged"]
    assert damaged(database) == set(ids[1:])
    with database.read() as session:
        given_up = session.scalars(select(Event).where(Event.type == "checkpoint_damaged").order_by(Event.seq)).all()
        assert [(event.data or {})["checkpoint_id"] for event in given_up] == [ids[2], ids[1]]
        assert {((event.data or {})["resumed_from"], (event.data or {})["resume_step"]) for event in given_up} == {
            (ids[0], 100)
        }


class FaultyStore(FolderStore):
    """A store that fails, for each checkpoint with as many errors as are given for it, in order.

    `faults`: by the last part of the checkpoints' paths. None: this time the files can be read.
    """

    def __init__(self, root: Path, **faults: Iterable[Exception | None]) -> None:
        super().__init__(root)
        self._faults = {name.strip("_"): iter(errors) for name, errors in faults.items()}

    def _file(self, path: str) -> Path:
        error = next(self._faults.get(path.split("/")[-2], iter(())), None)
        if error is not None:
            raise error
        return super()._file(path)


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "state.json")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_checkpoint_that_cannot_be_read_is_damaged_if_another_one_can(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    store = FaultyStore(tmp_path / "artifacts", _200=repeat(os_error(number)), _300=repeat(os_error(number)))
    ids = with_checkpoints(database, store, tmp_path, [100, 200, 300])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    events = messages_of(database)
    assert events["resumed"] == "100"
    assert os.strerror(number) in events["checkpoint_damaged"]
    assert damaged(database) == set(ids[1:])


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read where it begins")
def test_a_checkpoint_with_a_bad_sector_is_damaged(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BadSector(FolderStore):
        def _file(self, path: str) -> Path:
            return Path("/proc/self/mem") if "/200/" in path else super()._file(path)

    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    store = BadSector(tmp_path / "artifacts")
    ids = with_checkpoints(database, store, tmp_path, [100, 200])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    assert messages_of(database)["resumed"] == "100"
    assert damaged(database) == {ids[1]}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_checkpoint_that_can_be_read_again_while_an_older_one_is_fetched_is_used(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    once = [os_error(number)]
    store = FaultyStore(tmp_path / "artifacts", _200=once, _300=once)
    with_checkpoints(database, store, tmp_path, [100, 200, 300])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    assert messages_of(database)["resumed"] == "300"
    assert damaged(database) == set()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StorageUnavailable("s3://ludus says SlowDown: reduce your request rate"), "released"),
        (os_error(errno.EMFILE), "released"),
        (StorageRefused("it does not take the keys (ExpiredToken)", "mend the access key"), "storage_unavailable"),
    ],
    ids=["throttled", "too many open files", "keys expired"],
)
def test_a_fault_of_the_whole_store_makes_no_checkpoint_damaged_and_the_next_attempt_uses_the_newest(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: str
) -> None:
    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    store = FaultyStore(tmp_path / "artifacts", _200=[error])
    with_checkpoints(database, store, tmp_path, [100, 200])

    for _ in range(2):
        supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    assert outcomes(database)[1] == outcome
    assert messages_of(database)["resumed"] == "200"
    assert damaged(database) == set()


@pytest.mark.parametrize(
    ("number", "outcome"), [(errno.EACCES, "storage_unavailable"), (errno.EIO, "released")], ids=["refused", "away"]
)
@pytest.mark.parametrize("before", [[], [None]], ids=["at once", "after the older one was read"])
def test_a_store_from_which_nothing_can_be_read_makes_no_checkpoint_damaged(
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: list[None],
    number: int,
    outcome: str,
) -> None:
    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    older = chain(before, repeat(os_error(number)))
    store = FaultyStore(tmp_path / "artifacts", _100=older, _200=repeat(os_error(number)))
    with_checkpoints(database, store, tmp_path, [100, 200])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    assert read_run(database, "run").state == RunState.RECOVERING, "another worker may read them"
    assert damaged(database) == set()
    assert outcomes(database)[-1] == outcome


@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
def test_a_run_that_names_a_damaged_checkpoint_fails_at_once_and_no_other_run_may_name_it(
    database: Database, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    store = FolderStore(tmp_path / "artifacts")
    (checkpoint,) = with_checkpoints(database, store, tmp_path, [100])
    with database.write() as session:
        RunService(session, RecordingWakeUp()).cancel("run")
    begin_with(database, checkpoint, "next")
    harm(files_of(tmp_path)["100"])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    ended = read_run(database, "next")
    assert (ended.state, ended.stop_reason, ended.attempt) == (RunState.FAILED, "checkpoint_damaged", 1)
    assert f"checkpoint {checkpoint}, which is damaged: state.json" in (ended.stop_detail or "")
    with pytest.raises(InvalidConfig, match=f"checkpoint {checkpoint} is damaged"):
        begin_with(database, checkpoint, "third")


def test_a_run_whose_checkpoints_are_all_damaged_fails_and_says_so(database: Database, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "artifacts")
    with_checkpoints(database, store, tmp_path, [100, 200])
    for file in files_of(tmp_path).values():
        flip(file)

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    run = read_run(database, "run")
    assert (run.state, run.stop_reason) == (RunState.FAILED, "checkpoint_damaged")
    assert "none of the run's checkpoints can be restored" in (run.stop_detail or "")
    assert "resumed" not in messages_of(database)


BEGINNINGS = {
    "resume_from": {"behaviors": {"CartPole": {}}, "checkpoint_settings": {"resume_from": "CHECKPOINT"}},
    "initialize_from": {"behaviors": {"CartPole": {"initialize_from": "CHECKPOINT"}}},
}
"""Configurations of runs that begin with a checkpoint."""


def successor(database: Database, folder: Path, document: dict[str, Any]) -> str:
    """Queue `run`, which begins with a checkpoint of the run `first` and has one of its own; return that of `first`.

    The file of the first one is damaged then.
    """
    store = FolderStore(folder / "artifacts")
    (checkpoint,) = with_checkpoints(database, store, folder, [100], name="first")
    with database.write() as session:
        RunService(session, RecordingWakeUp()).cancel("first")
    config = json.loads(json.dumps(document).replace("CHECKPOINT", checkpoint))
    with_checkpoints(database, store, folder, [200], name="run", config=config, checkpoints=[checkpoint])
    flip(files_of(folder)["100"])
    return checkpoint


@pytest.mark.parametrize("key", BEGINNINGS)
def test_a_run_that_resumes_from_its_own_checkpoint_does_not_need_the_one_that_it_began_with(
    database: Database, tmp_path: Path, key: str
) -> None:
    successor(database, tmp_path, BEGINNINGS[key])

    supervise(database, tmp_path, Threaded(trainers.resumes))

    assert messages_of(database)["resumed"] == "200"
    assert damaged(database) == set()


@pytest.mark.parametrize(
    "behaviors",
    [
        {"CartPole": {"self_play": {"opponents": ["CHECKPOINT"]}}},
        {"CartPole": {}, "Later": {"initialize_from": "CHECKPOINT"}},
    ],
    ids=["an opponent", "a behavior that is not saved yet"],
)
def test_a_run_that_resumes_fails_of_a_damaged_checkpoint_that_it_still_needs(
    database: Database, tmp_path: Path, behaviors: dict[str, Any]
) -> None:
    checkpoint = successor(database, tmp_path, {"behaviors": behaviors})

    supervise(database, tmp_path, Threaded(trainers.resumes))

    assert read_run(database, "run").stop_reason == "checkpoint_damaged"
    assert damaged(database) == {checkpoint}
