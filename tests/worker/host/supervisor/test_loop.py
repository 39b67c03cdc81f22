"""The supervisor's side of an attempt, with a trainer that does as a test wants."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from sqlalchemy import select

from ludus.protocol.tls import TlsFiles
from ludus.schemas.states import RunState
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.errors import DatabaseUnavailable
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.ladders.models import LadderMatch, LadderParticipant
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.lifecycle.leases.repository import LeaseRepository
from server.metrics.points import MetricPoint
from server.runs.events.repository import EventRepository
from server.runs.models import Event
from tests.factories import make_claim, make_run, read_metric, read_run
from tests.ludus.protocol.test_tls import CERTIFICATE, OTHER, PRIVATE
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.supervising import (
    LEASE_SECONDS,
    Separate,
    Threaded,
    Trainer,
    messages_of,
    supervise,
    types_of,
)
from tests.worker.trainer.attempts import Listener
from worker.host.process import WarmTrainer
from worker.host.supervisor import loop
from worker.host.supervisor.logs import AttemptLog
from worker.host.supervisor.loop import Supervisor
from worker.trainer.__main__ import _execute
from worker.trainer.messages import Job


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


def test_a_log_that_the_host_has_no_room_to_copy_costs_no_run(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOG_SECONDS", 0.2)
    make_run(database, name="run")

    expired = supervise(database, tmp_path, Threaded(trainers.logs_much, seconds=1.0))

    assert expired == []
    assert read_run(database, "run").state == RunState.SUCCEEDED


def fail(database: Database, folder: Path, trainer: WarmTrainer, **settings: Any) -> tuple[str, list[str]]:
    """Execute a run that nothing is left to try for; return its stop detail and the messages of its events."""
    make_run(database, name="run")
    claim = make_claim(database)
    store = FolderStore(folder / "artifacts")
    ledger = AttemptLedger(database, claim, restart_budget=0)
    worker = WorkerSettings(**settings)
    try:
        Supervisor(claim, ledger, store, worker, folder / "scratch", GatewaySettings(), lambda: False).run(trainer)
    finally:
        trainer.close()
    run = read_run(database, "run")
    assert run.state == RunState.FAILED
    with database.read() as session:
        return run.stop_detail or "", [event.message for event in EventRepository(session).page(run.id)]


@pytest.mark.long
def test_collectors_that_find_no_port_fail_the_run_with_their_range(database: Database, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        message, events = fail(database, tmp_path, WarmTrainer(), port_range=(port, port))

    sentence = f"collector 0 did not start: no free port to listen on: 127.0.0.1, ports ({port}, {port})"
    assert message == f"{sentence}. The budget of 0 restarts without a new checkpoint is spent."
    assert any(sentence in event for event in events)


def last_word(folder: Path, **settings: Any) -> str:
    """Train in this process, as a supervisor lets a process of its own train; return why it could not begin."""
    document = {"behaviors": {"Walker": {}}, "torch_settings": {"device": "cpu"}}
    job = Job(run_id="run", attempt=1, config=document, seed=1, scratch=str(folder), **settings)
    threads = torch.get_num_threads()
    finished = _execute(job, Listener(), [])
    torch.set_num_threads(threads)
    assert finished.outcome == "lost"
    return finished.detail or ""


def test_collectors_that_may_not_listen_end_the_attempt_with_what_they_lack(tmp_path: Path) -> None:
    assert "listening on 0.0.0.0 needs a ticket key" in last_word(tmp_path, bind_host="0.0.0.0")


@pytest.mark.parametrize(
    ("certificate", "key", "sentence"),
    [
        (CERTIFICATE, Path("/no/such.key"), "/no/such.key cannot be read (No such file or directory)"),
        (PRIVATE, PRIVATE, f"{PRIVATE} holds no certificate in PEM"),
        (OTHER, PRIVATE, f"{PRIVATE} is not the key of the certificate in {OTHER}"),
    ],
    ids=["missing", "no certificate", "another key"],
)
def test_collectors_with_bad_files_of_tls_end_the_attempt_with_the_file(
    tmp_path: Path, certificate: Path, key: Path, sentence: str
) -> None:
    path = tmp_path / "trainer.log"

    detail = last_word(tmp_path, **TlsFiles(certificate, key).named(), log_path=str(path))

    assert sentence in detail
    assert "no free port" not in detail
    said = [json.loads(line) for line in path.read_text().splitlines()]
    failed = [line for line in said if line["process"] == "collector" and line["event"] == "collector_failed"]
    assert failed, "the run's log has the traceback"
    assert all(sentence in line["exception"] for line in failed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainer", "sentence"),
    [
        (trainers.raises, "ended unexpectedly (exit code 1): RuntimeError: no more room on the device"),
        (trainers.crashes, "ended unexpectedly (signal SIGSEGV): Fatal Python error: Segmentation fault"),
    ],
    ids=["exception", "crash"],
)
def test_a_trainer_that_dies_fails_the_run_with_its_last_error(
    database: Database, tmp_path: Path, trainer: Trainer, sentence: str
) -> None:
    message, events = fail(database, tmp_path, Separate(trainer))

    assert sentence in message
    assert any(sentence in event for event in events)


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "warm"])
def test_a_trainer_that_cannot_import_what_it_needs_fails_the_run_with_the_reason(
    database: Database, tmp_path: Path, *, warm: bool
) -> None:
    (tmp_path / "torch.py").write_text('raise ImportError("libcudart.so.12: cannot open shared object file")')
    trainer = WarmTrainer({"PYTHONPATH": str(tmp_path)})
    if warm:
        trainer.prepare()

    message, events = fail(database, tmp_path, trainer)

    sentence = "ImportError: libcudart.so.12: cannot open shared object file"
    assert sentence in message
    assert any(sentence in event for event in events)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([{"level": "info", "event": "started"}], None),
        ([{"level": "error", "event": "supervisor_lost", "reason": "it is gone"}], "it is gone"),
        ([{"level": "critical", "event": "x", "exception": "Traceback\n  File\nOSError: gone"}], "OSError: gone"),
        ([{"level": "error", "event": "first"}, {"level": "error", "event": "second"}, {"level": "info"}], "second"),
        (
            ["torch.OutOfMemoryError: CUDA out of memory", "[1, 2]", "broken {", "3"],
            "torch.OutOfMemoryError: CUDA out of memory",
        ),
        ([], None),
    ],
)
def test_the_last_error_of_a_log_is_one_line(tmp_path: Path, lines: list[Any], error: str | None) -> None:
    log = AttemptLog(tmp_path / "trainer.log")
    log.path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}{os.linesep}" for line in lines))

    assert log.last_error() == error


def test_a_log_that_was_never_begun_has_no_error(tmp_path: Path) -> None:
    assert AttemptLog(tmp_path / "trainer.log").last_error() is None


class SlowMetrics(AttemptLedger):
    """A ledger that takes 50 ms for each write of metrics."""

    def __init__(self, database: Database, claim: Claim) -> None:
        super().__init__(database, claim)
        append = self.metrics.append

        def slowly(points: Sequence[MetricPoint]) -> None:
            time.sleep(0.05)  # allow: sleep, because the database is slow
            append(points)

        self.metrics.append = slowly  # type: ignore[method-assign]


def test_a_checkpoint_is_stored_while_metrics_come_faster_than_they_are_written(
    database: Database, tmp_path: Path
) -> None:
    run = make_run(database, name="run")

    supervise(database, tmp_path, Threaded(trainers.summarizes_until_saved, seconds=10.0), ledger=SlowMetrics)

    assert messages_of(database)["ended"] == "stored"
    with database.read() as session:
        told = session.scalars(select(Event.data).where(Event.type == "ended")).one()["step"]
    history = read_metric(database, run.id, "CartPole", "reward")
    assert history.steps.tolist() == list(range(1, told + 1)), "every summary is there"
