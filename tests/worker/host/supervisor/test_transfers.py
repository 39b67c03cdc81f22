"""Copying to and from the artifact store, on a thread of its own."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import FileRef
from server.kit.db.database import Database
from server.kit.errors import StorageUnavailable
from server.lifecycle.leases.repository import LeaseRepository
from server.lifecycle.service import RunService
from tests.factories import RecordingWakeUp
from tests.waiting import eventually
from tests.worker.host.supervisor.conftest import SETTINGS
from worker.host.supervisor import transfers
from worker.host.supervisor.lease import Lease
from worker.host.supervisor.transfers import ArtifactTransfer, Unwanted


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
    copy = copier.publish(folder, "runs/x/1/checkpoints/7-1")
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
    first, second = (copier.publish(folder, f"runs/x/1/checkpoints/{name}") for name in ("7-1", "8-2"))
    eventually(lambda: store.asked > 0)

    copier.close()

    assert isinstance(first.exception(), StorageUnavailable)
    assert second.cancelled()
