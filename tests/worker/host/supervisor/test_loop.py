"""The supervisor's side of an attempt, with a trainer that does as a test wants."""

import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import psutil
import pytest
from sqlalchemy import select

from server.checkpoints.models import Checkpoint
from server.kit.artifacts import FileRef, FolderStore
from server.kit.db.database import Database
from server.kit.db.frozen import frozen_writer
from server.kit.errors import StorageUnavailable
from server.kit.settings import WorkerSettings
from server.ladders.models import LadderMatch, LadderSeat
from server.runs.amendments.repository import AmendmentRepository
from server.runs.amendments.schemas import RunChanges
from server.runs.amendments.service import AmendmentService
from server.runs.attempts.claim import Claim
from server.runs.attempts.repository import AttemptLedger
from server.runs.checkpoint_requests.repository import CheckpointRequestRepository
from server.runs.checkpoint_requests.service import CheckpointRequestService
from server.runs.environment_parameters.repository import ParameterRepository
from server.runs.events.repository import EventRepository
from server.runs.leases.repository import LeaseRepository
from server.runs.models import Attempt, Event
from server.runs.service import RunService
from server.runs.states import RunKind, RunState
from tests.factories import RecordingBell, make_checkpoint, make_claim, make_run, read_run
from tests.worker.host.supervisor.supervising import BEAT_SECONDS, LEASE_SECONDS, Scripted
from worker.host.supervisor import copies
from worker.host.supervisor.loop import Supervisor

LINGERS = f"""
import socket, sys, time
from worker.trainer.link import Finished, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), print)
job = link.await_job()
link.start(job.lease_seconds)
link.post(Finished(outcome="succeeded", reason="completed", detail="all is learnt"))
link.close()
time.sleep({LEASE_SECONDS + 1})
"""
"""A trainer whose interpreter takes its time to end, as one that has imported torch does on a busy machine."""


DIES = """
import pathlib, socket, sys
from worker.trainer.link import CheckpointWritten, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), print)
job = link.await_job()
link.start(job.lease_seconds)
folder = pathlib.Path(job.scratch) / "checkpoint-1"
folder.mkdir()
(folder / "state.json").write_text("{}")
steps, metrics = {"Walker": 7}, {"Walker": 1.0}
link.post(CheckpointWritten(folder=str(folder), step=7, steps=steps, reason="interval", keep=5, metrics=metrics))
link.close()
sys.exit(9)
"""
"""A trainer that dies when it has written a checkpoint."""


PLAYS = """
import socket, sys
from worker.trainer.link import Finished, Match, MatchesPlayed, Seat, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), print)
job = link.await_job()
link.start(job.lease_seconds)
seats = [
    Seat(behavior="Striker", team=0, snapshot=None, step=500),
    Seat(behavior="Striker", team=1, snapshot=3, step=300),
]
for number, outcome in enumerate(["win", "loss"], 1):
    match = Match(
        number=number, behavior="Striker", simulator=7, at=1000.0 + number, step=500, seats=seats, outcome=outcome,
        truncated=False, rated=True, elo=1200.5,
    )
    link.post(MatchesPlayed(matches=[match]))
link.post(Finished(outcome="succeeded", reason="completed"))
link.close()
"""
"""A trainer whose policy wins a match and loses one."""


class SlowStore(FolderStore):
    """A store whose disk takes longer than a lease."""

    def publish(self, source: Path, path: str) -> list[FileRef]:
        if source.is_dir():
            time.sleep(LEASE_SECONDS + 1)
        return super().publish(source, path)


def supervise(
    database: Database,
    store: FolderStore,
    scratch: Path,
    program: str,
    *,
    ledger: type[AttemptLedger] = AttemptLedger,
    **settings_: Any,
) -> list[object]:
    """Execute a run with a trainer that does as a program says; return the leases that ran out meanwhile."""
    claim = make_claim(database, lease_seconds=LEASE_SECONDS)
    settings = WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=BEAT_SECONDS, **settings_)
    supervisor = Supervisor(claim, ledger(database, claim), store, settings, scratch, None, lambda: False)
    supervising = threading.Thread(target=supervisor.run, args=(Scripted(program),))
    supervising.start()

    expired: list[object] = []
    while supervising.is_alive():
        with database.read() as session:
            expired += LeaseRepository(session).expired()
        supervising.join(0.05)
    return expired


def test_a_run_is_not_taken_away_while_its_finished_trainer_ends(database: Database, tmp_path: Path) -> None:
    make_run(database, name="run")

    expired = supervise(database, FolderStore(tmp_path / "artifacts"), tmp_path / "scratch", LINGERS)

    assert expired == []
    assert read_run(database, "run").state == RunState.SUCCEEDED


def test_a_run_is_not_taken_away_while_the_last_checkpoint_of_a_dead_trainer_is_copied(
    database: Database, tmp_path: Path
) -> None:
    make_run(database, name="run")

    expired = supervise(database, SlowStore(tmp_path / "artifacts"), tmp_path / "scratch", DIES)

    assert expired == []
    with database.read() as session:
        (stored,) = session.scalars(select(Checkpoint)).all()
        assert stored.step == 7
    assert read_run(database, "run").state == RunState.RECOVERING


OBEYS = """
import socket, sys, threading, time
from worker.trainer.link import EditParameters, Finished, ParameterStates, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), print)
job = link.await_job()
link.start(job.lease_seconds)
edits = []
while len(edits) < 2:
    time.sleep(0.02)
    for message in link.commands():
        assert isinstance(message, EditParameters), message
        for edit in message.edits:
            edits.append(edit)
            state = {"name": edit.parameter, "lesson": edit.lesson or 1, "lessons": 3, "lesson_name": str(edit.value)}
            state |= {"value": 1.0, "waits_for": f"edit {edit.seq}"}
            link.post(ParameterStates(parameters=[state], edit=edit.seq))
time.sleep(0.5)
assert link.commands() == [], "each edit is passed on once"
link.post(Finished(outcome="succeeded", reason="completed"))
link.close()
"""
"""A trainer that carries two edits out, and says so."""


def test_what_users_want_of_parameters_reaches_the_trainer_and_its_word_the_database(
    database: Database, tmp_path: Path
) -> None:
    run = make_run(database, name="run")
    with database.write() as session:
        ParameterRepository(session).add(run.id, "wall", {"lesson": 2})
    later = threading.Timer(0.7, ask_for, (database, run.id, {"value": 9.5}))
    later.start()

    supervise(database, FolderStore(tmp_path / "artifacts"), tmp_path / "scratch", OBEYS)

    later.join()
    with database.read() as session:
        told = ParameterRepository(session).of_run(run.id)
        assert told is not None
        assert told.edit == 2
        assert told.parameters[0]["waits_for"] == "edit 2"
        assert told.parameters[0]["lesson_name"] == "9.5"
    assert read_run(database, "run").state == RunState.SUCCEEDED


def ask_for(database: Database, run: str, change: dict[str, object]) -> None:
    with database.write() as session:
        ParameterRepository(session).add(run, "wall", change)


def test_matches_that_a_trainer_reports_are_in_the_ledger_when_its_run_has_ended(
    database: Database, tmp_path: Path
) -> None:
    make_run(database, name="run")

    supervise(database, FolderStore(tmp_path / "artifacts"), tmp_path / "scratch", PLAYS)

    assert read_run(database, "run").state == RunState.SUCCEEDED
    with database.read() as session:
        matches = session.scalars(select(LadderMatch).order_by(LadderMatch.seq)).all()
        seats = session.scalars(select(LadderSeat).order_by(LadderSeat.seq, LadderSeat.seat)).all()
    assert [(each.number, each.outcome, each.epoch, each.simulator) for each in matches] == [
        (1, "win", 1, 7),
        (2, "loss", 1, 7),
    ]
    assert [(each.at, each.step, each.elo, each.rated) for each in matches] == [
        (1001.0, 500, 1200.5, True),
        (1002.0, 500, 1200.5, True),
    ]
    assert [(each.player, each.team, each.rank, each.step) for each in seats] == [
        (1, 0, 1, 500),
        (2, 1, 2, 300),
        (1, 0, 2, 500),
        (2, 1, 1, 300),
    ]


SPEAKS = """
import os, pathlib, socket, sys, time
from worker.trainer.link import Beat, CheckpointWritten, Command, EventRecord, Finished, Listening, Progress
from worker.trainer.link import TrainerLink

def die(reason):
    os._exit(9)

link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), die)
job = link.await_job()
link.start(job.lease_seconds)
print("speaks", os.getpid(), flush=True)
if {listens}:
    link.post(Listening(endpoints=[]))
number = 0
while True:
    number += 1
    if {talks}:
        link.post(Progress(step=number, simulators=0))
        link.post(EventRecord(name="spoken", message=str(number)))
    for message in link.commands():
        if isinstance(message, Command) and message.action == "release":
            link.post(Finished(outcome="released", detail="handed back"))
            link.close()
            sys.exit(0)
    time.sleep(0.05)
"""
"""A trainer that goes on until it is told to hand back, or its supervisor is silent for a lease."""


def events(database: Database, epoch: int) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(Event.type).where(Event.epoch == epoch).order_by(Event.seq)))


def test_a_frozen_supervisor_loses_its_trainer_within_a_lease_and_writes_nothing_when_it_wakes_up(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    run = make_run(database, name="run")
    program = SPEAKS.format(listens=True, talks=True)
    command = [sys.executable, "-m", "tests.worker.host.supervisor.supervising", database_url, str(tmp_path), program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        trainer = next(int(line.split()[1]) for line in process.stdout if line.startswith("speaks"))
        while read_run(database, "run").step < 5:
            time.sleep(0.05)

        process.send_signal(signal.SIGSTOP)
        while frozen_writer(Path(database.url.database or "")) == process.pid:  # SQLite: nobody could write then
            process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
            process.send_signal(signal.SIGSTOP)
        frozen = time.monotonic()
        while psutil.pid_exists(trainer) and psutil.Process(trainer).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() - frozen < LEASE_SECONDS + 1, "a lease, and what a busy machine adds"
            time.sleep(0.02)
        state, deadline = None, time.monotonic() + 60
        while (
            state is None
        ):  # what the steward does each round; a row that the frozen process has locked waits for the next
            assert time.monotonic() < deadline
            time.sleep(0.05)
            with database.read() as session:
                expired = LeaseRepository(session).expired()
            if expired:
                with database.write() as session:
                    state = LeaseRepository(session).reap(expired[0], 3)
        assert state is RunState.RECOVERING
        successor = AttemptLedger(database, make_claim(database, "successor"))
        before, files = events(database, 1), sorted((tmp_path / "artifacts").rglob("*"))

        process.send_signal(signal.SIGCONT)
        process.wait(10)
    finally:
        process.kill()
        process.communicate()

    assert events(database, 1) == before, "the old epoch has no more events"
    assert sorted((tmp_path / "artifacts").rglob("*")) == files
    assert all(f"/{run.id}/1/" in str(file) for file in files if file.is_file()), "each epoch has a folder of its own"
    assert read_run(database, "run").epoch == 2
    successor.heartbeat(10, 0)


@pytest.mark.parametrize(
    ("listens", "limits", "said"),
    [
        (False, {"startup_seconds": 0.5, "silence_seconds": 60}, "took more than 0.5 s to start"),
        (True, {"startup_seconds": 60, "silence_seconds": 0.5}, "reported nothing for 0.5 s"),
    ],
    ids=["at the start", "later"],
)
def test_a_trainer_has_one_time_to_start_and_another_to_say_something(
    database: Database, tmp_path: Path, listens: bool, limits: dict[str, Any], said: str
) -> None:
    make_run(database, name="run")

    supervise(
        database,
        FolderStore(tmp_path / "artifacts"),
        tmp_path / "scratch",
        SPEAKS.format(listens=listens, talks=False),
        **limits,
    )

    run = read_run(database, "run")
    with database.read() as session:
        attempt = session.get_one(Attempt, (run.id, 1))
    assert (run.state, attempt.outcome) == (RunState.RECOVERING, "trainer_lost")
    assert said in str(attempt.detail)


def test_a_trainer_that_outgrows_its_memory_hands_the_run_back_and_the_event_has_the_figures(
    database: Database, tmp_path: Path
) -> None:
    make_run(database, name="run")
    program = SPEAKS.format(listens=True, talks=True)

    supervise(database, FolderStore(tmp_path / "artifacts"), tmp_path / "scratch", program, trainer_memory_bytes=2**20)

    run = read_run(database, "run")
    with database.read() as session:
        attempt = session.get_one(Attempt, (run.id, 1))
        (event,) = session.scalars(select(Event).where(Event.type == "trainer_outgrown"))
    assert (run.state, attempt.outcome, run.restarts_without_progress) == (RunState.RECOVERING, "memory_limit", 1)
    assert event.data["bytes"] > event.data["limit_bytes"] == 2**20
    assert "may hold 1 MiB" in event.message


def test_a_trainer_that_outgrows_its_memory_without_any_progress_fails_by_name(
    database: Database, tmp_path: Path
) -> None:
    make_run(database, name="run")
    program = SPEAKS.format(listens=True, talks=True)

    for _ in range(4):
        supervise(
            database, FolderStore(tmp_path / "artifacts"), tmp_path / "scratch", program, trainer_memory_bytes=2**20
        )

    run = read_run(database, "run")
    assert (run.state, run.stop_reason) == (RunState.FAILED, "memory_limit")


SAYS_WHERE = """
import json, pathlib, socket, sys
from worker.trainer.link import EventRecord, Finished, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), print)
job = link.await_job()
link.start(job.lease_seconds)
found = json.loads((pathlib.Path(job.resume_from) / "state.json").read_text()) if job.resume_from else None
link.post(EventRecord(name="resumed", level="info", message=str(found), data={}))
link.post(Finished(outcome="succeeded", reason="completed"))
link.close()
"""
"""A trainer that tells what lies in the checkpoint that it was given."""


def with_checkpoints(database: Database, store: FolderStore, folder: Path, steps: Sequence[int]) -> list[str]:
    """Have a first attempt of a run save checkpoints and then lose its trainer; return their ids."""
    make_run(database, name="run")
    claim = make_claim(database, lease_seconds=LEASE_SECONDS)
    ledger, ids = AttemptLedger(database, claim), []
    for step in steps:
        source = folder / f"made-{step}"
        source.mkdir()
        (source / "state.json").write_text(str(step))
        path = f"runs/{claim.run_id}/1/checkpoints/{step}"
        ids.append(ledger.checkpoint(make_checkpoint(step, path=path, files=store.publish(source, path))))
    ledger.release("trainer_lost", "It was killed.")
    return ids


def files_of(folder: Path) -> dict[str, Path]:
    return {file.parent.name: file for file in (folder / "artifacts").rglob("state.json")}


def told(database: Database) -> dict[str, str]:
    with database.read() as session:
        return {event.type: event.message for event in EventRepository(session).page(read_run(database, "run").id)}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
def test_recovery_begins_with_the_newest_checkpoint_that_is_good(
    database: Database, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    store = FolderStore(tmp_path / "artifacts")
    ids = with_checkpoints(database, store, tmp_path, [100, 200, 300])
    for name in ("200", "300"):
        harm(files_of(tmp_path)[name])

    supervise(database, store, tmp_path / "scratch", SAYS_WHERE)

    events = told(database)
    assert events["resumed"] == "100"
    assert ids[1] in events["checkpoint_damaged"]
    assert "state.json" in events["checkpoint_damaged"]
    with database.read() as session:
        damaged = {row.id for row in session.scalars(select(Checkpoint)) if row.damaged_at is not None}
    assert damaged == set(ids[1:])


def test_a_run_whose_checkpoints_are_all_damaged_fails_and_says_so(database: Database, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "artifacts")
    with_checkpoints(database, store, tmp_path, [100, 200])
    for file in files_of(tmp_path).values():
        flip(file)

    supervise(database, store, tmp_path / "scratch", SAYS_WHERE)

    run = read_run(database, "run")
    assert (run.state, run.stop_reason) == (RunState.FAILED, "checkpoint_damaged")
    assert "none of the run's checkpoints can be restored" in (run.stop_detail or "")
    assert "resumed" not in told(database)


class DistantStore(FolderStore):
    """A store that is away at first, and then slow: together for longer than a lease."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.refusals = 2

    def open(self, path: str, start: int = 0) -> BinaryIO:
        if self.refusals:
            self.refusals -= 1
            raise StorageUnavailable("there is no route to it")
        time.sleep(LEASE_SECONDS / 2)
        return super().open(path, start)


def test_a_store_that_is_away_or_slow_costs_neither_the_lease_nor_the_checkpoint(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "RETRY_SECONDS", 0.8)
    with_checkpoints(database, FolderStore(tmp_path / "artifacts"), tmp_path, [100])

    expired = supervise(database, DistantStore(tmp_path / "artifacts"), tmp_path / "scratch", SAYS_WHERE)

    assert expired == []
    assert told(database)["resumed"] == "100"
    assert "checkpoint_damaged" not in told(database)


PAUSES = """
import pathlib, socket, sys, time
from worker.trainer.link import (
    Amend, Amended, CheckpointCommitted, CheckpointDeclined, CheckpointWritten, Command, Finished, SaveCheckpoint,
    TrainerLink,
)
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), print)
job = link.await_job()
link.start(job.lease_seconds)
for amendment in job.amendments:
    link.post(Amended(amendment=amendment, step=0))
asked = []
while True:
    time.sleep(0.02)
    for message in link.commands():
        match message:
            case Amend():
                for amendment in message.amendments:
                    link.post(Amended(amendment=amendment, step=64))
            case SaveCheckpoint(request=1):
                link.post(CheckpointDeclined(request=1, detail="nothing was learnt"))
            case SaveCheckpoint():
                asked.append(message.request)
                folder = pathlib.Path(job.scratch) / f"checkpoint-{message.request}"
                folder.mkdir()
                (folder / "state.json").write_text("{}")
                link.post(
                    CheckpointWritten(
                        folder=str(folder), step=7, steps={"CartPole": 7}, reason="requested", keep=5,
                        metrics={"CartPole": None}, request=message.request,
                    )
                )
            case Command(action="pause"):
                assert len(asked) == len(set(asked)), "each request is passed on once"
                link.post(Finished(outcome="paused", reason="user", detail="paused on request"))
                link.close()
                sys.exit(0)
            case CheckpointCommitted():
                pass
            case _:
                raise AssertionError(message)
"""
"""A trainer that makes changes, declines the first checkpoint that it is asked for, writes others, and pauses."""


def test_a_supervisor_passes_on_what_users_want_and_pauses(database: Database, tmp_path: Path) -> None:
    run = make_run(database, name="run").id
    change(database, run, 1000)

    def want() -> None:
        def events() -> list[str]:
            with database.read() as session:
                return [event.type for event in EventRepository(session).page(run)]

        def until(event: str, times: int = 1) -> None:
            while events().count(event) < times:
                time.sleep(0.02)

        until("hyperparameters_changed")
        AttemptLedger(database, claim_of(database, run)).move(RunState.RUNNING)
        change(database, run, 500)
        ask(database, run)
        until("checkpoint_declined")
        ask(database, run)
        until("checkpoint_saved")
        until("hyperparameters_changed", 2)
        with database.write() as session:
            RunService(session, RecordingBell()).pause(run)

    wanting = threading.Thread(target=want)
    wanting.start()
    expired = supervise(database, FolderStore(tmp_path / "artifacts"), tmp_path / "scratch", PAUSES)
    wanting.join(20)

    assert expired == []
    paused = read_run(database, "run")
    assert (paused.state, paused.stop_reason, paused.stop_detail) == ("PAUSED", "user", "paused on request")
    with database.read() as session:
        requests = CheckpointRequestRepository(session)
        assert requests.get(run, 1).problem == "nothing was learnt"
        (stored,) = session.scalars(select(Checkpoint)).all()
        assert requests.get(run, 2).checkpoint_id == stored.id
        told = [event for event in EventRepository(session).page(run) if event.type == "hyperparameters_changed"]
        amended = AmendmentRepository(session).of_run(run)
        moves = [event.type for event in EventRepository(session).page(run) if "to" in event.data]
    assert [(event.data["seq"], event.data["step"]) for event in told] == [(1, 0), (2, 64)]
    assert amended is not None
    assert amended.applied == 2
    assert moves == ["run_claimed", "run_started", "run_pausing", "run_paused"]


SLOW = """
import socket, sys, time
from worker.trainer.link import Command, EventRecord, Finished, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), print)
job = link.await_job()
link.start(job.lease_seconds)
link.post(EventRecord(name="begun", message="It has its job."))
heard = []
while len(heard) < 2:
    time.sleep(0.02)
    heard += [message.action for message in link.commands()]
assert heard == ["pause", "stop"], heard
link.post(Finished(outcome="paused", reason="user", detail="paused on request"))
link.close()
"""
"""A trainer that has begun to pause when somebody wants it to stop."""


def test_a_stop_outranks_a_pause_that_is_under_way(database: Database, tmp_path: Path) -> None:
    run = make_run(database, name="run").id
    later = threading.Thread(target=lambda: stop_once_pausing(database, run))
    later.start()

    supervise(database, FolderStore(tmp_path / "artifacts"), tmp_path / "scratch", SLOW)

    later.join(20)
    ended = read_run(database, "run")
    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "user")


def stop_once_pausing(database: Database, run: str) -> None:
    while "begun" not in events(database, 1):  # before that, a pause needs no trainer
        time.sleep(0.02)
    with database.write() as session:
        RunService(session, RecordingBell()).pause(run)
    while read_run(database, run).state != RunState.PAUSING:
        time.sleep(0.02)
    with database.write() as session:
        RunService(session, RecordingBell()).stop(run)


def change(database: Database, run: str, max_steps: int) -> None:
    with database.write() as session:
        AmendmentService(session).change(run, RunChanges(behaviors={"CartPole": {"max_steps": max_steps}}))


def ask(database: Database, run: str) -> None:
    with database.write() as session:
        CheckpointRequestService(session).ask(run)


def claim_of(database: Database, run: str) -> Claim:
    """The claim under which a run is held, for what its trainer would have brought about."""
    found = read_run(database, run)
    return Claim(run, found.epoch, RunKind.TRAIN, "run", {}, 0, None, "worker-1")


def test_an_outage_of_the_database_longer_than_a_lease_costs_neither_the_trainer_nor_what_it_said(
    tmp_path: Path, sqlite_template: Path
) -> None:
    path = tmp_path / "ludus.db"
    shutil.copy(sqlite_template, path)
    database = Database(f"sqlite:///{path}", synchronous="NORMAL", busy_seconds=0.2)
    run = make_run(database, name="run")
    outage = threading.Timer(1.0, keep_away, (path, 2 * LEASE_SECONDS))
    outage.start()

    supervise(database, FolderStore(tmp_path / "artifacts"), tmp_path / "scratch", COUNTS)

    outage.join()
    with database.read() as session:
        said = session.scalars(select(Event.message).where(Event.type == "counted").order_by(Event.seq)).all()
    ended = read_run(database, run.id)
    assert (ended.state, ended.epoch) == (RunState.SUCCEEDED, 1)
    assert said == [str(number) for number in range(100)], "what was reported during the outage waited, in order"
    database.close()


COUNTS = f"""
import os, socket, sys, time
from worker.trainer.link import EventRecord, Finished, Listening, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), lambda reason: os._exit(9))
job = link.await_job()
link.start(job.lease_seconds)
link.post(Listening(endpoints=[]))
for number in range(100):
    link.post(EventRecord(name="counted", message=str(number)))
    time.sleep({(2 * LEASE_SECONDS + 3) / 100})
link.post(Finished(outcome="succeeded", reason="completed"))
link.close()
"""
"""A trainer that reports all the time, for longer than the outage, and ends if its supervisor is silent for a lease."""


def keep_away(path: Path, seconds: float) -> None:
    """Hold SQLite's write lock for so long."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    connection.execute("BEGIN IMMEDIATE")
    time.sleep(seconds)
    connection.rollback()
    connection.close()


SAVES = """
import pathlib, socket, sys, time
from worker.trainer.link import CheckpointCommitted, CheckpointWritten, Command, Finished, Listening, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), print)
job = link.await_job()
link.start(job.lease_seconds)
link.post(Listening(endpoints=[]))
folder = pathlib.Path(job.scratch) / "checkpoint-1"
while True:
    time.sleep(0.02)
    for message in link.commands():
        match message:
            case Command(action="stop"):
                folder.mkdir()
                (folder / "state.json").write_text("{}")
                steps, metrics = {"CartPole": 7}, {"CartPole": None}
                link.post(
                    CheckpointWritten(folder=str(folder), step=7, steps=steps, reason="final", keep=5, metrics=metrics)
                )
            case CheckpointCommitted():
                link.post(Finished(outcome="succeeded", reason="user", detail="stopped on request"))
                link.close()
                sys.exit(0)
"""
"""A trainer that stops when it is told to, once its last checkpoint is acknowledged."""


def test_a_last_checkpoint_that_the_store_takes_its_time_for_is_waited_for(database: Database, tmp_path: Path) -> None:
    """The trainer has done its part in time; a stop without its last checkpoint would be a loss that nobody wanted."""
    run = make_run(database, name="run").id

    def stop() -> None:
        wait_for(lambda: "trainer_listening" in told(database))
        with database.write() as session:
            RunService(session, RecordingBell()).stop(run)

    stopping = threading.Thread(target=stop)
    stopping.start()
    supervise(database, SlowStore(tmp_path / "artifacts"), tmp_path / "scratch", SAVES, stop_seconds=LEASE_SECONDS)
    stopping.join(20)

    ended = read_run(database, run)
    with database.read() as session:
        steps = session.scalars(select(Checkpoint.step)).all()
    assert (ended.state, ended.stop_detail, steps) == ("SUCCEEDED", "stopped on request", [7])


TALKS_FIRST = """
import os, pathlib, socket, sys, time
from worker.trainer.link import EventRecord, Finished, Listening, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), lambda reason: os._exit(9))
job = link.await_job()
link.start(job.lease_seconds)
while not pathlib.Path({flag!r}).exists():
    time.sleep(0.02)
for number in range(40):
    link.post(EventRecord(name="counted", message=str(number)))
link.post(Listening(endpoints=[]))
time.sleep({seconds})
link.post(Finished(outcome="succeeded", reason="completed"))
link.close()
"""
"""A trainer that has much to say before it listens, all of it while the database is away."""


def test_a_trainer_that_begins_during_an_outage_is_not_too_late_because_of_it(
    tmp_path: Path, sqlite_template: Path
) -> None:
    path, flag = tmp_path / "ludus.db", tmp_path / "away"
    shutil.copy(sqlite_template, path)
    database = Database(f"sqlite:///{path}", synchronous="NORMAL", busy_seconds=0.2)
    run = make_run(database, name="run")

    def be_away() -> None:
        wait_for(lambda: read_run(database, run.id).state == RunState.STARTING)
        with_lock = threading.Timer(0.5, flag.touch)
        with_lock.start()
        keep_away(path, 12.0)

    outage = threading.Thread(target=be_away)
    outage.start()
    program = TALKS_FIRST.format(flag=str(flag), seconds=13.0)
    supervise(database, FolderStore(tmp_path / "artifacts"), tmp_path / "scratch", program, startup_seconds=8.0)
    outage.join(30)

    ended = read_run(database, run.id)
    database.close()
    assert (ended.state, ended.epoch) == (RunState.SUCCEEDED, 1)


FLOODS = """
import socket, sys
from worker.trainer.link import EventRecord, Finished, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), print)
job = link.await_job()
link.start(job.lease_seconds)
for number in range(80):
    link.post(EventRecord(name="counted", message=str(number)))
link.post(Finished(outcome="succeeded", reason="completed"))
link.close()
"""


class FarLedger(AttemptLedger):
    """A ledger whose database is far away."""

    def event(self, *arguments: Any, **named: Any) -> None:
        time.sleep(0.05)
        super().event(*arguments, **named)


def test_the_lease_is_kept_while_much_is_written(database: Database, tmp_path: Path) -> None:
    """80 events at 50 ms each take twice a lease."""
    make_run(database, name="run")

    expired = supervise(database, FolderStore(tmp_path / "artifacts"), tmp_path / "scratch", FLOODS, ledger=FarLedger)

    with database.read() as session:
        said = session.scalars(select(Event.message).where(Event.type == "counted").order_by(Event.seq)).all()
    assert expired == []
    assert said == [str(number) for number in range(80)]
    assert read_run(database, "run").state == RunState.SUCCEEDED


class StuckStore(FolderStore):
    """A store that opens nothing until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.free = threading.Event(), threading.Event()

    def open(self, path: str, start: int = 0) -> BinaryIO:
        self.asked.set()
        assert self.free.wait(30)
        return super().open(path, start)


@pytest.mark.parametrize(
    ("wish", "state"),
    [("cancel", RunState.CANCELLED), ("stop", RunState.SUCCEEDED), ("pause", RunState.PAUSED), (None, "RECOVERING")],
    ids=["cancel", "stop", "pause", "the worker stops"],
)
def test_what_is_wanted_of_an_attempt_that_still_fetches_its_checkpoint_comes_true_at_once(
    database: Database, tmp_path: Path, wish: str | None, state: RunState
) -> None:
    with_checkpoints(database, FolderStore(tmp_path / "artifacts"), tmp_path, [100])
    store, stops = StuckStore(tmp_path / "artifacts"), threading.Event()
    claim = make_claim(database, lease_seconds=LEASE_SECONDS)
    before = read_run(database, claim.run_id).restarts_without_progress
    settings = WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=BEAT_SECONDS)
    supervisor = Supervisor(
        claim, AttemptLedger(database, claim), store, settings, tmp_path / "scratch", None, stops.is_set
    )
    supervising = threading.Thread(target=supervisor.run, args=(Scripted(SAYS_WHERE),))
    supervising.start()
    try:
        assert store.asked.wait(10)
        if wish is None:
            stops.set()
        else:
            with database.write() as session:
                getattr(RunService(session, RecordingBell()), wish)(claim.run_id)

        wait_for(lambda: read_run(database, claim.run_id).state == state, 10)
    finally:
        store.free.set()
        supervising.join(20)

    assert read_run(database, claim.run_id).restarts_without_progress == before
    assert not (tmp_path / "scratch").exists()


def test_a_run_whose_host_has_no_room_for_it_is_handed_back_with_the_reason(database: Database, tmp_path: Path) -> None:
    make_run(database, name="run")
    (tmp_path / "file").touch()

    supervise(database, FolderStore(tmp_path / "artifacts"), tmp_path / "file" / "scratch", FLOODS)

    run = read_run(database, "run")
    with database.read() as session:
        attempt = session.get_one(Attempt, (run.id, 1))
    assert (run.state, run.restarts_without_progress) == (RunState.RECOVERING, 1)
    assert "File exists" in str(attempt.detail)


LOGS = """
import pathlib, socket, sys, time
from worker.trainer.link import Finished, Listening, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), print)
job = link.await_job()
link.start(job.lease_seconds)
link.post(Listening(endpoints=[]))
log = pathlib.Path(job.log_path)
log.with_name("published-trainer.log").mkdir()
log.write_bytes(b"x" * (9 << 20))
time.sleep(5)
link.post(Finished(outcome="succeeded", reason="completed"))
link.close()
"""
"""A trainer beside whose log, which is too large to be published whole, nothing can be written."""


def test_a_log_that_the_host_has_no_room_to_copy_costs_no_run(database: Database, tmp_path: Path) -> None:
    make_run(database, name="run")

    expired = supervise(database, FolderStore(tmp_path / "artifacts"), tmp_path / "scratch", LOGS)

    assert expired == []
    assert read_run(database, "run").state == RunState.SUCCEEDED


def wait_for(true: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)
