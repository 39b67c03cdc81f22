"""Edge collectors through a whole stack: a run whose games are served beside them."""

import contextlib
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ludus.cli.exits import Exit
from ludus.client import Client
from tests.e2e.games import Games
from tests.e2e.stack import LUDUS, LudusUp, Player, cartpole, environment, wait_for_step
from tests.ports import free_port
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.xdist_group("stack")]
STEPS = 2048
LIMITED = {"batch_size": 64, "buffer_size": 450, "num_epoch": 2, "max_policy_lag": 0}
"""Rounds that four games do not end at once: two of them answer for the next one, by a policy that is then too old."""

WAITING = {**LIMITED, "max_policy_lag": 1, "late_steps": "wait"}


@contextlib.contextmanager
def collecting(stack: LudusUp, run: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Run `ludus collect`; yield the address that simulators dial, and the process."""
    port = free_port()
    process = subprocess.Popen(
        [*LUDUS, "collect", run, "--port", str(port), "--server", stack.gateway],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        yield f"127.0.0.1:{port}", process
    finally:
        process.kill()
        process.communicate()


def weights(client: Client, run: str, folder: Path, behavior: str = "CartPole") -> dict[str, Any]:
    """Return the weights of the last policy of a run, by name."""
    model = onnx.load(client.checkpoints.download(run, "latest", f"{behavior}.onnx", folder / f"{run}.onnx"))
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


def lights(**network: Any) -> dict[str, Any]:
    """A run that learns from pictures."""
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 64, "buffer_size": 256},
        "network_settings": {"hidden_units": 16, **network},
        "max_steps": 1024,
        "time_horizon": 16,
    }
    return {"behaviors": {"Lights": behavior}, "seed": 1, "simulators": {"grace_seconds": 60}}


@pytest.mark.parametrize(
    ("config", "behavior", "game"),
    [
        pytest.param(cartpole(STEPS), "CartPole", "gymnasium:CartPole-v1", id="vectors"),
        pytest.param(
            cartpole(STEPS, hyperparameters=LIMITED), "CartPole", "gymnasium:CartPole-v1", id="limit-of-the-policy-lag"
        ),
        pytest.param(cartpole(STEPS, hyperparameters=WAITING), "CartPole", "gymnasium:CartPole-v1", id="late-steps"),
        pytest.param(lights(), "Lights", "python:tests/toys/lights.py:Lights", id="pictures"),
        pytest.param(
            lights(memory={"memory_size": 8, "sequence_length": 4}),
            "Lights",
            "python:tests/toys/lights.py:Lights",
            id="pictures-and-memory",
        ),
    ],
)
def test_in_lockstep_a_run_with_an_edge_collector_ends_with_the_same_bits_as_with_a_local_one(
    stack: LudusUp,
    client: Client,
    play: Callable[..., Player],
    tmp_path: Path,
    config: dict[str, Any],
    behavior: str,
    game: str,
) -> None:
    local = client.runs.create(config)
    play(local.id, game=game)
    assert client.runs.wait(local.id, timeout=60).state == "SUCCEEDED"
    places = {"simulators": {"grace_seconds": 60, "collectors": {"local": 0, "edge": 1}}}
    edge = client.runs.create({**config, **places})
    with collecting(stack, edge.id) as (address, process):
        play(edge.id, "--server", address, game=game)
        assert client.runs.wait(edge.id, timeout=60).state == "SUCCEEDED"
        _, said = process.communicate(timeout=20)

    assert process.returncode == Exit.OK, said
    expected, actual = (weights(client, run.id, tmp_path, behavior) for run in (local, edge))
    assert actual.keys() == expected.keys()
    assert all(np.array_equal(actual[name], expected[name]) for name in expected)
    if "max_policy_lag" in config["behaviors"][behavior]["hyperparameters"]:
        ((one,), (other,)) = (client.metrics.series(run.id, "Policy/Stale Share") for run in (local, edge))
        assert one.values == other.values
        share = float(np.max(np.array(one.values, float)))
        waits = "late_steps" in config["behaviors"][behavior]["hyperparameters"]
        assert share == 0.0 if waits else 0.0 < share < 0.01, "what was answered before its round began, at most"


def test_collecting_for_a_run_without_places_ends_with_the_reason(stack: LudusUp, client: Client) -> None:
    nowhere = {"simulators": {"collectors": {"edge": 0}}}
    run = client.runs.create({**cartpole(STEPS), **nowhere}, name="edge-without-places")

    with collecting(stack, run.id) as (_, process):
        _, said = process.communicate(timeout=20)

    assert process.returncode == Exit.REFUSED
    assert "simulators.collectors.edge is 0" in said


def test_a_run_that_says_nothing_of_edge_collectors_takes_and_lists_those_that_ask(
    stack: LudusUp, client: Client, play: Callable[..., Player]
) -> None:
    run = client.runs.create(cartpole(10**7), name="edge-by-default")
    play(run.id)
    before = wait_for_step(client, run, 100)
    assert not stack.processes("worker.collectors.edge.reader")

    with collecting(stack, run.id) as (address, process):
        play(run.id, "--server", address)
        local, edge = eventually(
            lambda: found if len(found := client.runs.collectors(run.id)) == 2 and found[1].simulators else None,
            "an edge collector that serves",
        )
        wait_for_step(client, run, before.step + 2000)

        assert (local.kind, local.simulators) == ("local", 1)
        assert (edge.kind, edge.index, edge.host) == ("edge", 1, platform.node())
        client.runs.stop(run.id)
        _, said = process.communicate(timeout=60)
    assert process.returncode == Exit.OK, said
    assert client.runs.get(run.id).attempt == 1


def test_where_the_worker_has_no_port_for_edge_collectors_games_are_told_and_go_on_without(tmp_path: Path) -> None:
    port = free_port()
    up = LudusUp(tmp_path / "home", LUDUS_WORKER__PORT_RANGE=f"[{port}, {port}]", LUDUS_WORKER__COLLECTORS="1")
    try:
        with up.client() as client:
            run = client.runs.create(walking(local=1), name="edge-without-ports")
            with collecting(up, run.id) as (_, process):
                _, said = process.communicate(timeout=60)
            assert process.returncode == Exit.REFUSED
            assert f"no free port to listen on: 127.0.0.1, ports ({port}, {port})" in said
            games = Games(up, run.id, tmp_path, WALKER, collect=None)
            try:
                assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED", games.said
            finally:
                games.kill()

            assert "actions are computed by the worker: The worker of run" in games.said
            types = [event.type for event in client.events.list(run.id)]
            assert (types.count("places_unavailable"), types.count("collector_died")) == (1, 0)
    finally:
        up.stop()


def walking(**collectors: int) -> dict[str, Any]:
    """A configuration for a walker of Unity's, in lockstep."""
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 32, "buffer_size": 128, "num_epoch": 1},
        "network_settings": {"hidden_units": 16},
        "max_steps": 1024,
        "checkpoint_interval": 256,
    }
    return {"behaviors": {"Walker": behavior}, "seed": 1, "simulators": {"collectors": collectors}}


WALKER = {"name": "Walker?team=0", "continuous": 2, "agents": 2}


def test_unity_games_whose_actions_are_computed_here_bring_the_same_bits_as_those_behind_a_bridge(
    stack: LudusUp, client: Client, tmp_path: Path
) -> None:
    found = {}
    for collect, places in (("there", {}), ("here", {"local": 0, "edge": 1})):
        (folder := tmp_path / collect).mkdir()
        run = client.runs.create(walking(**places), name=f"edge-unity-{collect}")
        games = Games(stack, run.id, folder, WALKER, collect=collect)
        try:
            assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED", games.said
            assert games.process.wait(20) == Exit.OK, games.said
        finally:
            games.kill()
        found[collect] = weights(client, run.id, folder, "Walker")

    assert all(np.array_equal(found["here"][name], values) for name, values in found["there"].items())


@pytest.mark.parametrize("victim", ["worker.collectors.edge.reader", "worker.trainer"])
def test_unity_games_go_on_when_what_they_collect_for_is_killed(
    stack: LudusUp, client: Client, tmp_path: Path, victim: str
) -> None:
    config = walking(local=0, edge=1)
    config["behaviors"]["Walker"]["max_steps"] = 1_000_000
    run = client.runs.create(config, name=f"edge-{victim}")
    games = Games(stack, run.id, tmp_path, WALKER, collect="here")
    try:
        wait_for_step(client, run, 300)
        pids = games.pids
        for process in stack.processes(victim):
            process.kill()
        step = client.runs.get(run.id).step
        wait_for_step(client, run, step + 600)
        assert games.pids == pids
    finally:
        games.kill()
