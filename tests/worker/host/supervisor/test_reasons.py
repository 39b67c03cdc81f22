"""A run whose collectors or trainer end by themselves says why, in its stop detail and in its events."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from ludus.protocol.tls import TlsFiles
from ludus.schemas.states import RunState
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts.repository import AttemptLedger
from server.runs.events.repository import EventRepository
from tests.factories import make_claim, make_run, read_run
from tests.ludus.protocol.test_tls import CERTIFICATE, OTHER, PRIVATE
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.supervising import Separate, Trainer
from tests.worker.trainer.attempts import Listener
from worker.host.process import WarmTrainer
from worker.host.supervisor.attempt_log import AttemptLog
from worker.host.supervisor.loop import Supervisor
from worker.trainer.__main__ import _execute
from worker.trainer.messages import Job


def fail(
    database: Database,
    folder: Path,
    trainer: WarmTrainer,
    **settings: Any,
) -> tuple[str, list[str]]:
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


def test_a_trainer_that_leaves_no_error_points_to_its_log(database: Database, tmp_path: Path) -> None:
    message, _ = fail(database, tmp_path, Separate(trainers.is_killed, counts=str(tmp_path / "counts"), kills=0))

    assert "ended unexpectedly (signal SIGKILL, not sent by Ludus): its log says more" in message


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
