"""The images and docker-compose.yml itself, on a container engine, with the commands of docs/operations.md.

Needs an engine that `docker compose` reaches (Docker, or Podman's socket in DOCKER_HOST) and the images of
docker-compose.yml, which `make containers` builds. LUDUS_TEST_COMPOSE_OVERRIDE names a further Compose file: other
images of PostgreSQL, say. The ports 7100 to 7131 have to be free. The tests share one stack.
"""

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ludus.client import Client
from ludus.client.errors import Busy, ServerUnreachable
from ludus.protocol.tls import ClientTls
from ludus.schemas import Run
from tests.ludus.protocol.test_tls import CERTIFICATE, PRIVATE
from tests.ports import free_port
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
LUDUS = [sys.executable, "-m", "ludus.cli"]
COMMAND_SECONDS, TRAIN_SECONDS = 300, 600


def has_images() -> bool:
    """Whether an engine answers that has the images."""
    if not shutil.which("docker"):
        return False
    command = ["docker", "image", "inspect", "ludus-server", "ludus-worker"]
    return subprocess.run(command, check=False, capture_output=True, timeout=20).returncode == 0


pytestmark = [
    pytest.mark.containers,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not has_images(), reason="needs a container engine with the images of docker-compose.yml"),
]


def block(name: str, language: str = "sh") -> str:
    """Return a block of the page that says that it is tested."""
    (text,) = re.findall(rf"<!-- tested: {name} -->\n```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


STORING = """
from io import BytesIO
import boto3
import numpy as np
from server.metrics import parquet
from server.metrics.points import Points
points = Points(np.arange(3), np.arange(3.0), np.arange(3.0))
file = BytesIO()
assert parquet.write(file, "run", [("", "Reward", {1: points})]) == 3
assert parquet.read(file, "run", lambda *_: True)
for service in ("s3", "sts", "sso", "sso-oidc", "signin"):
    boto3.client(service, region_name="eu-central-1")
"""
"""What docker/prune must leave of pyarrow and boto3."""


@dataclass
class Stack:
    """The stack of docker-compose.yml, running, and what its operator wrote into .env."""

    folder: Path
    variables: dict[str, str]
    api: str
    gateway: str
    ca_file: Path | None = None

    def shell(self, script: str, check: bool = True) -> str:
        """Execute commands of the page in the folder with docker-compose.yml, and return what they print."""
        environment = os.environ | {"COMPOSE_PROJECT_NAME": "ludus-test"}
        done = subprocess.run(
            ["bash", "-euc", script],
            check=False,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        assert not check or done.returncode == 0, f"{script}: {done.stderr}"
        return done.stdout + done.stderr

    def write_settings(self, **more: str) -> None:
        lines = (ROOT / ".env.example").read_text().splitlines()
        variables = self.variables | more
        kept = [line for line in lines if line.partition("=")[0] not in variables]
        written = [f"{name}={value}" for name, value in variables.items()]
        (self.folder / ".env").write_text("\n".join([*kept, *written]))

    def ludus(self, *arguments: str) -> subprocess.Popen[str]:
        environment = os.environ | {
            "LUDUS_SERVER": self.api,
            "LUDUS_TOKEN": self.variables["LUDUS_API__TOKEN"],
            "LUDUS_SIMULATOR_TOKEN": self.variables["LUDUS_GATEWAY__TOKEN"],
        }
        if self.ca_file is not None:
            environment["LUDUS_CA_FILE"] = str(self.ca_file)
        return subprocess.Popen([*LUDUS, *arguments], env=environment, text=True)

    def client(self) -> Client:
        return Client(self.api, self.variables["LUDUS_API__TOKEN"], tls=ClientTls(self.ca_file))

    @contextmanager
    def training(self, name: str, *, max_steps: int = 10_000_000) -> Iterator[subprocess.Popen[str]]:
        """Train CartPole-v1 in a run of this name, yield its simulator, and cancel the run."""
        keys = {"max_steps": max_steps, "checkpoint_interval": 5000}
        settings = [part for key, value in keys.items() for part in ("--set", f"behaviors.CartPole.{key}={value}")]
        preset = str(ROOT / "server/config/presets/cartpole.yaml")
        assert self.ludus("run", "create", preset, "--name", name, *settings).wait(30) == 0
        tls = () if self.ca_file is None else ("--ca-file", str(self.ca_file))
        game = ("gymnasium:CartPole-v1", "--run", name, "--envs", "4", "--server", self.gateway)
        simulator = self.ludus("simulate", *game, *tls)
        try:
            yield simulator
        finally:
            simulator.kill()
            simulator.wait()
            self.ludus("run", "cancel", name).wait(60)

    def trains_on(self, name: str, *, steps: int = 6000) -> Run:
        """Wait until a run has made more steps than it has now, which may be while a service is away."""

        def read() -> Run | None:
            try:
                with self.client() as client:
                    return client.runs.get(name)
            except (Busy, ServerUnreachable):
                return None

        first = eventually(read, "the api answers", TRAIN_SECONDS)

        def on() -> Run | None:
            run = read()
            assert run is None or run.finished_at is None, run.stop_detail
            return run if run is not None and run.step >= first.step + steps else None

        return eventually(on, f"{name} trains on", TRAIN_SECONDS)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Start the stack as README.md says: copy .env.example, fill in the secrets at its top, `docker compose up -d`."""
    folder, api, gateway = tmp_path_factory.mktemp("compose"), free_port(), free_port()
    variables = {
        "POSTGRES_PASSWORD": secrets.token_hex(24),
        "LUDUS_API__TOKEN": secrets.token_hex(24),
        "LUDUS_GATEWAY__TOKEN": secrets.token_hex(24),
        "LUDUS_GATEWAY__TICKET_KEY": secrets.token_hex(32),
        "LUDUS_WORKER__ADVERTISE_HOST": "127.0.0.1",
        "LUDUS_PUBLISH_API": f"127.0.0.1:{api}",
        "LUDUS_PUBLISH_GATEWAY": f"127.0.0.1:{gateway}",
    }
    shutil.copy(ROOT / "docker-compose.yml", folder)
    if override := os.environ.get("LUDUS_TEST_COMPOSE_OVERRIDE"):
        shutil.copy(override, folder / "docker-compose.override.yml")
    running = Stack(folder, variables, f"http://127.0.0.1:{api}", f"127.0.0.1:{gateway}")
    running.write_settings()
    try:
        running.shell("docker compose up --detach --no-build --wait")
        yield running
    finally:
        sys.stdout.write(running.shell("docker compose logs --no-color --tail 40", check=False))
        running.shell("docker compose down --volumes --timeout 5 --remove-orphans")


def test_the_composed_stack_trains_resumes_after_a_restart_of_its_worker_and_hands_out_the_model(stack: Stack) -> None:
    with stack.training("composed", max_steps=60_000) as simulator:
        stack.trains_on("composed")
        stack.shell("docker compose restart --timeout 120 worker")
        wait = ("run", "wait", "composed", "--timeout", "10m", "--require", "step>=60000")
        assert stack.ludus(*wait).wait(TRAIN_SECONDS) == 0
        assert simulator.wait(30) == 0

    with stack.client() as client:
        first, _ = client.runs.attempts("composed")
        assert first.outcome == "released", "the worker had the time to save a checkpoint"
    assert stack.ludus("checkpoint", "download", "composed", "--output", str(stack.folder / "model")).wait(60) == 0
    assert list((stack.folder / "model").rglob("*.onnx"))


def test_a_run_goes_on_while_each_service_is_replaced_and_after_all_were_stopped(stack: Stack) -> None:
    with stack.training("replaced"):
        stack.trains_on("replaced")
        for service in ("api", "gateway", "controller", "redis", "postgres"):
            stack.shell(f"docker compose up -d --no-build --no-deps --force-recreate {service}")
            assert stack.trains_on("replaced").attempt == 1, service
        stack.shell("docker compose stop")
        stack.shell("docker compose up -d --no-build")
        assert stack.trains_on("replaced").attempt == 2
        with stack.client() as client:
            assert client.runs.attempts("replaced")[0].outcome == "released"


def test_a_backup_is_restored_into_new_volumes_and_the_run_goes_on(stack: Stack) -> None:
    with stack.training("restored"):
        stack.trains_on("restored", steps=12_000)
        (stack.folder / "COPY").mkdir()
        stack.shell(block("backup of Compose"))
        stack.shell("docker compose down --volumes")
        said = stack.shell(block("restore of Compose").replace("up -d", "up -d --no-build"))
        assert "every file is there, and none is too much" in said
        assert stack.trains_on("restored").attempt == 2


def test_a_second_worker_has_ports_of_its_own(stack: Stack) -> None:
    (stack.folder / "second.yml").write_text(block("second worker", "yaml"))
    files = [name for name in ("docker-compose.yml", "docker-compose.override.yml") if (stack.folder / name).exists()]
    together = f"export COMPOSE_FILE={':'.join([*files, 'second.yml'])}"
    stack.shell(f"{together}; docker compose up -d --no-build worker-2")
    try:
        with stack.client() as client:
            eventually(
                lambda: {(), ("large",)} <= {slot.labels for slot in client.workers.list()},
                "both workers are in the list",
                TRAIN_SECONDS,
            )
        assert "Up" in stack.shell(f"{together}; docker compose ps worker")
    finally:
        stack.shell(f"{together}; docker compose rm --stop --force worker-2")


@pytest.mark.parametrize("image", ["ludus-server", "ludus-worker"])
def test_an_image_reads_and_writes_parquet_and_speaks_s3(image: str) -> None:
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python", image, "-c", STORING]
    subprocess.run(command, check=True, timeout=COMMAND_SECONDS)


def test_a_run_trains_over_tls_with_the_files_of_a_folder(stack: Stack) -> None:
    (stack.folder / "tls").mkdir()
    for file, name in ((CERTIFICATE, "server.pem"), (PRIVATE, "server.key"), (CERTIFICATE, "ca.pem")):
        shutil.copyfile(file, stack.folder / "tls" / name)
        (stack.folder / "tls" / name).chmod(0o644)  # user 1000 of the images has to read them
    lines = re.findall(
        r"^(LUDUS_\w+)=(\./tls|/var/lib/ludus/tls/.*)$", (ROOT / "docs/security.md").read_text(), re.MULTILINE
    )
    plain = stack.api
    try:
        stack.write_settings(**dict(lines))
        stack.api, stack.ca_file = plain.replace("http:", "https:"), CERTIFICATE
        stack.shell("docker compose up -d --no-build --wait")
        with stack.training("over-tls"):
            stack.trains_on("over-tls")
    finally:
        stack.api, stack.ca_file = plain, None
        stack.write_settings()
        stack.shell("docker compose up -d --no-build --wait")
