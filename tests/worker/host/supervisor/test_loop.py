"""The supervisor's side of an attempt, with a trainer that does as a test wants."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import select

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.errors import DatabaseUnavailable
from server.ladders.models import LadderMatch, LadderParticipant
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.leases.repository import LeaseRepository
from server.runs.models import Attempt, Event
from tests.factories import make_claim, make_run, read_run
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.supervising import LEASE_SECONDS, Separate, Threaded, supervise, types_of
from worker.host.supervisor import loop


def test_matches_that_a_trainer_reports_are_in_the_ledger_when_its_run_has_ended(
    database: Database, tmp_path: Path
) -> None:
    make_run(database, name="run")

    supervise(database, tmp_path, Threaded(trainers.plays))

    assert read_run(database, "run").state == RunState.SUCCEEDED
    with database.read() as session:
        matches = session.scalars(select(LadderMatch).order_by(LadderMatch.seq)).all()
        participants = session.scalars(
            select(LadderParticipant).order_by(LadderParticipant.seq, LadderParticipant.position)
        ).all()
    assert [(each.number, each.outcome, each.attempt, each.simulator) for each in matches] == [
        (1, "win", 1, 7),
        (2, "loss", 1, 7),
    ]
    assert [(each.at, each.step, each.elo, each.rated) for each in matches] == [
        (1001.0, 500, 1200.5, True),
        (1002.0, 500, 1200.5, True),
    ]
    assert [(each.player, each.team, each.rank, each.step) for each in participants] == [
        (1, 0, 1, 500),
        (2, 1, 2, 300),
        (1, 0, 2, 500),
        (2, 1, 1, 300),
    ]


def writable(url: str) -> bool:
    """Return whether a transaction can begin to write."""
    database = Database(url, busy_seconds=0.5)
    try:
        with database.write():
            return True
    except DatabaseUnavailable:
        return False
    finally:
        database.close()


@pytest.mark.long
def test_a_frozen_supervisor_loses_its_trainer_within_a_lease_and_writes_nothing_when_it_wakes_up(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    run = make_run(database, name="run")
    command = [sys.executable, "-m", "tests.worker.host.supervisor.supervising", database_url, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        trainer = next(int(line.split()[1]) for line in process.stdout if line.startswith("speaks"))
        while read_run(database, "run").step < 5:
            time.sleep(0.05)

        process.send_signal(signal.SIGSTOP)
        while not writable(database_url):  # stopped in the middle of a write to SQLite, which admits one writer
            process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
            process.send_signal(signal.SIGSTOP)
        frozen = time.monotonic()
        while psutil.pid_exists(trainer) and psutil.Process(trainer).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() - frozen < LEASE_SECONDS + 1, "a lease, and what a busy machine adds"
            time.sleep(0.02)
        state, deadline = None, time.monotonic() + 60
        while (
            state is None
        ):  # what the controller does each round; a row that the frozen process has locked waits for the next
            assert time.monotonic() < deadline
            time.sleep(0.05)
            with database.read() as session:
                expired = LeaseRepository(session).expired()
            if expired:
                with database.write() as session:
                    state = LeaseRepository(session).reap(expired[0], 3)
        assert state is RunState.RECOVERING
        successor = AttemptLedger(database, make_claim(database, "successor"))
        before, files = types_of(database, 1), sorted((tmp_path / "artifacts").rglob("*"))

        process.send_signal(signal.SIGCONT)
        process.wait(10)
    finally:
        process.kill()
        process.communicate()

    assert types_of(database, 1) == before, "the old attempt number has no more events"
    assert sorted((tmp_path / "artifacts").rglob("*")) == files
    assert all(f"/{run.id}/1/" in str(file) for file in files if file.is_file()), (
        "each attempt number has a folder of its own"
    )
    assert read_run(database, "run").attempt == 2
    successor.heartbeat(10, 0)


@pytest.mark.parametrize(
    ("listens", "limits", "said"),
    [
        (False, {"startup_seconds": 0.5, "silence_seconds": 60}, "took more than 0.5 s to start"),
        (True, {"startup_seconds": 60, "silence_seconds": 0.5}, "reported nothing for 0.5 s"),
    ],
    ids=["at the start", "later"],
)
def test_a_trainer_has_one_time_to_start_and_another_to_say_something(
    database: Database, tmp_path: Path, listens: bool, limits: dict[str, Any], said: str
) -> None:
    make_run(database, name="run")

    supervise(
        database,
        tmp_path,
        Separate(trainers.speaks, listens=listens, talks=False),
        **limits,
    )

    run = read_run(database, "run")
    with database.read() as session:
        attempt = session.get_one(Attempt, (run.id, 1))
    assert (run.state, attempt.outcome) == (RunState.RECOVERING, "trainer_lost")
    assert said in str(attempt.detail)


def test_a_trainer_that_outgrows_its_memory_hands_the_run_back_and_the_event_has_the_figures(
    database: Database, tmp_path: Path
) -> None:
    make_run(database, name="run")

    trainer = Separate(trainers.speaks, listens=True, talks=True)
    supervise(database, tmp_path, trainer, trainer_memory_bytes=2**20)

    run = read_run(database, "run")
    with database.read() as session:
        attempt = session.get_one(Attempt, (run.id, 1))
        (event,) = session.scalars(select(Event).where(Event.type == "trainer_over_memory_limit"))
    assert (run.state, attempt.outcome, run.restarts_without_progress) == (RunState.RECOVERING, "memory_limit", 1)
    assert event.data["bytes"] > event.data["limit_bytes"] == 2**20
    assert "may hold 1 MiB" in event.message


@pytest.mark.long
def test_a_trainer_that_outgrows_its_memory_without_any_progress_fails_by_name(
    database: Database, tmp_path: Path
) -> None:
    make_run(database, name="run")
    trainer = Separate(trainers.speaks, listens=True, talks=True)

    for _ in range(4):
        supervise(database, tmp_path, trainer, trainer_memory_bytes=2**20)

    run = read_run(database, "run")
    assert (run.state, run.stop_reason) == (RunState.FAILED, "memory_limit")


def test_a_run_whose_host_has_no_room_for_it_is_handed_back_with_the_reason(database: Database, tmp_path: Path) -> None:
    make_run(database, name="run")
    (tmp_path / "file").touch()

    supervise(database, tmp_path, Threaded(trainers.floods, number=80), scratch=tmp_path / "file" / "scratch")

    run = read_run(database, "run")
    with database.read() as session:
        attempt = session.get_one(Attempt, (run.id, 1))
    assert (run.state, run.restarts_without_progress) == (RunState.RECOVERING, 1)
    assert "File exists" in str(attempt.detail)


def test_a_log_that_the_host_has_no_room_to_copy_costs_no_run(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOG_SECONDS", 0.2)
    make_run(database, name="run")

    expired = supervise(database, tmp_path, Threaded(trainers.logs_much, seconds=1.0))

    assert expired == []
    assert read_run(database, "run").state == RunState.SUCCEEDED
