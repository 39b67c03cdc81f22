"""The log of an attempt in the artifact store, while it grows."""

import time
from pathlib import Path

from sqlalchemy import select

from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import FileRef
from server.kit.db.database import Database
from server.kit.errors import StorageUnavailable
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.runs.models import Event, Log
from worker.host.supervisor.lease import Lease
from worker.host.supervisor.logs import LogPublisher
from worker.host.supervisor.transfers import ArtifactTransfer
from worker.host.supervisor.writes import Writes


class MoodyStore(FolderStore):
    """A store that is away when a test wants it."""

    away = False

    def publish(self, source: Path, path: str) -> list[FileRef]:
        if self.away:
            raise StorageUnavailable("there is no route to it")
        return super().publish(source, path)


class Published:
    """A publisher with all that it needs."""

    def __init__(self, database: Database, claim: Claim, ledger: AttemptLedger, lease: Lease, folder: Path) -> None:
        self.database = database
        self.store = MoodyStore(folder / "artifacts")
        self.writes = Writes()
        self.publisher = LogPublisher(
            claim, ledger, ArtifactTransfer(self.store, lease, lambda: False), self.writes, folder
        )

    def grow(self, line: str) -> None:
        """Append to the log, and publish it."""
        with self.publisher.path.open("a") as file:
            file.write(line)
        self.publisher.publish(last=True)
        self.writes.flush(10)

    def sizes(self) -> list[int]:
        """Sizes of the log files that the database knows."""
        with self.database.read() as session:
            return list(session.scalars(select(Log.size)))

    def complaints(self) -> int:
        """How often somebody was told that the store is away."""
        with self.database.read() as session:
            return len(session.scalars(select(Event).where(Event.type == "log_not_stored")).all())


def test_a_growing_log_is_entered_with_its_size(
    database: Database, claim: Claim, ledger: AttemptLedger, lease: Lease, tmp_path: Path
) -> None:
    published = Published(database, claim, ledger, lease, tmp_path)
    published.publisher.publish(last=True)  # there is none yet
    before = published.sizes()

    published.grow("one\n")
    first = published.sizes()
    published.grow("two\n")

    assert (before, first, published.sizes()) == ([], [4], [8])
    (file,) = published.store.files(f"runs/{claim.run_id}/1/logs")
    with published.store.open(file.path) as stored:
        assert stored.read() == b"one\ntwo\n"


def test_publishing_does_not_wait_for_the_store(
    database: Database, claim: Claim, ledger: AttemptLedger, lease: Lease, tmp_path: Path
) -> None:
    published = Published(database, claim, ledger, lease, tmp_path)
    published.publisher.path.write_text("one\n")

    deadline = time.monotonic() + 10
    while not published.sizes() and time.monotonic() < deadline:
        published.publisher.publish()
        published.writes.flush(10)

    assert published.sizes() == [4]


def test_the_last_lines_are_published_although_the_store_was_away_when_they_were_written(
    database: Database, claim: Claim, ledger: AttemptLedger, lease: Lease, tmp_path: Path
) -> None:
    published = Published(database, claim, ledger, lease, tmp_path)
    published.store.away = True
    published.grow("one\n")
    published.store.away = False

    published.grow("")

    assert published.sizes() == [4]


def test_a_store_that_is_away_is_told_of_once_and_again_when_it_was_back(
    database: Database, claim: Claim, ledger: AttemptLedger, lease: Lease, tmp_path: Path
) -> None:
    published = Published(database, claim, ledger, lease, tmp_path)

    complaints = []
    for line, away in (("one\n", True), ("two\n", True), ("three\n", False), ("four\n", True)):
        published.store.away = away
        published.grow(line)
        complaints.append(published.complaints())

    assert complaints == [1, 1, 1, 2]
    assert published.sizes() == [14]
