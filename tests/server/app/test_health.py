"""Health checks of containers, as they run there: healthy and not, against real parts."""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from server.app import health
from server.kit.settings import Settings, TelemetrySettings
from server.kit.telemetry import LoopHeartbeat, Probes, serve_metrics
from tests.clock import Clock
from tests.server.app.world import World
from worker.host.ending import FRESH_SECONDS, is_alive, touch

SCRIPT = Path(__file__).resolve().parents[3] / "docker" / "health"


def check(role: str, **variables: object) -> int:
    """Return the exit code of the health check of a container with these settings. It finds no Python."""
    environment = {"PATH": "/bin:/usr/bin", **{name: str(value) for name, value in variables.items()}}
    return subprocess.run([str(SCRIPT), role], env=environment, capture_output=True, timeout=20, check=False).returncode


@contextmanager
def free_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_worker_is_healthy_while_its_slots_touch_the_file_whatever_happens_to_the_database(tmp_path: Path) -> None:
    file = tmp_path / "below" / "worker.alive"
    assert check("worker", LUDUS_WORKER__ALIVE_FILE=file) == 1
    touch(file)
    assert check("worker", LUDUS_WORKER__ALIVE_FILE=file) == 0
    assert check("worker", LUDUS_HOME=tmp_path / "below") == 0
    assert is_alive(file)

    silent = time.time() - FRESH_SECONDS - 1
    os.utime(file, (silent, silent))
    assert check("worker", LUDUS_WORKER__ALIVE_FILE=file) == 1
    assert not is_alive(file)


def test_a_file_that_cannot_be_written_does_not_end_the_slot(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")

    touch(tmp_path / "taken" / "worker.alive")

    assert not is_alive(tmp_path / "taken" / "worker.alive")


@pytest.mark.parametrize(("role", "variable"), [("controller", "CONTROLLER"), ("gateway", "GATEWAY")])
def test_a_role_with_metrics_is_healthy_while_its_loop_turns(role: str, variable: str) -> None:
    clock = Clock()
    heartbeat = LoopHeartbeat(30, clock)
    with free_port() as port:
        pass
    ready = threading.Event()
    probes = Probes(heartbeat.is_alive, ready.is_set)
    serve_metrics(CollectorRegistry(), TelemetrySettings(), port, probes)
    asked = {f"LUDUS_TELEMETRY__{variable}_PORT": port}

    assert check(role, **asked) == 0
    clock.now += 30
    assert check(role, **asked) == 1
    heartbeat.beat()
    assert check(role, **asked) == 0
    assert check(role, **{f"LUDUS_TELEMETRY__{variable}_PORT": 1}) == 1


def test_a_gateway_without_metrics_is_healthy_while_it_accepts_connections() -> None:
    with free_port() as port:
        assert check("gateway", LUDUS_GATEWAY__PORT=port, LUDUS_GATEWAY__HOST="0.0.0.0") == 0

    assert check("gateway", LUDUS_GATEWAY__PORT=port) == 1


def test_an_api_is_healthy_while_it_is_ready(world: World) -> None:
    host, _, port = world.server.removeprefix("http://").rpartition(":")

    assert check("api", LUDUS_API__HOST=host, LUDUS_API__PORT=port) == 0
    with free_port() as gone:
        pass
    assert check("api", LUDUS_API__PORT=gone) == 1
    assert not health.api(Settings(api={"port": gone}))  # type: ignore[arg-type]


def test_a_role_that_there_is_not_and_a_controller_without_a_port_get_a_sentence() -> None:
    assert check("nothing") == 2
    assert check("controller") == 1
