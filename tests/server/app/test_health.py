"""Health checks of containers: healthy and not, against real parts."""

import socket
from pathlib import Path

import pytest

from server.app import health
from server.kit.db.database import Database
from server.kit.settings import Settings
from server.workers.repository import WorkerInfo, WorkerRegistry


@pytest.fixture
def settings(sqlite_database: Database) -> Settings:
    return Settings(database={"url": sqlite_database.url.render_as_string(hide_password=False)})  # type: ignore[arg-type]


@pytest.fixture
def sqlite_database(tmp_path: Path, sqlite_template: Path) -> Database:
    path = tmp_path / "ludus.db"
    path.write_bytes(sqlite_template.read_bytes())
    return Database(f"sqlite:///{path}")


def test_a_worker_is_healthy_while_a_slot_of_this_host_is_heard_of(
    settings: Settings, sqlite_database: Database
) -> None:
    registry = WorkerRegistry(sqlite_database)
    assert not health.worker(settings)

    registry.register(WorkerInfo("other/1/0", "another-host", 1, "0"))
    assert not health.worker(settings)
    registry.register(WorkerInfo("here/1/0", socket.gethostname(), 1, "0"))
    assert health.worker(settings)
    registry.stopped("here/1/0")
    assert not health.worker(settings)
    sqlite_database.close()


def test_a_database_that_is_away_is_no_healthy_one(settings: Settings) -> None:
    away = Settings(database={"url": "postgresql+psycopg://ludus@127.0.0.1:1/ludus"})  # type: ignore[arg-type]

    assert health.answering_database(settings)
    assert not health.answering_database(away)
    assert not health.worker(away)


def test_a_gateway_is_healthy_while_it_accepts_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = Settings(gateway={"port": server.getsockname()[1]})  # type: ignore[arg-type]
        assert health.gateway(settings)

    assert not health.gateway(settings)


def test_an_api_that_is_away_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    assert not health.api(Settings(api={"port": port}))  # type: ignore[arg-type]
