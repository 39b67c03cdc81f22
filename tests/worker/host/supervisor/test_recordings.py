"""Recordings of an attempt: what collectors have completed is stored and entered, whatever else lies there."""

from pathlib import Path

import pytest

from ludus.play.recordings.file import End, Header, pack_end, pack_frames, pack_header, summarize
from server.kit.artifacts.store import fetch
from server.kit.db.database import Database
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.simulators.recordings.repository import Recording, RecordingRepository
from tests.recordings import content, frames
from tests.waiting import eventually
from tests.worker.host.supervisor.test_logs import MoodyStore
from worker.host.supervisor.lease import Lease, Writes
from worker.host.supervisor.recordings import RecordingPublisher
from worker.host.supervisor.transfers import ArtifactTransfer

ENDED = End("session", "left", "", ("CartPole",))


class Published:
    """A publisher with all that it needs."""

    def __init__(self, database: Database, claim: Claim, ledger: AttemptLedger, lease: Lease, folder: Path) -> None:
        self.database = database
        self.claim = claim
        self.store = MoodyStore(folder / "artifacts")
        self.writes = Writes()
        transfer = ArtifactTransfer(self.store, lease, lambda: False)
        self.publisher = RecordingPublisher(claim, ledger, transfer, self.writes, folder)
        self.folder = folder / "recordings"
        self.folder.mkdir()

    def put(self, name: str, data: bytes | None = None) -> None:
        """Put a file where collectors write theirs."""
        (self.folder / name).write_bytes(content(frames(3), self.claim.run_id, ENDED) if data is None else data)

    def rows(self, *, last: bool = True) -> list[Recording]:
        """Return what is entered after a batch."""
        self.publisher.publish(last=last)
        self.writes.flush(10)
        with self.database.read() as session:
            return list(RecordingRepository(session).of_run(self.claim.run_id))


@pytest.fixture
def published(database: Database, claim: Claim, ledger: AttemptLedger, lease: Lease, tmp_path: Path) -> Published:
    return Published(database, claim, ledger, lease, tmp_path)


def test_a_complete_recording_is_stored_with_the_configuration(published: Published, tmp_path: Path) -> None:
    published.put("0-0-1.ludusrec")

    (row,) = eventually(lambda: published.rows(last=False))

    digest = fetch(published.store, row.path, tmp_path / "fetched")
    summary = summarize(tmp_path / "fetched")
    assert (digest, row.size) == (row.sha256, (tmp_path / "fetched").stat().st_size)
    assert (summary.run, summary.end) == (published.claim.config, ENDED)
    assert (row.session_id, row.simulator, row.cause, row.code) == ("session-x", 3, "session", "left")
    assert (row.frames, row.behaviors) == (8, ["CartPole"])
    assert list(published.folder.iterdir()) == []


def test_what_is_still_written_waits_until_the_end_and_loses_its_torn_tail(published: Published) -> None:
    published.put("0-0-1.ludusrec.part", content(frames(3), published.claim.run_id, ENDED)[:-3])

    assert published.rows(last=False) == []
    (row,) = published.rows()

    assert (row.cause, row.frames) == ("torn", 8)


STRANGE = {
    "garbage": b"\xff" * 100,
    "nothing": b"",
    "another run's": content(frames(3), "run_of_another", ENDED),
    "another attempt's": pack_header(Header("RUN", 9, "s", 1, "native", 1.0)) + pack_frames(frames(1), 0.0),
    "without a message": pack_header(Header("RUN", 1, "s", 1, "native", 1.0)) + pack_end(ENDED),
}


@pytest.mark.parametrize("what", STRANGE)
def test_what_is_no_recording_of_this_attempt_is_dropped_and_delays_no_other(published: Published, what: str) -> None:
    run = published.claim.run_id
    strange = STRANGE[what]
    if strange.startswith(b"LUDUSREC") and b'"RUN"' in strange:
        header = Header(run, 9 if "attempt" in what else 1, "s", 1, "native", 1.0)
        strange = pack_header(header) + (pack_frames(frames(1), 0.0) if "attempt" in what else pack_end(ENDED))
    published.put("0-0-1.ludusrec", strange)
    published.put("0-0-2.ludusrec")

    assert [row.session_id for row in published.rows()] == ["session-x"]
    assert list(published.folder.iterdir()) == []


def test_texts_of_strangers_fit_their_columns(published: Published) -> None:
    end = End("error" * 50, "c" * 500, "r\x00" * 9000, tuple("b" * 900 for _ in range(300)))
    header = Header(published.claim.run_id, 1, "s" * 900, 2**40, "carrier" * 9, 2.0**32)
    published.put("0-0-1.ludusrec", pack_header(header) + pack_frames(frames(1), 0.0) + pack_end(end))

    (row,) = published.rows()

    assert (len(row.session_id), len(row.code), len(row.behaviors), len(row.behaviors[0])) == (64, 64, 100, 200)
    assert len(row.reason) <= 4000


def test_a_store_that_is_away_gets_it_later(published: Published) -> None:
    published.put("0-0-1.ludusrec")
    published.store.away = True
    assert published.rows() == []
    published.store.away = False

    (row,) = published.rows()

    assert row.frames == 8
