"""The supervisor's side of an attempt, with a trainer that does as a test wants."""

import subprocess
import sys
import threading
import time
from pathlib import Path

from sqlalchemy import select

from server.amendments.repository import AmendmentRepository
from server.amendments.schemas import RunChanges
from server.amendments.service import AmendmentService
from server.artifacts import FileRef, FolderStore
from server.attempts.claim import Claim
from server.attempts.repository import AttemptLedger
from server.checkpoint_requests.repository import CheckpointRequestRepository
from server.checkpoint_requests.service import CheckpointRequestService
from server.checkpoints.models import Checkpoint
from server.db.database import Database
from server.events.repository import EventRepository
from server.ladders.models import LadderMatch, LadderSeat
from server.leases.repository import LeaseRepository
from server.parameters.repository import ParameterRepository
from server.runs.service import RunService
from server.runs.states import RunKind, RunState
from server.settings import WorkerSettings
from tests.factories import RecordingBell, make_claim, make_run, read_run
from worker.link import Job, SupervisorLink, socket_pair
from worker.process import TrainerProcess, WarmTrainer
from worker.supervisor import Supervisor

LEASE_SECONDS = 2.0
LINGERS = f"""
import socket, sys, time
from worker.link import Finished, TrainerLink
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
from worker.link import CheckpointWritten, TrainerLink
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
from worker.link import Finished, Match, MatchesPlayed, Seat, TrainerLink
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


class Scripted(WarmTrainer):
    """Hands out trainers that do as a program says."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def take(self, job: Job) -> TrainerProcess:
        ours, theirs = socket_pair()
        with theirs:
            command = [sys.executable, "-c", self._program, str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True)
        trainer = TrainerProcess(process, SupervisorLink(ours))
        trainer.start(job)
        return trainer


class SlowStore(FolderStore):
    """A store whose disk takes longer than a lease."""

    def publish(self, source: Path, path: str) -> list[FileRef]:
        if source.is_dir():
            time.sleep(LEASE_SECONDS + 1)
        return super().publish(source, path)


def supervise(database: Database, store: FolderStore, scratch: Path, program: str) -> list[object]:
    """Execute a run with a trainer that does as a program says; return the leases that ran out meanwhile."""
    claim = make_claim(database, lease_seconds=LEASE_SECONDS)
    settings = WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=0.2)
    supervisor = Supervisor(claim, AttemptLedger(database, claim), store, settings, scratch, None, lambda: False)
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
from worker.link import EditParameters, Finished, ParameterStates, TrainerLink
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


PAUSES = """
import pathlib, socket, sys, time
from worker.link import (
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
from worker.link import Command, Finished, TrainerLink
link = TrainerLink(socket.socket(fileno=int(sys.argv[1])), print)
job = link.await_job()
link.start(job.lease_seconds)
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
    while read_run(database, run).state != RunState.STARTING:
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
