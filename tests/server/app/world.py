"""A real API: the application behind uvicorn on a free port, on a migrated SQLite file, and workers that do as told."""

import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import structlog

from server.app.serve import ApiServer, uvicorn_config
from server.app.services import Services
from server.app.streams import StreamLimits
from server.checkpoints.refs import NewCheckpoint
from server.kit.artifacts import FolderStore
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.settings import Settings
from server.metrics.points import MetricPoint
from server.runs.repository import AttemptLedger, RunQueue
from server.runs.states import RunState
from tests.factories import RecordingBell
from tests.migrated import migrated_file

CARTPOLE: dict[str, Any] = {"behaviors": {"CartPole": {"trainer_type": "ppo", "max_steps": 10000}}}


def build_services(home: Path, *, limits: StreamLimits | None = None, **settings: Any) -> Services:
    """Build what an application works with, on a migrated database in `home`."""
    chosen = Settings(home=home, **settings)
    database = Database.from_settings(chosen.database.model_copy(update={"synchronous": "OFF"}))  # no plug is pulled
    file = Path(database.url.database or "")
    if database.url.get_backend_name() == "sqlite" and not file.exists():
        shutil.copy(migrated_file(), file)
    else:
        upgrade_database(database)
    return Services.build(
        chosen, database=database, bell=RecordingBell(), artifacts=FolderStore(chosen.storage.root), limits=limits
    )


@dataclass
class World:
    """A serving API and the other side of its database."""

    services: Services
    server: str
    http: httpx.Client

    def create(self, config: Mapping[str, Any] | str = CARTPOLE, **fields: Any) -> dict[str, Any]:
        """Create a run over HTTP."""
        answer = self.http.post("/v1/runs", json={"config": config, **fields})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def claim(self, run_id: str) -> "Trainer":
        """Claim a run as a worker does."""
        queue = RunQueue(self.services.database)
        while (claim := queue.claim("host/1/1", 60, hint=run_id)) is not None:
            trainer = Trainer(self.services, AttemptLedger(self.services.database, claim), claim.run_id, claim.epoch)
            if claim.run_id == run_id:
                return trainer
            trainer.ledger.move(RunState.CANCELLED)
        raise AssertionError(f"{run_id} does not wait for a worker")


@dataclass
class Trainer:
    """A supervisor that does what a test says."""

    services: Services
    ledger: AttemptLedger
    run_id: str
    epoch: int

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
        self.ledger.metrics(points)

    def save(self, step: int, files: Mapping[str, bytes], scratch: Path, behavior: str = "CartPole") -> str:
        """Publish a checkpoint."""
        folder = scratch / f"step-{step}"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        path = f"runs/{self.run_id}/{self.epoch}/checkpoints/{step}"
        published = self.services.artifacts.publish(folder, path)
        return self.ledger.checkpoint(
            NewCheckpoint(step, {behavior: step}, "interval", path, published, {behavior: 12.5})
        )

    def write_log(self, name: str, content: bytes, scratch: Path) -> None:
        """Publish a log."""
        source = scratch / name
        source.write_bytes(content)
        path = f"runs/{self.run_id}/{self.epoch}/logs/{name}"
        self.services.artifacts.publish(source, path)
        self.ledger.log(name, path, len(content))


@contextmanager
def serving(services: Services, port: int = 0) -> Iterator[str]:
    """Serve an application on a real socket, and stop it as a signal would."""
    server = ApiServer(uvicorn_config(services.settings, services), services)
    listening = socket.create_server(("127.0.0.1", port), backlog=512)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
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
    # structlog's default paints every local variable of a traceback, which takes seconds, and on standard output
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
        logger_factory=structlog.PrintLoggerFactory(sys.__stderr__),
    )
    database = {"database": {"url": url}} if url else {}
    services = build_services(home, limits=limits, api={"token": token, **(api or {})}, **database, **settings)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with serving(services) as server, httpx.Client(base_url=server, timeout=30, headers=headers) as http:
        yield World(services, server, http)
