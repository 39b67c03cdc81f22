"""The images and docker-compose.yml itself, on a container engine: train, restart the worker, download.

Needs an engine that `docker compose` reaches (Docker, or Podman's socket in DOCKER_HOST) and the images of
docker-compose.yml, which `make containers` builds. LUDUS_TEST_COMPOSE_OVERRIDE names a further Compose file: other
images of PostgreSQL, say. The ports 7100 to 7115 have to be free.
"""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ludus.client import Client
from tests.ports import free_port
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
LUDUS = [sys.executable, "-m", "ludus.cli"]
START_SECONDS, TRAIN_SECONDS = 180, 240


def has_images() -> bool:
    """Whether an engine answers that has the images."""
    if not shutil.which("docker"):
        return False
    command = ["docker", "image", "inspect", "ludus-server", "ludus-worker"]
    return subprocess.run(command, check=False, capture_output=True, timeout=20).returncode == 0


pytestmark = [
    pytest.mark.containers,
    pytest.mark.slow,
    pytest.mark.timeout(START_SECONDS + 2 * TRAIN_SECONDS),
    pytest.mark.skipif(not has_images(), reason="needs a container engine with the images of docker-compose.yml"),
]


@dataclass(frozen=True)
class Stack:
    """The stack of docker-compose.yml, running, and what its operator wrote into .env."""

    folder: Path
    variables: dict[str, str]
    api: str
    gateway: str

    def compose(self, *arguments: str) -> str:
        command = ["docker", "compose", "--project-name", "ludus-test", "--env-file", ".env", *arguments]
        done = subprocess.run(
            command, check=False, cwd=self.folder, capture_output=True, text=True, timeout=START_SECONDS
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "40")

    def ludus(self, *arguments: str) -> subprocess.Popen[str]:
        environment = os.environ | {
            "LUDUS_SERVER": self.api,
            "LUDUS_TOKEN": self.variables["LUDUS_API__TOKEN"],
            "LUDUS_SIMULATOR_TOKEN": self.variables["LUDUS_GATEWAY__TOKEN"],
        }
        return subprocess.Popen([*LUDUS, *arguments], env=environment, text=True)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Start the stack as README.md says: copy .env.example, fill in the secrets at its top, `docker compose up -d`."""
    api, gateway = free_port(), free_port()
    variables = {
        "POSTGRES_PASSWORD": secrets.token_hex(24),
        "LUDUS_API__TOKEN": secrets.token_hex(24),
        "LUDUS_GATEWAY__TOKEN": secrets.token_hex(24),
        "LUDUS_GATEWAY__TICKET_KEY": secrets.token_hex(32),
        "LUDUS_WORKER__ADVERTISE_HOST": "127.0.0.1",
        "LUDUS_PUBLISH_API": f"127.0.0.1:{api}",
        "LUDUS_PUBLISH_GATEWAY": f"127.0.0.1:{gateway}",
    }
    lines = (ROOT / ".env.example").read_text().splitlines()
    kept = [line for line in lines if line.partition("=")[0] not in variables]
    (tmp_path / ".env").write_text("\n".join([*kept, *(f"{name}={value}" for name, value in variables.items())]))
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    if override := os.environ.get("LUDUS_TEST_COMPOSE_OVERRIDE"):
        shutil.copy(override, tmp_path / "docker-compose.override.yml")
    running = Stack(tmp_path, variables, f"http://127.0.0.1:{api}", f"127.0.0.1:{gateway}")
    try:
        running.compose("up", "--detach", "--no-build", "--wait")
        yield running
    finally:
        sys.stdout.write(running.logs())  # pytest shows it where a test failed
        running.compose("down", "--volumes", "--timeout", "5")


def test_the_composed_stack_trains_resumes_after_a_restart_of_its_worker_and_hands_out_the_model(stack: Stack) -> None:
    configuration = ROOT / "server/config/presets/cartpole.yaml"
    overrides = ("--set", "behaviors.CartPole.max_steps=60000", "--set", "behaviors.CartPole.checkpoint_interval=10000")
    assert stack.ludus("run", "create", str(configuration), "--name", "composed", *overrides).wait(30) == 0
    simulator = stack.ludus(
        "simulate", "gymnasium:CartPole-v1", "--run", "composed", "--envs", "4", "--server", stack.gateway
    )
    try:
        with Client(stack.api, stack.variables["LUDUS_API__TOKEN"]) as client:

            def far_enough() -> bool:
                run = client.runs.get("composed")
                assert run.finished_at is None, run.stop_detail
                return run.step >= 15_000

            eventually(far_enough, "step 15,000", TRAIN_SECONDS)
        stack.compose("restart", "worker")
        assert (
            stack.ludus("run", "wait", "composed", "--timeout", "4m", "--require", "step>=60000").wait(TRAIN_SECONDS)
            == 0
        )
        assert simulator.wait(30) == 0
    finally:
        simulator.kill()
        simulator.wait()

    with Client(stack.api, stack.variables["LUDUS_API__TOKEN"]) as client:
        assert client.runs.get("composed").attempt == 2
    assert stack.ludus("checkpoint", "download", "composed", "--output", str(stack.folder / "model")).wait(60) == 0
    assert list((stack.folder / "model").rglob("*.onnx"))
