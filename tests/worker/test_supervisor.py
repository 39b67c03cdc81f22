"""The supervisor's side of an attempt, with a trainer that does as a test wants."""

import subprocess
import sys
import threading
from pathlib import Path

from server.artifacts import FolderStore
from server.attempts.repository import AttemptLedger
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


class Lingering(WarmTrainer):
    """Hands out trainers that finish at once, and end late."""

    def take(self, job: Job) -> TrainerProcess:
        ours, theirs = socket_pair()
        with theirs:
            command = [sys.executable, "-c", LINGERS, str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True)
        trainer = TrainerProcess(process, SupervisorLink(ours))
        trainer.start(job)
        return trainer


def test_a_run_is_not_taken_away_while_its_finished_trainer_ends(database: Database, tmp_path: Path) -> None:
    make_run(database, name="run")
    claim = make_claim(database, lease_seconds=LEASE_SECONDS)
    settings = WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=0.2)
    ledger, store, scratch = AttemptLedger(database, claim), FolderStore(tmp_path / "artifacts"), tmp_path / "scratch"
    supervisor = Supervisor(claim, ledger, store, settings, scratch, None, lambda: False)
    supervising = threading.Thread(target=supervisor.run, args=(Lingering(),))
    supervising.start()

    expired = []
    while supervising.is_alive():
        with database.read() as session:
            expired += LeaseRepository(session).expired()
        supervising.join(0.05)

    assert expired == []
    assert read_run(database, "run").state == RunState.SUCCEEDED
