"""A run whose games act beside themselves loses its edge collector, all that it collects for, and the network.

The edge collector reaches the gateway and the worker through cables that can be cut. Games dial the edge collector, so
that no fault may end one of them, or cost an event, a point of a metric or a checkpoint that a client was told of.
"""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import structlog

from tests.chaos.cluster import WORKERS, Cluster, Simulators
from tests.chaos.disturbances import TO_PROCESSES, Scene, going_on
from tests.chaos.servers import Cable, cut_for
from tests.chaos.witness import Witness
from tests.e2e.stack import LUDUS, cartpole, environment
from tests.ports import free_port
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]
log = structlog.get_logger()

FAR = "127.0.0.2"
"""Under this name the edge collector reaches gateway and workers."""
COLLECTOR_PORTS = 3
"""Ports of each worker: of the edge reader, and spare ones while an old attempt ends."""
OUTAGE_SECONDS = 30.0


class Distance:
    """A cluster, and a machine with an edge collector and games behind cables."""

    def __init__(self, folder: Path, database: Mapping[str, str]) -> None:
        workers = {}
        ports = []
        for name in WORKERS:
            first = free_port(COLLECTOR_PORTS)
            ports += range(first, first + COLLECTOR_PORTS)
            workers[name] = {
                "LUDUS_WORKER__PORT_RANGE": f"[{first}, {first + COLLECTOR_PORTS - 1}]",
                "LUDUS_WORKER__ADVERTISE_HOST": FAR,
            }
        self.cluster = Cluster(folder / "home", workers, **database)
        gateway = int(self.cluster.gateway.rpartition(":")[2])
        self._cables = [Cable((FAR, port), ("127.0.0.1", port)) for port in (gateway, *ports)]
        for cable in self._cables:
            cable.mend()
        self._folder, self._gateway = folder, f"{FAR}:{gateway}"
        self._collector: subprocess.Popen[bytes] | None = None
        self._run = ""
        self.near = f"127.0.0.1:{free_port()}"

    def collect(self, run: str) -> None:
        """Start an edge collector for a run."""
        self._run = run
        command = [*LUDUS, "collect", run, "--port", self.near.rpartition(":")[2], "--server", self._gateway]
        with (self._folder / "collect.log").open("ab") as output:
            self._collector = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment()
            )

    def kill_the_collector(self, scene: Scene) -> None:
        """The edge collector crashes, and is started again; its games join again."""
        left = next_event(scene, "collector_left")
        self.end_the_collector()
        left()
        self.collect(self._run)

    def end_the_collector(self) -> None:
        """kill -9."""
        if self._collector is not None:
            self._collector.kill()
            self._collector.wait()

    def cut_the_cables(self, scene: Scene) -> None:
        """Nothing comes through for half a minute."""
        cut_for(self._cables, OUTAGE_SECONDS)

    def stop(self) -> None:
        """Leave nothing behind."""
        self.end_the_collector()
        self.cluster.stop()
        for cable in self._cables:
            cable.cut()


def next_event(scene: Scene, kind: str) -> Callable[[], None]:
    """Return a function that asserts that another event of a kind has come since."""

    def count() -> int:
        with scene.cluster.client() as client:
            return sum(event.type == kind for event in client.events.list(scene.run))

    before = count()

    def came() -> None:
        eventually(lambda: count() > before, f"an event {kind}", 60)

    return came


@pytest.fixture
def distance(tmp_path: Path, database: Mapping[str, str]) -> Iterator[Distance]:
    there = Distance(tmp_path, database)
    try:
        yield there
    finally:
        there.stop()


def test_a_run_with_an_edge_collector_loses_each_part_and_nothing_that_was_told_while_its_games_play_on(
    distance: Distance, tmp_path: Path
) -> None:
    cluster = distance.cluster
    places = {"simulators": {"grace_seconds": 300, "collectors": {"local": 0, "edge": 1}}}
    faults: dict[str, Callable[[Scene], None]] = {
        "the edge collector is killed": distance.kill_the_collector,
        **{f"the {name} is killed": TO_PROCESSES[f"the {name} is killed"] for name in ("trainer", "gateway", "worker")},
        "the network is cut": distance.cut_the_cables,
    }
    with cluster.client() as client:
        run = client.runs.create({**cartpole(max_steps=10**7), **places}).id
        witness = Witness(cluster.api, run)
        distance.collect(run)
        simulators = Simulators(distance.near, run)
        games = simulators.running()
        scene = Scene(cluster, run, simulators)
        try:
            going_on(scene)
            for name, disturb in faults.items():
                began = time.monotonic()
                disturb(scene)
                going_on(scene)
                log.info("survived", fault=name, seconds=round(time.monotonic() - began, 1))
                assert simulators.running() == games, f"{name}: a game has ended"
            client.runs.stop(run)
            ended = client.runs.wait(run, timeout=60)
            time.sleep(1)  # allow: sleep, because the witness looks once a second
        finally:
            witness.stop()
            simulators.stop()
        assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "user")
        witness.hold_to_account(client, tmp_path)
