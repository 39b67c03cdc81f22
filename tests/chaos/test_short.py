"""The short form of the chaos suite, on SQLite and a folder as queue: two workers, one run, a fault after the other."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import structlog

from tests.chaos.cluster import Cluster, Simulators
from tests.chaos.disturbances import TO_PROCESSES, Scene, going_on
from tests.chaos.witness import METRIC, Witness
from tests.e2e.stack import cartpole
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

log = structlog.get_logger()

FAULTS = [
    "a simulator is killed",
    "the collector is killed",
    "the trainer is killed",
    "the trainer freezes",
    "the supervisor freezes",
    "the worker is killed",
    "the gateway is killed",
    "the api is killed",
    "the controller is killed",
    "the worker is stopped",
]
LEARNT = 35.0
"""Mean return of CartPole that a policy without training (about 22) does not have."""


def test_a_run_that_loses_every_part_once_loses_nothing_that_was_told_and_learns_all_the_same(
    tmp_path: Path, database: Mapping[str, str]
) -> None:
    cluster = Cluster(tmp_path / "home", **database)
    simulators = None
    witness = None
    try:
        with cluster.client() as client:
            run = client.runs.create(cartpole(max_steps=10**7)).id
            witness = Witness(cluster.api, run)
            simulators = Simulators(cluster.gateway, run)
            scene = Scene(cluster, run, simulators)
            going_on(scene)
            for fault in FAULTS:
                began = time.monotonic()
                TO_PROCESSES[fault](scene)
                going_on(scene)
                log.info("survived", fault=fault, seconds=round(time.monotonic() - began, 1))

            client.runs.stop(run)
            ended = client.runs.wait(run, timeout=60)
            time.sleep(1)  # allow: sleep, because the witness looks once a second
            witness.stop()
            assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "user")
            witness.hold_to_account(client, tmp_path)
            (series,) = client.metrics.series(run, METRIC)
            assert sum(value or 0 for value in series.values[-5:]) / 5 > LEARNT
        simulators.stop()
        eventually(lambda: len(trainers(cluster)) <= 2, "no trainer but the two warm ones is left", 60)
    finally:
        if witness is not None:
            witness.stop()
        if simulators is not None:
            simulators.stop()
        cluster.stop()
    assert cluster.processes() == []


def trainers(cluster: Cluster) -> list[int]:
    """Return the process ids of all trainers."""
    return [each.pid for each in cluster.processes() if "worker.trainer" in each.cmdline()]
