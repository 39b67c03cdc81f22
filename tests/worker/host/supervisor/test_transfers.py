"""Copying to and from the artifact store, and the checkpoints that are stored by it."""

import hashlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import delete, select

from ludus.schemas.states import RunState
from server.checkpoints.models import Checkpoint
from server.checkpoints.repository import CheckpointRequestRepository
from server.checkpoints.service import request_checkpoint
from server.demonstrations.refs import DemonstrationRef
from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import FileRef
from server.kit.db.database import Database
from server.kit.errors import DatabaseUnavailable, StorageFull, StorageUnavailable
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.lifecycle.leases.repository import LeaseRepository
from server.lifecycle.service import RunService
from server.runs.events.repository import EventRepository
from tests.factories import RecordingWakeUp, make_claim, make_run, read_run
from tests.waiting import eventually
from tests.worker.host.supervisor.conftest import SETTINGS
from tests.worker.host.supervisor.outage import outage
from worker.host.supervisor import transfers
from worker.host.supervisor.lease import Lease, Writes
from worker.host.supervisor.transfers import (
    ArtifactTransfer,
    CheckpointCommits,
    DemonstrationUnusable,
    Unwanted,
    fetch_demonstrations,
)
from worker.trainer.connection import SupervisorConnection, TrainerConnection
from worker.trainer.messages import CheckpointCommitted, CheckpointRefused, CheckpointWritten, Message


class Store(FolderStore):
    """A store that is away until it is back, and counts who asks."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.back = threading.Event()
        self.asked = 0

    def publish(self, source: Path, path: str) -> list[FileRef]:
        self.asked += 1
        if not self.back.is_set():
            raise StorageUnavailable("there is no route to it")
        return super().publish(source, path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "artifacts")


@pytest.fixture
def stops() -> threading.Event:
    return threading.Event()


@pytest.fixture
def copier(
    store: Store, lease: Lease, stops: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ArtifactTransfer]:
    monkeypatch.setattr(transfers, "FIRST_PAUSE_SECONDS", 0.05)
    copier = ArtifactTransfer(store, lease, stops.is_set)
    yield copier
    copier.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    return folder


def test_a_store_that_is_away_is_asked_until_it_is_back(copier: ArtifactTransfer, store: Store, folder: Path) -> None:
    copy = copier.submit(partial(copier.publish, folder, "runs/x/1/checkpoints/7-1"))
    eventually(lambda: store.asked > 3)
    assert not copy.done()

    store.back.set()

    assert [file.name for file in copier.await_(copy)] == ["state.json"]


def test_the_lease_is_kept_while_something_is_fetched(database: Database, copier: ArtifactTransfer) -> None:
    """It takes twice a lease."""
    expired: list[object] = []

    def look() -> str:
        for _ in range(20):
            time.sleep(SETTINGS.lease_seconds / 10)  # allow: sleep, because what is fetched comes slowly
            with database.read() as session:
                expired.extend(LeaseRepository(session).expired())
        return "fetched"

    assert copier.fetch(look) == "fetched"
    assert expired == []


def test_what_cannot_be_fetched_at_all_is_said_at_once(copier: ArtifactTransfer) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        copier.fetch(Path("nowhere").read_bytes)


@pytest.mark.parametrize("wish", ["pause", "stop", "cancel", None])
def test_nobody_waits_for_a_store_once_the_attempt_is_not_wanted_any_more(
    database: Database, copier: ArtifactTransfer, store: Store, folder: Path, stops: threading.Event, wish: str | None
) -> None:
    if wish is None:
        stops.set()
    else:
        with database.write() as session:
            getattr(RunService(session, RecordingWakeUp()), wish)("run")

    with pytest.raises(Unwanted):
        copier.fetch(partial(store.publish, folder, "anywhere"))


def test_what_is_not_copied_when_an_attempt_ends_is_given_up(
    copier: ArtifactTransfer, store: Store, folder: Path
) -> None:
    first, second = (
        copier.submit(partial(copier.publish, folder, f"runs/x/1/checkpoints/{name}")) for name in ("7-1", "8-2")
    )
    eventually(lambda: store.asked > 0)

    copier.close()

    assert isinstance(first.exception(), StorageUnavailable)
    assert second.cancelled()


class FullStore(FolderStore):
    """A store without room."""

    def publish(self, source: Path, path: str) -> list[FileRef]:
        raise StorageFull(path)


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


@pytest.fixture
def demonstrations(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path / "artifacts")
    (tmp_path / "shown.npz").write_bytes(b"shown")
    store.publish(tmp_path / "shown.npz", "demonstrations/dem_1/dem_1.npz")
    return store


def ref(name: str = "dem_1", sha256: str = hashlib.sha256(b"shown").hexdigest()) -> DemonstrationRef:
    return DemonstrationRef(name, f"walk of {name}", f"demonstrations/{name}/{name}.npz", sha256)


def test_demonstrations_lie_in_the_folder_under_their_ids(demonstrations: FolderStore, tmp_path: Path) -> None:
    found = fetch_demonstrations(demonstrations, [ref()], tmp_path / "scratch")

    assert found == {"dem_1": str(tmp_path / "scratch" / "dem_1.npz")}
    assert Path(found["dem_1"]).read_bytes() == b"shown"


def test_a_run_without_demonstrations_fetches_none(demonstrations: FolderStore, tmp_path: Path) -> None:
    assert fetch_demonstrations(demonstrations, [], tmp_path / "scratch") == {}


def test_a_file_that_is_missing_is_named(demonstrations: FolderStore, tmp_path: Path) -> None:
    with pytest.raises(DemonstrationUnusable, match=r"demonstration walk of dem_2 \(dem_2\) is missing"):
        fetch_demonstrations(demonstrations, [ref("dem_2")], tmp_path / "scratch")


def test_a_file_that_has_changed_is_not_used(demonstrations: FolderStore, tmp_path: Path) -> None:
    with pytest.raises(DemonstrationUnusable, match="has the SHA-256"):
        fetch_demonstrations(demonstrations, [ref(sha256="0" * 64)], tmp_path / "scratch")
