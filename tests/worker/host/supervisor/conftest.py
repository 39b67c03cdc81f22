"""What the parts of the supervisor are tested with: a claimed run on a real database, and its lease."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.kit.db.database import Database
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from tests.factories import make_claim, make_run
from worker.host.supervisor.lease import Lease
from worker.trainer.connection import SupervisorConnection, TrainerConnection

SETTINGS = WorkerSettings(lease_seconds=1.0, heartbeat_seconds=0.2, outage_seconds=1.5)


@pytest.fixture
def claim(database: Database) -> Claim:
    """The claim on a run called `run`."""
    make_run(database, name="run")
    return make_claim(database, lease_seconds=SETTINGS.lease_seconds)


@pytest.fixture
def ledger(database: Database, claim: Claim) -> AttemptLedger:
    """The ledger of the run's attempt."""
    return AttemptLedger(database, claim)


@pytest.fixture
def lease(claim: Claim, ledger: AttemptLedger) -> Lease:
    """The lease of the run's attempt."""
    return Lease(claim, ledger, SETTINGS)


@pytest.fixture
def impatient(sqlite_template: Path, tmp_path: Path) -> Path:
    """An SQLite file of this test's own, for connections that give up soon."""
    path = tmp_path / "impatient.db"
    path.write_bytes(sqlite_template.read_bytes())
    return path


@pytest.fixture
def ends() -> Iterator[tuple[SupervisorConnection, TrainerConnection]]:
    """Both ends of a link, on which the trainer listens."""
    ours, theirs = socket.socketpair()
    link, trainer = SupervisorConnection(ours), TrainerConnection(theirs, print)
    trainer.start(60)
    yield link, trainer
    trainer.close(1)
    link.close()
