"""Profiles of real processes by py-spy."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.schemas import Profile
from ludus.schemas.states import RunState
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts.repository import AttemptLedger
from server.runs.profiles.repository import ProfileRepository
from server.runs.repository import RunRepository
from tests.factories import make_claim, make_run
from worker.host.supervisor import profiles
from worker.host.supervisor.lease import Lease
from worker.host.supervisor.profiles import Profiles
from worker.host.supervisor.transfers import ArtifactTransfer
from worker.host.supervisor.writes import Writes

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
    monkeypatch.setattr(profiles.shutil, "which", lambda *_, **__: None)

    attempt.profiles.begin(1)

    assert attempt.answered().problem == profiles.MISSING
