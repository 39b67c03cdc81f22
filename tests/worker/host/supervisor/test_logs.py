"""The log of an attempt in parts of bounded size, its publication while it grows, and profiles on request."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from ludus.schemas import Profile
from ludus.schemas.states import RunState
from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import FileRef
from server.kit.db.database import Database
from server.kit.errors import StorageUnavailable
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.runs.models import Event, Log
from server.runs.profiles import ProfileRepository
from server.runs.repository import RunRepository
from tests.factories import make_claim, make_run
from tests.waiting import eventually
from worker.host.supervisor import logs
from worker.host.supervisor.lease import Lease, Writes
from worker.host.supervisor.logs import END_NAME, NAME, AttemptLog, LogPublisher, Profiles
from worker.host.supervisor.transfers import ArtifactTransfer


def append(path: Path, *numbers: int) -> None:
    with path.open("ab") as file:
        for number in numbers:
            file.write(b'{"event": "line", "number": %d}\n' % number)


def published(log: AttemptLog) -> dict[str, str]:
    return {name: file.read_text() for name, file in log.due()}


def numbers(text: str) -> list[int]:
    """Parse every line; a line that was cut in two fails."""
    return [record["number"] for record in map(json.loads, text.splitlines()) if record["event"] == "line"]


def test_a_short_log_is_one_file_that_grows(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "trainer.log", limit=4096)
    before = published(log)
    append(log.path, 1)
    first = published(log)
    again = published(log)
    append(log.path, 2)

    assert (before, again) == ({}, {})
    assert numbers(first[NAME]) == [1]
    assert {name: numbers(text) for name, text in published(log).items()} == {NAME: [1, 2]}


def test_of_a_long_log_the_beginning_and_the_end_are_kept_in_whole_lines(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "trainer.log", limit=4096)
    kept: dict[str, str] = {}
    largest = 0
    for number in range(5000):
        append(log.path, number)
        if number % 37 == 0:
            kept |= published(log)
            largest = max(largest, log.path.stat().st_size, *(len(text) for text in kept.values()))
    kept |= published(log)

    beginning, end = numbers(kept[NAME]), numbers(kept[END_NAME])
    assert beginning == list(range(len(beginning)))
    assert len(kept[NAME]) > 3000
    assert json.loads(kept[NAME].splitlines()[-1])["name"] == END_NAME
    assert end == list(range(end[0], 5000))
    assert len(kept[END_NAME]) >= 2048 - 40
    assert largest < 3 * 4096  # here and on the host's disk


def test_one_flood_between_two_looks_is_cut_too(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "trainer.log", limit=4096)
    append(log.path, *range(10_000))

    kept = published(log)

    assert numbers(kept[NAME])[0] == 0
    assert numbers(kept[END_NAME])[-1] == 9999
    assert log.path.stat().st_size == 0


def handed_over(log: AttemptLog, *, arriving: int) -> list[str]:
    """Publish to a store that takes so many files and then is away; return the names of what it was handed."""
    names: list[str] = []
    for name, _ in log.due():
        names.append(name)
        if len(names) > arriving:
            break
    return names


def test_what_did_not_arrive_is_due_again_though_nothing_is_written_any_more(tmp_path: Path) -> None:
    short, long = (AttemptLog(tmp_path / name, limit=4096) for name in ("short.log", "long.log"))
    append(short.path, *range(10))
    append(long.path, *range(1000))

    assert [handed_over(short, arriving=n) for n in (0, 0, 1, 1)] == [[NAME], [NAME], [NAME], []]
    assert [handed_over(long, arriving=n) for n in (0, 1, 0, 1, 1)] == [
        [NAME],  # it does not arrive
        [NAME, END_NAME],  # the end does not
        [END_NAME],
        [END_NAME],
        [],
    ]


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
        with self.publisher.log.path.open("a") as file:
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
    published.publisher.log.path.write_text("one\n")

    def sizes() -> list[int]:
        published.publisher.publish()
        published.writes.flush(10)
        return published.sizes()

    assert eventually(sizes) == [4]


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


SPINNING = """
import subprocess, sys
def spinning_parent():
    while True: pass
subprocess.Popen([sys.executable, "-c", "def spinning_child():\\n while True: pass\\nspinning_child()"])
spinning_parent()
"""


class Attempt:
    """An attempt that is asked for a profile."""

    def __init__(self, database: Database, folder: Path) -> None:
        make_run(database, name="run")
        claim = make_claim(database)
        self._database = database
        self.ledger = AttemptLedger(database, claim)
        self.ledger.move(RunState.RUNNING)
        self.store = FolderStore(folder / "artifacts")
        self._writes = Writes()
        self._transfer = ArtifactTransfer(self.store, Lease(claim, self.ledger, WorkerSettings()), lambda: False)
        scratch = folder / "scratch"
        scratch.mkdir()
        self.profiles = Profiles(claim, self.ledger, self._transfer, self._writes, scratch)
        with database.write() as session:
            self.run_id = claim.run_id
            ProfileRepository(session).add(RunRepository(session).lock(claim.run_id), 1)

    def answered(self, seconds: float = 60.0) -> Profile:
        """Serve the request as a supervisor does, until it is answered."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.profiles.poll()
            self._writes.flush(1.0)
            with self._database.read() as session:
                newest = ProfileRepository(session).newest(RunRepository(session).get(self.run_id))
            assert newest is not None
            if newest.answered:
                return newest
            time.sleep(0.05)  # allow: sleep, because the supervisor's loop has a pace
        raise AssertionError("the request was not answered")

    def close(self) -> None:
        """End everything."""
        self.profiles.close()
        self._transfer.close()


@pytest.fixture
def attempt(database: Database, tmp_path: Path) -> Iterator[Attempt]:
    """A running attempt."""
    made = Attempt(database, tmp_path)
    yield made
    made.close()


@pytest.fixture
def spinning() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that computes, with a child that does."""
    process = subprocess.Popen([sys.executable, "-c", SPINNING], start_new_session=True)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_flame_graph_shows_a_process_and_its_children_and_stops_neither(
    attempt: Attempt, spinning: "subprocess.Popen[bytes]"
) -> None:
    attempt.profiles.begin(spinning.pid)
    attempt.profiles.begin(spinning.pid)  # with the next heartbeat: it is one request

    answered = attempt.answered()

    assert (answered.log, answered.problem) == ("profile-1.svg", None)
    with attempt.store.open(f"runs/{attempt.run_id}/1/logs/profile-1.svg") as file:
        graph = file.read().decode()
    assert "spinning_parent" in graph
    assert "spinning_child" in graph
    assert spinning.poll() is None
    assert attempt.ledger.profiles.requested() is None


@pytest.mark.timeout(120)
def test_a_profile_that_py_spy_cannot_make_is_answered_with_its_reason(attempt: Attempt) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(10)

    attempt.profiles.begin(ended.pid)
    answered = attempt.answered()

    assert answered.log is None
    assert answered.problem is not None
    assert answered.problem.startswith("py-spy failed: ")


def test_a_worker_without_py_spy_says_how_to_get_it(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs.shutil, "which", lambda *_, **__: None)

    attempt.profiles.begin(1)

    assert attempt.answered().problem == logs.MISSING
