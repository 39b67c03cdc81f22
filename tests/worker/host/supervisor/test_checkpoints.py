"""Checkpoints that a trainer has written: entered in their order, answered once, and never half."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, select

from ludus.schemas.states import RunState
from server.checkpoints.models import Checkpoint
from server.checkpoints.repository import CheckpointRequestRepository
from server.checkpoints.service import request_checkpoint
from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import FileRef
from server.kit.db.database import Database
from server.kit.errors import DatabaseUnavailable, StorageFull
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.runs.events.repository import EventRepository
from tests.factories import make_claim, make_run, read_run
from tests.worker.host.supervisor.conftest import SETTINGS
from tests.worker.host.supervisor.outage import outage
from worker.host.supervisor.checkpoints import CheckpointCommits
from worker.host.supervisor.lease import Lease
from worker.host.supervisor.transfers import ArtifactTransfer
from worker.host.supervisor.writes import Writes
from worker.trainer.connection import SupervisorConnection, TrainerConnection
from worker.trainer.messages import CheckpointCommitted, CheckpointRefused, CheckpointWritten, Message


class FullStore(FolderStore):
    """A store without room."""

    def publish(self, source: Path, path: str) -> list[FileRef]:
        raise StorageFull(path)


@pytest.fixture
def ends() -> Iterator[tuple[SupervisorConnection, TrainerConnection]]:
    """Both ends of a link, on which the trainer listens."""
    ours, theirs = socket.socketpair()
    link, trainer = SupervisorConnection(ours), TrainerConnection(theirs, print)
    trainer.start(60)
    yield link, trainer
    trainer.close(1)
    link.close()


def commits(claim: Claim, database: Database, store: FolderStore, writes: Writes | None = None) -> CheckpointCommits:
    ledger = AttemptLedger(database, claim)
    transfer = ArtifactTransfer(store, Lease(claim, ledger, SETTINGS), lambda: False)
    return CheckpointCommits(claim, ledger, transfer, Writes() if writes is None else writes)


def written(folder: Path, step: int, request: int | None = None) -> CheckpointWritten:
    """Write a checkpoint like a trainer."""
    made = folder / f"checkpoint-{step}"
    made.mkdir()
    (made / "state.json").write_text(str(step))
    return CheckpointWritten(
        folder=str(made), step=step, steps={"CartPole": step}, reason="interval", keep=0, metrics={}, request=request
    )


def finish(checkpoints: CheckpointCommits, link: SupervisorConnection) -> None:
    while checkpoints:
        checkpoints.wait(1)
        checkpoints.finish(link)


def stored(database: Database) -> list[int]:
    with database.read() as session:
        return list(session.scalars(select(Checkpoint.step).order_by(Checkpoint.created_at, Checkpoint.step)))


def heard(trainer: TrainerConnection, count: int) -> list[Message]:
    answers: list[Message] = []
    while len(answers) < count:
        answers += trainer.commands()
    return answers


def test_checkpoints_are_entered_and_answered_in_the_order_in_which_they_were_written(
    database: Database, claim: Claim, ends: tuple[SupervisorConnection, TrainerConnection], tmp_path: Path
) -> None:
    link, trainer = ends
    checkpoints = commits(claim, database, FolderStore(tmp_path / "artifacts"))
    messages = [written(tmp_path, step) for step in (10, 20, 20 + 1)]

    for message in messages:
        checkpoints.begin(message)
    finish(checkpoints, link)

    assert stored(database) == [10, 20, 21]
    assert heard(trainer, 3) == [CheckpointCommitted(folder=message.folder) for message in messages]
    assert not any(Path(message.folder).exists() for message in messages), "the trainer's disk has room again"


def test_a_checkpoint_is_not_acknowledged_before_the_database_has_it(
    ends: tuple[SupervisorConnection, TrainerConnection], impatient: Path, tmp_path: Path
) -> None:
    link, trainer = ends
    database = Database(f"sqlite:///{impatient}", synchronous="NORMAL", busy_seconds=0.05)
    make_run(database, name="run")
    checkpoints = commits(make_claim(database), database, FolderStore(tmp_path / "artifacts"))
    message = written(tmp_path, 10)
    checkpoints.begin(message)
    checkpoints.wait(10)

    with outage(impatient):
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                checkpoints.finish(link)
        unanswered = trainer.commands()
        assert Path(message.folder).exists()
    finish(checkpoints, link)

    assert unanswered == []
    assert stored(database) == [10]
    assert heard(trainer, 1) == [CheckpointCommitted(folder=message.folder)]
    database.close()


def test_a_checkpoint_waits_for_the_writes_before_it_and_for_none_after_it(
    database: Database, claim: Claim, ends: tuple[SupervisorConnection, TrainerConnection], tmp_path: Path
) -> None:
    link, _ = ends
    writes = Writes()
    checkpoints = commits(claim, database, FolderStore(tmp_path / "artifacts"), writes)
    writes.add(time.sleep, 0.05)
    checkpoints.begin(written(tmp_path, 10))
    for _ in range(20):
        writes.add(time.sleep, 0.05)
    checkpoints.wait(10)

    checkpoints.finish(link)
    before = stored(database)
    writes.flush(0.08)
    checkpoints.finish(link)

    assert (before, stored(database)) == ([], [10])
    assert len(writes) > 10


def test_a_checkpoint_that_cannot_be_stored_is_refused_and_whoever_asked_for_it_hears_why(
    database: Database, claim: Claim, ends: tuple[SupervisorConnection, TrainerConnection], tmp_path: Path
) -> None:
    link, trainer = ends
    AttemptLedger(database, claim).move(RunState.RUNNING)
    with database.write() as session:
        request = request_checkpoint(session, "run").seq
    checkpoints = commits(claim, database, FullStore(tmp_path / "artifacts"))

    checkpoints.begin(written(tmp_path, 10, request=request))
    finish(checkpoints, link)

    (answer,) = heard(trainer, 1)
    with database.read() as session:
        events = [event.type for event in EventRepository(session).page(claim.run_id)]
        asked = CheckpointRequestRepository(session).get(claim.run_id, request)
    assert isinstance(answer, CheckpointRefused)
    assert answer.code == "storage_full"
    assert asked.problem is not None
    assert "could not be stored" in asked.problem
    assert (events.count("checkpoint_failed"), stored(database)) == (1, [])


def test_a_checkpoint_of_a_trainer_that_is_gone_counts_all_the_same(
    database: Database, claim: Claim, ends: tuple[SupervisorConnection, TrainerConnection], tmp_path: Path
) -> None:
    link, trainer = ends
    checkpoints = commits(claim, database, FolderStore(tmp_path / "artifacts"))
    checkpoints.begin(written(tmp_path, 10))
    trainer.close(1)

    finish(checkpoints, link)

    assert stored(database) == [10]
    assert read_run(database, "run").restarts_without_progress == 0


def test_a_restored_database_whose_store_has_files_of_the_same_attempt_and_step_stores_its_own(
    database: Database, claim: Claim, ends: tuple[SupervisorConnection, TrainerConnection], tmp_path: Path
) -> None:
    link, trainer = ends
    for life in ("the copied one", "the restored one"):
        with database.write() as session:  # the copy of the database was made before the checkpoint was entered
            session.execute(delete(Checkpoint))
        message = written(tmp_path, 10)
        Path(message.folder, "state.json").write_text(life)
        checkpoints = commits(claim, database, FolderStore(tmp_path / "artifacts"))
        checkpoints.begin(message)
        finish(checkpoints, link)
        assert heard(trainer, 1) == [CheckpointCommitted(folder=message.folder)]
    assert stored(database) == [10]
