"""A supervisor in a process of its own, so that a test can freeze it: claims the run that waits and executes it.

`python -m tests.worker.host.supervisor.supervising URL FOLDER PROGRAM` with PROGRAM a trainer's source (see
`scripted`).
"""

import subprocess
import sys
from pathlib import Path

from server.kit.artifacts import FolderStore
from server.kit.db.database import Database
from server.kit.settings import WorkerSettings
from server.runs.attempts.repository import AttemptLedger
from tests.factories import make_claim
from worker.host.process import TrainerProcess, WarmTrainer
from worker.host.supervisor.loop import Supervisor
from worker.trainer.link import Job, SupervisorLink, socket_pair

LEASE_SECONDS = 2.0
BEAT_SECONDS = 0.2


class Scripted(WarmTrainer):
    """Hands out trainers that do as a program says."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def take(self, job: Job) -> TrainerProcess:
        """Start the program and hand it the job."""
        ours, theirs = socket_pair()
        with theirs:
            command = [sys.executable, "-c", self._program, str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True)
        trainer = TrainerProcess(process, SupervisorLink(ours))
        trainer.start(job)
        return trainer


def main(url: str, folder: str, program: str) -> None:
    """Execute one attempt."""
    database = Database(url, synchronous="NORMAL")
    claim = make_claim(database, f"worker-{folder}", LEASE_SECONDS)
    settings = WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=BEAT_SECONDS)
    store = FolderStore(Path(folder) / "artifacts")
    scratch = Path(folder) / f"scratch-{claim.epoch}"
    Supervisor(claim, AttemptLedger(database, claim), store, settings, scratch, None, lambda: False).run(
        Scripted(program)
    )
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
