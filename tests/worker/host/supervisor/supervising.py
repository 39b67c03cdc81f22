"""Executes attempts with the trainers of `tests.worker.host.supervisor.trainers`.

`python -m tests.worker.host.supervisor.supervising URL FOLDER` is a supervisor in a process of its own, so that a test
can freeze it: it claims the run that waits and executes it with `trainers.speaks`.
"""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import select

from ludus.child_process import ChildProcess
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.leases.repository import LeaseRepository
from server.runs.events.repository import EventRepository
from server.runs.models import Event
from tests.factories import make_checkpoint, make_claim, make_run, read_run
from tests.worker.host.supervisor import trainers
from worker.host.process import TrainerProcess, WarmTrainer
from worker.host.supervisor.loop import Supervisor
from worker.trainer.connection import SupervisorConnection, TrainerConnection
from worker.trainer.messages import Job

LEASE_SECONDS = 2.0
BEAT_SECONDS = 0.2

Trainer = Callable[..., None]


class Separate(WarmTrainer):
    """Hands out a trainer in a process of its own."""

    def __init__(self, trainer: Trainer, **arguments: Any) -> None:
        super().__init__()
        self._trainer = trainer
        self.arguments = arguments

    def with_arguments(self, **arguments: Any) -> "Separate":
        """Return one whose trainer gets these arguments, too."""
        return Separate(self._trainer, **self.arguments, **arguments)

    def take(self, job: Job) -> TrainerProcess:
        """Start the trainer and send it the job."""
        ours, theirs = socket.socketpair()
        with theirs:
            words = ["-m", trainers.__name__, self._trainer.__name__, str(theirs.fileno()), json.dumps(self.arguments)]
            command = [sys.executable, *words]
            process = ChildProcess(command, descriptors=(theirs.fileno(),), own_group=True)
        trainer = TrainerProcess(process, SupervisorConnection(ours))
        trainer.connection.send(job)
        return trainer


class Threaded(WarmTrainer):
    """Hands out a trainer that runs on a thread of this process; a process that only sleeps lives as long as it."""

    def __init__(self, trainer: Trainer, *, needs_supervisor: bool = False, **arguments: Any) -> None:
        """`needs_supervisor`: it ends when the supervisor is silent for a lease."""
        super().__init__()
        self._trainer = trainer
        self._needs_supervisor = needs_supervisor
        self._arguments = arguments
        self.failure: Exception | None = None

    def take(self, job: Job) -> TrainerProcess:
        """Start the trainer and send it the job."""
        ours, theirs = socket.socketpair()
        process = ChildProcess(["sleep", "600"], own_group=True)
        trainer = TrainerProcess(process, SupervisorConnection(ours))

        def end(reason: str) -> None:
            if self._needs_supervisor:
                process.end()
                theirs.close()

        def run() -> None:
            connection = TrainerConnection(theirs, end)
            connection.start(connection.await_job().lease_seconds)
            try:
                self._trainer(connection, job, **self._arguments)
            except Exception as error:  # noqa: BLE001  # the test raises it
                self.failure = error
            connection.close()
            with suppress(ProcessLookupError):  # the supervisor has ended it
                os.kill(process.pid, signal.SIGTERM)

        threading.Thread(target=run, daemon=True).start()
        trainer.connection.send(job)
        return trainer


def supervise(
    database: Database,
    folder: Path,
    trainer: WarmTrainer,
    *,
    store: FolderStore | None = None,
    ledger: type[AttemptLedger] = AttemptLedger,
    scratch: Path | None = None,
    **settings_: Any,
) -> list[object]:
    """Execute a run with a trainer; return the leases that ran out meanwhile."""
    claim = make_claim(database, lease_seconds=LEASE_SECONDS)
    settings = WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=BEAT_SECONDS, **settings_)
    supervisor = Supervisor(
        claim,
        ledger(database, claim),
        store or FolderStore(folder / "artifacts"),
        settings,
        scratch or folder / "scratch",
        GatewaySettings(),
        lambda: False,
    )
    supervising = threading.Thread(target=supervisor.run, args=(trainer,))
    supervising.start()
    expired: list[object] = []
    while supervising.is_alive():
        with database.read() as session:
            expired += LeaseRepository(session).expired()
        supervising.join(0.05)
    if isinstance(trainer, Threaded) and trainer.failure is not None:
        raise trainer.failure
    return expired


def messages_of(database: Database) -> dict[str, str]:
    """Return the newest message of each type of event of the run."""
    with database.read() as session:
        return {event.type: event.message for event in EventRepository(session).page(read_run(database, "run").id)}


def types_of(database: Database, attempt: int) -> list[str]:
    """Return the types of an attempt's events, in order."""
    with database.read() as session:
        return list(session.scalars(select(Event.type).where(Event.attempt == attempt).order_by(Event.seq)))


def with_checkpoints(
    database: Database, store: FolderStore, folder: Path, steps: Sequence[int], name: str = "run", **run: Any
) -> list[str]:
    """Make a run whose first attempt has saved checkpoints and lost its trainer; return the checkpoints' ids."""
    make_run(database, name=name, **run)
    claim = make_claim(database, lease_seconds=LEASE_SECONDS)
    ledger, ids = AttemptLedger(database, claim), []
    for step in steps:
        source = folder / f"made-{step}"
        source.mkdir()
        (source / "state.json").write_text(str(step))
        path = f"runs/{claim.run_id}/1/checkpoints/{step}"
        ids.append(ledger.checkpoints.add(make_checkpoint(step, path=path, files=store.publish(source, path))))
    ledger.release("trainer_lost", "It was killed.")
    return ids


def main(url: str, folder: str) -> None:
    """Execute one attempt."""
    database = Database(url, synchronous="NORMAL")
    claim = make_claim(database, f"worker-{folder}", LEASE_SECONDS)
    settings = WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=BEAT_SECONDS)
    store = FolderStore(Path(folder) / "artifacts")
    scratch = Path(folder) / f"scratch-{claim.attempt}"
    trainer = Separate(trainers.speaks, listens=True, talks=True)
    Supervisor(claim, AttemptLedger(database, claim), store, settings, scratch, GatewaySettings(), lambda: False).run(
        trainer
    )
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
