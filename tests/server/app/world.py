"""A real API: the application behind uvicorn on a free port, on a migrated SQLite file, and workers that do as told.

It serves from a thread of the test (`World`), or from a process of its own that a test may kill (`ServerProcess`).
"""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import structlog

from ludus.schemas import OnnxModel, ScoredBy
from ludus.schemas.states import RunState
from server.app.serve import ApiServer, uvicorn_config
from server.app.services import Services
from server.checkpoints.refs import NewCheckpoint
from server.checkpoints.retention import Retention
from server.kit.artifacts.opening import open_store
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.settings import Settings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim, RunQueue
from server.metrics.points import MetricPoint
from server.runs.events.streams import StreamLimits
from tests.factories import RecordingWakeUp
from tests.migrated import migrated_file, share_compiled
from tests.waiting import eventually

CARTPOLE: dict[str, Any] = {
    "behaviors": {
        "CartPole": {
            "trainer_type": "ppo",
            "hyperparameters": {"buffer_size": 1024, "batch_size": 128},
            "max_steps": 10000,
            "summary_freq": 1000,
        }
    }
}


def build_services(home: Path, *, limits: StreamLimits | None = None, **settings: Any) -> Services:
    """Build what an application works with, on a migrated database in `home`."""
    chosen = Settings(home=home, **settings)
    database = Database.from_settings(chosen.database.model_copy(update={"synchronous": "OFF"}))  # no plug is pulled
    file = Path(database.url.database or "")
    if database.url.get_backend_name() == "sqlite" and not file.exists():
        shutil.copy(migrated_file(), file)
        share_compiled(database)
    else:
        upgrade_database(database)
    return Services.build(
        chosen, database=database, wake_up=RecordingWakeUp(), artifacts=open_store(chosen.storage), limits=limits
    )


@dataclass
class World:
    """A serving API and the other side of its database."""

    services: Services
    server: str
    http: httpx2.Client

    def create(self, config: Mapping[str, Any] | str = CARTPOLE, **fields: Any) -> dict[str, Any]:
        """Create a run over HTTP."""
        answer = self.http.post("/v1/runs", json={"config": config, **fields})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def claim(self, run_id: str) -> "Trainer":
        """Claim a run as a worker does."""
        queue = RunQueue(self.services.database)
        while (claim := queue.claim("host/1/1", 60, hint=run_id)) is not None:
            ledger = AttemptLedger(self.services.database, claim)
            trainer = Trainer(self.services, ledger, claim.run_id, claim.attempt, claim)
            if claim.run_id == run_id:
                return trainer
            trainer.ledger.move(RunState.CANCELLED)
        raise AssertionError(f"{run_id} does not wait for a worker")

    def purge(self, **storage: Any) -> int:
        """Remove the files that are given up, as the controller does; return of how many."""
        settings = self.services.settings.storage.model_copy(update=storage)
        return Retention(self.services.database, self.services.artifacts, settings).purge()


@dataclass
class Trainer:
    """A supervisor that does what a test says."""

    services: Services
    ledger: AttemptLedger
    run_id: str
    attempt: int
    claim: Claim

    def start(self) -> "Trainer":
        """Listen and run."""
        self.ledger.listening([{"address": "127.0.0.1:4000", "index": 0}])
        self.ledger.move(RunState.RUNNING)
        return self

    def finish(self, state: RunState = RunState.SUCCEEDED, **reason: Any) -> None:
        """End the run."""
        self.ledger.move(state, **reason)

    def measure(self, key: str, values: Sequence[float], behavior: str = "CartPole", first: int = 100) -> None:
        """Record a metric at steps 100, 200, ..., or others in steps of 100."""
        points = [MetricPoint(behavior, key, first + 100 * i, 1000.0 + i, value) for i, value in enumerate(values)]
        self.ledger.metrics.append(points)

    def save(
        self,
        step: int,
        files: Mapping[str, bytes],
        scratch: Path,
        behavior: str = "CartPole",
        models: Mapping[str, OnnxModel] | None = None,
        score: float = 12.5,
    ) -> str:
        """Publish a checkpoint; `models` describes those of its files that are models, `score` is its mean return."""
        folder = scratch / f"step-{step}"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        path = f"runs/{self.run_id}/{self.attempt}/checkpoints/{step}"
        published = self.services.artifacts.publish(folder, path)
        return self.ledger.checkpoints.add(
            NewCheckpoint(
                step=step,
                steps={behavior: step},
                reason="interval",
                path=path,
                files=published,
                metrics={behavior: score},
                scored_by={behavior: ScoredBy(kind="episodes", episodes=20, from_step=step - 100)},
                models=models or {},
            )
        )

    def write_log(self, name: str, content: bytes, scratch: Path) -> None:
        """Publish a log."""
        source = scratch / name
        source.write_bytes(content)
        path = f"runs/{self.run_id}/{self.attempt}/logs/{name}"
        self.services.artifacts.publish(source, path)
        self.ledger.log(name, path, len(content))


@contextmanager
def serving(services: Services, port: int = 0) -> Iterator[str]:
    """Serve an application on a real socket, and stop it as a signal would."""
    server = ApiServer(uvicorn_config(services.settings, services), services)
    listening = socket.create_server(("127.0.0.1", port), backlog=512)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    eventually(lambda: server.started, "the server serves")
    try:
        scheme = "http" if services.settings.api.tls is None else "https"
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def open_world(
    home: Path,
    *,
    limits: StreamLimits | None = None,
    token: str | None = None,
    url: str | None = None,
    api: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[World]:
    """Serve on a fresh database, by default SQLite."""
    # structlog's default paints every local variable of a traceback, which takes seconds, and on standard output.
    # pytest shows what goes to the standard library's loggers, with the tests that failed.
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    database = {"database": {"url": url}} if url else {}
    services = build_services(home, limits=limits, api={"token": token, **(api or {})}, **database, **settings)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with serving(services) as server, httpx2.Client(base_url=server, timeout=30, headers=headers, verify=False) as http:
        yield World(services, server, http)


class ServerProcess:
    """`ludus server` in a process of its own, on a port that stays the same when it is started again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        database = Database.from_settings(Settings(home=home).database)
        upgrade_database(database)
        database.close()
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.server = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; clients wait in line until it accepts."""
        descriptor = self.listening.fileno()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ludus.cli", "server", "--fd", str(descriptor)],
            pass_fds=(descriptor,),
            env={**os.environ, "LUDUS_HOME": str(self.home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """End the process with a signal and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        """End everything."""
        if self.process is not None and self.process.poll() is None:
            self.end()
        self.listening.close()


@contextmanager
def server_process(home: Path) -> Iterator[ServerProcess]:
    """Run a server process."""
    process = ServerProcess(home)
    process.start()
    try:
        yield process
    finally:
        process.close()
