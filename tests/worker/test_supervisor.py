"""The supervisor's side of an attempt, with a trainer that does as a test wants."""

import subprocess
import sys
import threading
import time
from pathlib import Path

from sqlalchemy import select

from server.artifacts import FileRef, FolderStore
from server.attempts.repository import AttemptLedger
from server.checkpoints.models import Checkpoint
from server.db.database import Database
from server.leases.repository import LeaseRepository
from server.runs.states import RunState
from server.settings import WorkerSettings
from tests.factories import make_claim, make_run, read_run
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
