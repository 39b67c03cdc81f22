"""A stack that is deployed as docker-compose.yml and docs/operations.md say trains, relays, resumes and hands out."""

import fcntl
import os
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from ludus.client import ApiError
from ludus.schemas import Run
from tests.deployment.deployment import ADDRESSES, S3_PORT, TABLE, WORKERS, Deployment, table_of_ports
from tests.deployment.hosts import Process, skip_without_namespaces
from tests.e2e.games import write_build
from tests.e2e.stack import cartpole
from tests.s3 import needs_s3
from tests.waiting import eventually

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(300), needs_s3]

PREFIX = "ludus-deployment-"
CONNECT_SECONDS = 0.5
PORTS = (5432, 6379, 7070, 8080, S3_PORT, 7099, 7100, 7115, 7116)
ENDLESS = 10**7
WALKING = {"name": "Walker?team=0", "continuous": 2, "agents": 2}


def walker(max_steps: int) -> dict[str, Any]:
    """Return the configuration of a run that trains the Unity game."""
    return {
        "behaviors": {
            "Walker": {
                "trainer_type": "ppo",
                "hyperparameters": {"batch_size": 32, "buffer_size": 128, "num_epoch": 1},
                "network_settings": {"hidden_units": 16},
                "max_steps": max_steps,
                "summary_freq": 256,
            }
        },
        "seed": 1,
    }


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, which the kernel lets go of when this process ends. Raises BlockingIOError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    skip_without_namespaces()
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(BlockingIOError), locked(left):  # of a test that was killed, unless it still runs
            shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    folder.chmod(0o755)  # PostgreSQL's own user has to come in
    with locked(folder):
        running = Deployment(folder)
        try:
            yield running
        finally:
            running.close()
            if os.environ.get("LUDUS_TEST_KEEP") is None:
                shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def games() -> Iterator[list[Process]]:
    """Games that a test starts; they are ended with it."""
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def reached(names: Iterable[str], ports: Iterable[int]) -> set[tuple[str, int]]:
    """Return the ports of hosts from which anything comes back; it may be that nothing listens there."""
    asked = {(name, port): socket.socket() for name in names for port in ports}
    for (name, port), each in asked.items():
        each.setblocking(False)
        each.connect_ex((ADDRESSES[name], port))
    time.sleep(CONNECT_SECONDS)  # allow: sleep, because what a firewall drops shows in nothing but time
    _, answered, _ = select.select([], asked.values(), [], 0)
    for each in asked.values():
        each.close()
    return {place for place, each in asked.items() if each in answered}


def state(deployment: Deployment, run: Run) -> Run:
    now = deployment.ask(lambda client: client.runs.get(run.id))
    assert now.state not in {"FAILED", "CANCELLED", "PAUSED"}, f"{now.state}: {now.stop_reason} {now.stop_detail}"
    return now


def finished(deployment: Deployment, run: Run, seconds: float = 90) -> Run:
    """Return a run once it has succeeded."""

    def ended() -> Run | None:
        now = state(deployment, run)
        return now if now.state == "SUCCEEDED" else None

    return eventually(ended, "the run succeeds", seconds)


def worker_of(deployment: Deployment, run: Run) -> str:
    """Return the host that trains a run, once one does."""

    def host() -> str | None:
        attempts = deployment.ask(lambda client: client.runs.attempts(run.id))
        return next((one.worker_id.split("/")[0] for one in attempts if one.ended_at is None), None)

    return eventually(host, "a worker has the run", 60)


def test_simulators_reach_what_the_page_opens_and_nothing_else(deployment: Deployment) -> None:
    opened = {
        (name, port)
        for sources, targets, first, last in table_of_ports()
        if "simulators" in sources
        for word in targets
        for name in TABLE[word]
        for port in range(first, last + 1)
    }
    servers = ("postgres", "redis", "s3", "control", *WORKERS)

    assert deployment.hosts["games"].do(reached, servers, PORTS) == {each for each in opened if each[1] in PORTS}
    assert deployment.hosts["office"].do(reached, servers, PORTS) == {("control", 7070)}


@dataclass
class Trained:
    """Two runs that were trained at the same time, one by a native game, one by a Unity game."""

    native: Run
    unity: Run
    exits: list[int]
    """Exit codes of the games."""

    def both(self) -> tuple[Run, Run]:
        return self.native, self.unity


@pytest.fixture(scope="module")
def trained(deployment: Deployment) -> Trained:
    """Train on both workers to the end."""
    native = deployment.ask(lambda client: client.runs.create(cartpole(4000), name="native"))
    unity = deployment.ask(lambda client: client.runs.create(walker(1024), name="unity"))
    build = write_build(deployment.folder, WALKING)
    games = [deployment.simulate("games", "native"), deployment.unity("games", "unity", build)]
    finished(deployment, native)
    finished(deployment, unity)
    return Trained(native, unity, [game.wait(30) for game in games])


def test_native_and_unity_games_train_to_the_end_each_on_a_worker_of_its_own(
    deployment: Deployment, trained: Trained
) -> None:
    assert trained.exits == [0, 0]
    attempts = [deployment.ask(lambda client, run=run: client.runs.attempts(run.id)) for run in trained.both()]
    assert {one.worker_id.split("/")[0] for each in attempts for one in each} == set(WORKERS)
    for run in trained.both():
        simulators = deployment.ask(lambda client, run=run: client.simulators.list(run.id))
        assert [(each.relayed, each.peer.split(":")[-2]) for each in simulators] == [(False, ADDRESSES["games"])]


def test_a_checkpoint_is_downloaded_from_another_host_and_lies_in_the_bucket_alone(
    deployment: Deployment, trained: Trained, tmp_path: Path
) -> None:
    run = trained.native.id
    target = tmp_path / "CartPole.onnx"

    deployment.ask(lambda client: client.checkpoints.download(run, "latest", "CartPole.onnx", target))

    assert [each.name for each in onnxruntime.InferenceSession(target).get_outputs()]
    stored = deployment.hosts["data"].do(_objects, deployment)
    assert any(run in key and key.endswith("CartPole.onnx") for key in stored)
    for host in ("control", *WORKERS):
        left = [file for file in (deployment.folder / "volumes" / host / "artifacts").rglob("*") if file.is_file()]
        assert not left, "a folder that only one host has"


def _objects(deployment: Deployment) -> list[str]:
    client: Any = deployment.s3.client()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="ludus")
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def test_games_behind_a_nat_play_directly_and_those_that_reach_the_gateway_alone_are_relayed(
    deployment: Deployment, games: list[Process], tmp_path: Path
) -> None:
    runs = [
        deployment.ask(lambda client, config=config, name=name: client.runs.create(config, name=name))
        # Endless: the game that plays directly could reach the last step before another has come through the gateway.
        for name, config in (("outside", cartpole(ENDLESS)), ("outside-unity", walker(ENDLESS)))
    ]
    games += [deployment.simulate(host, "outside") for host in ("home", "office")]
    games += [deployment.unity("office", "outside-unity", write_build(tmp_path, WALKING))]
    expected = [
        {(False, ADDRESSES["router"]), (True, ADDRESSES["control"])},
        {(True, ADDRESSES["control"])},
    ]

    def seen() -> bool:
        simulators = [deployment.ask(lambda client, run=run: client.simulators.list(run.id)) for run in runs]
        found = [{(one.relayed, one.peer.split(":")[-2]) for one in each if one.connected_at} for each in simulators]
        return found == expected

    eventually(seen, "two games play through the gateway, and one directly", 60)
    for run in runs:
        deployment.ask(lambda client, run=run: client.runs.stop(run.id))
        finished(deployment, run)
    assert [game.wait(30) for game in games] == [0, 0, 0]


def test_a_run_goes_on_with_another_worker_when_its_host_is_cut_off_and_the_host_writes_nothing_afterwards(
    deployment: Deployment, games: list[Process]
) -> None:
    run = deployment.ask(lambda client: client.runs.create(cartpole(ENDLESS), name="moves"))
    games.append(deployment.simulate("games", "moves"))
    eventually(lambda: state(deployment, run).step >= 2000, "it has a checkpoint", 90)
    first = worker_of(deployment, run)

    deployment.switch.pull(deployment.hosts[first])
    try:
        eventually(lambda: state(deployment, run).attempt == 2, "another attempt", 60)
        (second,) = set(WORKERS) - {first}
        assert worker_of(deployment, run) == second
        resumed = state(deployment, run).step
        assert resumed >= 1000, "it began again"
        eventually(lambda: state(deployment, run).step >= resumed + 1000, "it trains on", 90)
    finally:
        deployment.switch.plug(deployment.hosts[first])

    eventually(lambda: first in _idle(deployment), "the host is back, and has given up its attempt", 90)
    saved = state(deployment, run).step
    eventually(lambda: state(deployment, run).step >= saved + 1000, "it still trains", 60)
    deployment.ask(lambda client: client.runs.stop(run.id))
    finished(deployment, run)
    assert games[0].wait(30) == 0
    attempts = deployment.ask(lambda client: client.runs.attempts(run.id))
    assert [(one.number, one.worker_id.split("/")[0]) for one in attempts] == [(1, first), (2, second)]
    assert attempts[0].outcome == "lease_expired"
    eventually(lambda: '"event": "lease_lost"' in deployment.log("worker", first), "the host tried to write", 60)
    events = deployment.ask(lambda client: list(client.events.list(run.id)))
    numbers = [event.attempt for event in events if event.attempt is not None]
    assert numbers == sorted(numbers), "an attempt that was over has written"
    assert state(deployment, run).attempt == 2


def _idle(deployment: Deployment) -> set[str]:
    """Return the hosts whose slot lives and has nothing to do, and on which no trainer is left over."""
    alive = deployment.ask(lambda client: client.workers.list())
    return {
        one.host
        for one in alive
        if one.run_id is None
        and time.time() - one.heartbeat_at.timestamp() < 5
        and deployment.healthy("worker", one.host)
    }


NOTICED_SECONDS = 60.0
"""Within this time each side notices that the other one has vanished without a word, and goes on after its return."""


def names_of(deployment: Deployment, *without: str) -> None:
    """Let all hosts resolve the names of the deployment, but these."""
    lines = [f"{address} {name}\n" for name, address in ADDRESSES.items() if name not in without]
    (deployment.folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))  # the file that hosts see


@pytest.mark.slow
def test_names_that_do_not_resolve_for_a_while_are_named_and_waited_for(
    deployment: Deployment, games: list[Process]
) -> None:
    run = deployment.ask(lambda client: client.runs.create(cartpole(ENDLESS), name="names"))
    games.append(deployment.simulate("games", "names"))
    eventually(lambda: state(deployment, run).step >= 2000, "it has a checkpoint", 90)
    data = deployment.hosts["data"]
    servers = {"api": "control", "gateway": "control", "controller": "control", "worker": worker_of(deployment, run)}
    before = {role: len(deployment.log(role, host)) for role, host in servers.items()}
    names_of(deployment, "postgres", "redis", "s3", "control")
    try:
        deployment.switch.pull(data)  # connections end, and new ones need the names
        late = deployment.simulate("home", "names")
        games.append(late)
        eventually(
            lambda: all(
                "failed to resolve host 'postgres'" in deployment.log(role, servers[role])[before[role] :]
                for role in ("controller", "worker")
            ),
            "the name is in the logs",
            NOTICED_SECONDS,
        )
        eventually(
            lambda: "the host name in 'control:7070' cannot be resolved" in deployment.log("simulate", "home"),
            "the game says which name it needs",
            NOTICED_SECONDS,
        )
    finally:
        names_of(deployment)
        deployment.switch.plug(data)

    step = eventually(lambda: state_or_none(deployment, run), "the api answers", NOTICED_SECONDS).step
    saved = deployment.ask(lambda client: client.checkpoints.get(run.id)).step
    eventually(lambda: state(deployment, run).step >= step + 1000, "it trains on", NOTICED_SECONDS)
    eventually(
        lambda: deployment.ask(lambda client: client.checkpoints.get(run.id)).step > saved,
        "a checkpoint is stored",
        NOTICED_SECONDS,
    )
    assert late.poll() is None
    for role, host in servers.items():
        assert deployment.roles[role, host].poll() is None, f"{role} has ended"
        assert "Traceback" not in deployment.log(role, host)[before[role] :]
    assert ended_by(deployment, run) <= {"lease_expired"}
    deployment.ask(lambda client: client.runs.stop(run.id))
    finished(deployment, run)


def ended_by(deployment: Deployment, run: Run) -> set[str]:
    """Return how former attempts ended. Leases are 4 s here: it may take longer to connect to a host that is back."""
    attempts = deployment.ask(lambda client: client.runs.attempts(run.id))
    return {one.outcome for one in attempts if one.outcome is not None}


def state_or_none(deployment: Deployment, run: Run) -> Run | None:
    """Return the run; None while the api does not answer."""
    with suppress(ApiError):
        return state(deployment, run)
    return None


@pytest.mark.slow
def test_a_peer_that_vanishes_without_a_word_is_noticed_and_comes_back(
    deployment: Deployment, games: list[Process]
) -> None:
    lasting = {**cartpole(ENDLESS), "simulators": {"grace_seconds": 600}}
    run = deployment.ask(lambda client: client.runs.create(lasting, name="silence"))
    games += [deployment.simulate("games", "silence"), deployment.simulate("games", "silence", "--collect", "here")]

    def connected() -> int:
        return len(deployment.ask(lambda client: client.simulators.list(run.id, "connected")))

    def collectors() -> set[str]:
        return {each.kind for each in deployment.ask(lambda client: client.runs.collectors(run.id))}

    eventually(lambda: connected() == 2 and "edge" in collectors(), "both games play", 90)
    worker = worker_of(deployment, run)
    deployment.switch.pull(deployment.hosts["games"])
    try:
        eventually(lambda: connected() == 0, "the worker has noticed", NOTICED_SECONDS)
        eventually(lambda: "edge" not in collectors(), "the learner has noticed", NOTICED_SECONDS)
    finally:
        deployment.switch.plug(deployment.hosts["games"])
    eventually(lambda: connected() == 2 and "edge" in collectors(), "both games are back", NOTICED_SECONDS)

    deployment.switch.pull(deployment.hosts["data"])
    try:
        eventually(lambda: state_or_none(deployment, run) is None, "the api says that it has no database", 30)
        eventually(
            lambda: '"event": "heartbeat_failed"' in deployment.log("worker", worker),
            "the worker notices",
            NOTICED_SECONDS,
        )
    finally:
        deployment.switch.plug(deployment.hosts["data"])
    step = eventually(lambda: state_or_none(deployment, run), "the api answers", NOTICED_SECONDS).step
    eventually(lambda: state(deployment, run).step >= step + 1000, "it trains on", NOTICED_SECONDS)
    assert ended_by(deployment, run) <= {"lease_expired"}
    deployment.ask(lambda client: client.runs.stop(run.id))
    finished(deployment, run)
    assert [game.wait(30) for game in games] == [0, 0]
