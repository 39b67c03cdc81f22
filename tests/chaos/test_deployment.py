"""The chaos suite: a deployment on PostgreSQL and Redis with two workers loses every part, its servers and its network.

One run trains through all of it and solves its task. Afterwards it is held to account for everything that a client was
told; another run with the same configuration, undisturbed, reaches the same.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import structlog
import yaml

from ludus.client import Client
from ludus.schemas import Run
from server.config.presets import read_preset
from server.kit.queue import WakeUpQueue, make_celery
from server.kit.settings import Settings
from tests.chaos.cluster import WORKERS, Cluster, Simulators
from tests.chaos.disturbances import TO_PROCESSES, Scene, going_on
from tests.chaos.servers import Cable, PgBouncer, Postgres, Redis, Server, cut_for
from tests.chaos.witness import METRIC, Witness
from tests.ports import free_port
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]
log = structlog.get_logger()

OUTAGE_SECONDS = 5.0
NETWORK = "127.0.0.2"
"""Under this name simulators and the gateway reach collectors, through cables that can be cut."""
COLLECTOR_PORTS = 4
"""Ports of each worker's collectors."""
CONFIG = yaml.safe_load(read_preset("cartpole"))
CONFIG["seed"] = 1
CONFIG["simulators"] = {"grace_seconds": 60}
CONFIG["behaviors"]["CartPole"] |= {"max_steps": 10**7, "checkpoint_interval": 2000}
LAST_STEPS = 150_000
"""Steps that a run has left when nothing happens to it any more: its learning rate falls to 0 in them."""
SOLVED = 475.0
"""Mean return that counts as solved; the most is 500."""


class Deployment:
    """A cluster on servers of its own, with a disk for artifacts and cables to its collectors."""

    def __init__(self, folder: Path, *, pooled: bool) -> None:
        self.folder = folder
        self.postgres, self.redis = Postgres(folder), Redis()
        self.postgres.start()
        self.pooler = PgBouncer(folder, self.postgres.url) if pooled else None
        if self.pooler is not None:
            self.pooler.start()
        self.redis.start()
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.full = self._mount()
        self.cables: list[Cable] = []
        workers: dict[str, Mapping[str, str]] = {}
        for name in WORKERS:
            first = free_port(COLLECTOR_PORTS)
            ports = range(first, first + COLLECTOR_PORTS)
            self.cables += [Cable((NETWORK, port), ("127.0.0.1", port)) for port in ports]
            workers[name] = {
                "LUDUS_WORKER__PORT_RANGE": f"[{first}, {ports[-1]}]",
                "LUDUS_WORKER__ADVERTISE_HOST": NETWORK,
            }
        for cable in self.cables:
            cable.mend()
        self.settings = {
            "LUDUS_DATABASE__URL": self.postgres.url if self.pooler is None else self.pooler.url,
            "LUDUS_QUEUE__BROKER_URL": self.redis.url,
            "LUDUS_STORAGE__ROOT": str(self.disk),
        }
        self.cluster = Cluster(folder / "home", workers, **self.settings)

    def _mount(self) -> bool:
        """Put the artifacts on a small file system of their own, where this is allowed; tell whether it was."""
        command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(self.disk)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def stop(self) -> None:
        """Leave nothing behind."""
        self.cluster.stop()
        for cable in self.cables:
            cable.cut()
        self.redis.crash()
        if self.pooler is not None:
            self.pooler.crash()
        self.postgres.crash()
        if self.full:
            subprocess.run(["umount", str(self.disk)], check=False)

    # what can happen to it, besides what can happen to its processes -----------------------------------------------

    def crash_postgresql(self, scene: Scene) -> None:
        """The database is gone for longer than a lease; no healthy run is taken from its worker for that."""
        self._lose_the_database(scene, self.postgres)

    def crash_pgbouncer(self, scene: Scene) -> None:
        """The pooler is gone for as long, and every connection with it."""
        if self.pooler is not None:
            self._lose_the_database(scene, self.pooler)

    def _lose_the_database(self, scene: Scene, server: Server) -> None:
        with self.cluster.client() as client:
            attempt = client.runs.get(scene.run).attempt
        server.crash()
        time.sleep(OUTAGE_SECONDS)  # allow: sleep, because the outage lasts so long
        server.start()
        going_on(scene)
        with self.cluster.client() as client:
            ended = [
                one
                for one in client.runs.attempts(scene.run)
                if one.number == attempt and one.outcome == "lease_expired"
            ]
        assert not ended, "an outage of the database takes no run away"

    def crash_redis(self, scene: Scene) -> None:
        """Every message is lost, and a run that was just created all the same begins."""
        with self.cluster.client() as client:
            self.redis.crash()
            orphan = client.runs.create(CONFIG, name="its-message-is-lost").id
            self.redis.start()
            eventually(lambda: client.runs.get(orphan).attempt > 0, "the other worker takes it", 60)
            client.runs.cancel(orphan)
            client.runs.wait(orphan, timeout=60)

    def double_messages(self, scene: Scene) -> None:
        """Messages come again and again, late, and of runs that have ended long ago."""
        wake_up = WakeUpQueue(make_celery(Settings(home=self.folder, queue={"broker_url": self.redis.url})))  # type: ignore[arg-type]
        for _ in range(20):
            wake_up.wake(scene.run)
            wake_up.wake("run_of_long_ago")
        eventually(lambda: wake_up.pending() == 0, "they are heard")

    def cut_cables(self, scene: Scene) -> None:
        """Nobody reaches the collectors for a while, neither simulators nor the gateway."""
        cut_for(self.cables, OUTAGE_SECONDS)

    def fill_the_disk(self, scene: Scene) -> None:
        """Checkpoints find no room, which costs them and nothing else."""
        if not self.full:
            log.warning("not_filled", why="mounting a small disk needs root")
            return
        filler = self.disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * 4096)

        def failed() -> bool:
            with self.cluster.client() as client:
                return any(event.type == "checkpoint_failed" for event in client.events.list(scene.run))

        eventually(failed, "a checkpoint finds no room", 60)
        filler.unlink()

        def saved_again() -> bool:
            with self.cluster.client() as client:
                events = [event.type for event in client.events.list(scene.run)]
            return "checkpoint_saved" in events[len(events) - 1 - events[::-1].index("checkpoint_failed") :]

        eventually(saved_again, "a checkpoint is saved again", 60)

    def disturbances(self) -> Mapping[str, Callable[[Scene], None]]:
        """Everything, in turn."""
        return {
            **TO_PROCESSES,
            "PostgreSQL crashes": self.crash_postgresql,
            "PgBouncer crashes": self.crash_pgbouncer,
            "Redis crashes": self.crash_redis,
            "messages come again and late": self.double_messages,
            "the network to the collectors is cut": self.cut_cables,
            "the disk is full": self.fill_the_disk,
        }


@pytest.fixture(params=[False, True], ids=["direct", "pgbouncer"])
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    folder = Path(tempfile.gettempdir()) / f"ludus-chaos-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o755)  # PostgreSQL's own user has to come in
    running = Deployment(folder, pooled=request.param)
    try:
        yield running
    finally:
        running.stop()
        if os.environ.get("LUDUS_TEST_KEEP") is None:
            shutil.rmtree(folder, ignore_errors=True)


def test_a_deployment_loses_each_of_its_parts_and_nothing_that_was_told(deployment: Deployment) -> None:
    cluster = deployment.cluster
    with cluster.client() as client:
        run = client.runs.create(CONFIG).id
        witness = Witness(cluster.api, run)
        simulators = Simulators(cluster.gateway, run)
        scene = Scene(cluster, run, simulators)
        try:
            going_on(scene)
            for name, disturb in deployment.disturbances().items():
                began = time.monotonic()
                disturb(scene)
                going_on(scene)
                log.info("survived", fault=name, seconds=round(time.monotonic() - began, 1))
            left_alone, ended = _finish(client, run)
            time.sleep(1)  # allow: sleep, because the witness looks once a second
        finally:
            witness.stop()
            simulators.stop()
        witness.hold_to_account(client, deployment.folder)

        undisturbed = client.runs.create(CONFIG).id
        simulators = Simulators(cluster.gateway, undisturbed)
        try:
            eventually(lambda: client.runs.get(undisturbed).step >= left_alone, f"step {left_alone}", 600)
            _, finished = _finish(client, undisturbed)
        finally:
            simulators.stop()
        assert (finished.state, finished.stop_reason, finished.attempt) == ("SUCCEEDED", "completed", 1)
        reached, without = (_reward(deployment, each) for each in (run, undisturbed))
        log.info("compared", disturbed=reached, undisturbed=without, steps=[ended.step, finished.step])
        assert without > SOLVED
        assert reached > SOLVED


def _finish(client: Client, run: str) -> tuple[int, Run]:
    """Give a run its last steps; return the step from which on, and the run when it has ended."""
    step = client.runs.get(run).step
    client.runs.change(run, behaviors={"CartPole": {"max_steps": step + LAST_STEPS}})
    return step, client.runs.wait(run, timeout=600)


def _reward(deployment: Deployment, run: str) -> float:
    """Return the mean return of a run's last tenth."""
    with deployment.cluster.client() as client:
        (series,) = client.metrics.series(run, METRIC, points=5000)
    values = [value for value in series.values[-len(series.values) // 10 :] if value is not None]
    return sum(values) / len(values)
