"""Runs that pause and go on, change and are saved, while real games come, go, hang and wait."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ludus.client import Client
from ludus.schemas import Event, Run
from tests.e2e.games import Games
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.e2e.test_unity import WALKER, walking
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("stack")]

Play = Callable[..., Player]
RATE = "behaviors.CartPole.hyperparameters.learning_rate"


def pause(client: Client, run: Run) -> Run:
    client.runs.pause(run.id)
    paused = client.runs.wait(run.id, ["PAUSED"], timeout=60)
    assert (paused.state, paused.stop_reason) == ("PAUSED", "user")
    return paused


def events(client: Client, run: Run, kind: str) -> list[Event]:
    return [event for event in client.events.list(run.id) if event.type == kind]


@pytest.mark.long
def test_a_run_pauses_is_changed_goes_on_with_the_same_game_is_saved_and_branches(client: Client, play: Play) -> None:
    run = client.runs.create(cartpole(checkpoint_interval=1_000_000))
    player = play(run.id)
    wait_for_step(client, run, 600)

    paused = pause(client, run)
    checkpoint = client.checkpoints.get(run.id)
    assert checkpoint.reason == "requested"
    assert [simulator.leave_code for simulator in client.simulators.list(run.id)] == ["run_paused"]
    assert run.id not in {each.run_id for each in client.workers.list()}, "the slot is free"
    client.runs.change(run.id, {"CartPole": {"hyperparameters": {"learning_rate": 1e-4}}})
    assert player.process.poll() is None, "it waits"

    client.runs.resume(run.id, {"CartPole": {"max_steps": 90_000}})
    wait_for_step(client, run, checkpoint.step + 600)

    assert player.process.poll() is None
    (simulator,) = client.simulators.list(run.id)
    assert (simulator.number, simulator.attempt, simulator.state) == (0, 2, "connected"), (
        "the same game, its number too"
    )
    changed = events(client, run, "hyperparameters_changed")
    assert [(each.data["changes"][0]["path"], each.attempt) for each in changed] == [
        (RATE, 2),
        ("behaviors.CartPole.max_steps", 2),
    ]
    (listening,) = [each for each in events(client, run, "trainer_listening") if each.attempt == 2]
    (back,) = [each for each in events(client, run, "simulator_connected") if each.attempt == 2]
    assert (back.at - listening.at).total_seconds() < 5, "it is asked for every half second (slack for busy hosts)"
    assert all(each.applied for each in client.runs.amendments(run.id).amendments)

    live = client.runs.change(run.id, {"CartPole": {"hyperparameters": {"learning_rate": 1e-5}}})
    assert live.state == "RUNNING"
    eventually(lambda: len(events(client, run, "hyperparameters_changed")) == 3, "the trainer goes on with it")
    saved = client.checkpoints.get(run.id, client.checkpoints.save(run.id))
    assert (saved.reason, client.runs.get(run.id).state) == ("requested", "RUNNING")
    ended_step = pause(client, run).step
    assert ended_step >= saved.step >= paused.step

    branch = client.runs.branch(run.id, saved.id, name="twig", overrides={"behaviors.CartPole.max_steps": 600})
    play(branch.id)
    ended = client.runs.wait(branch.id, timeout=60)
    assert (ended.state, ended.step) == ("SUCCEEDED", 600), "it begins at step 0"
    (began,) = events(client, branch, "behavior_initialized")
    assert (began.data["checkpoint"], began.data["step"]) == (saved.id, saved.step)
    assert client.runs.cancel(run.id).state == "CANCELLED"
    assert player.process.wait(30) != 0, "the game was told that there is nothing to wait for any more"


@pytest.mark.faults
def test_unity_games_live_through_a_pause(stack: LudusUp, client: Client, tmp_path: Path) -> None:
    run = client.runs.create(walking())
    games = Games(stack, run.id, tmp_path, WALKER)
    try:
        wait_for_step(client, run, 300)
        players = games.pids
        assert len(players) == 1

        step = pause(client, run).step
        client.runs.resume(run.id)
        wait_for_step(client, run, step + 300)

        assert games.pids == players, "no game was started again"
        client.runs.stop(run.id)
        assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED"
        assert games.process.wait(30) == 0, games.said
    finally:
        games.kill()


@pytest.mark.faults
def test_a_simulator_that_comes_back_within_the_grace_time_keeps_the_run_healthy(client: Client, play: Play) -> None:
    run = client.runs.create(cartpole())  # its grace time is a minute
    first = play(run.id)
    wait_for_step(client, run, 600)

    first.kill()
    eventually(lambda: not client.simulators.list(run.id, "connected"), "nobody plays")
    step = client.runs.get(run.id).step
    play(run.id)
    wait_for_step(client, run, step + 600)

    now = client.runs.get(run.id)
    assert (now.state, now.attempt, now.stop_reason) == ("RUNNING", 1, None)
    assert events(client, run, "run_paused") == []


@pytest.mark.faults
def test_a_simulator_that_hangs_is_named_in_time_and_nobody_waits_for_it(client: Client, play: Play) -> None:
    document: dict[str, Any] = cartpole()
    document["simulators"]["step_timeout_seconds"] = 4.0
    run = client.runs.create(document)
    hung = play(run.id)
    wait_for_step(client, run, 300)
    play(run.id)
    eventually(lambda: len(client.simulators.list(run.id, "connected")) == 2, "two simulators")

    os.killpg(hung.process.pid, signal.SIGSTOP)
    step = client.runs.get(run.id).step
    wait_for_step(client, run, step + 600)
    still = {simulator.number for simulator in client.simulators.list(run.id, "connected")}
    left = eventually(lambda: events(client, run, "simulator_left"), "the event")

    assert 1 in still, "the other one plays on meanwhile"
    assert left[0].data["number"] == 0
    assert left[0].data["code"] == "step_timeout"
    assert "Simulator 0 left" in left[0].message
    os.killpg(hung.process.pid, signal.SIGCONT)
    eventually(lambda: len(client.simulators.list(run.id, "connected")) == 2, "it wakes up and comes back", 60)


@pytest.mark.faults
def test_a_run_that_shall_not_go_on_by_itself_waits_for_its_user(client: Client, play: Play) -> None:
    document: dict[str, Any] = cartpole()
    document["simulators"] = {"grace_seconds": 1.0, "auto_resume": False}
    run = client.runs.create(document)
    first = play(run.id)
    wait_for_step(client, run, 600)
    first.kill()
    assert client.runs.wait(run.id, ["PAUSED"], timeout=60).stop_reason == "simulators_lost"
    step = client.checkpoints.get(run.id).step

    second = play(run.id)
    with pytest.raises(Exception, match="still PAUSED"):
        client.runs.wait(run.id, ["RUNNING"], timeout=3)
    client.runs.resume(run.id)
    wait_for_step(client, run, step + 300)

    assert second.process.poll() is None


@pytest.mark.long
def test_a_run_that_nobody_joins_gives_its_slot_to_those_behind_it_and_goes_on_when_a_simulator_comes(
    client: Client, play: Play
) -> None:
    document: dict[str, Any] = cartpole()
    document["simulators"] = {"startup_grace_seconds": 15.0}
    slots = len([each for each in client.workers.list() if psutil.pid_exists(each.pid)])
    idle = [client.runs.create(document, name=f"idle-{number}") for number in range(slots)]
    for run in idle:
        client.runs.wait(run.id, ["STARTING", "RUNNING"], timeout=60)
    behind = client.runs.create(cartpole(), name="behind")
    said = eventually(lambda: client.runs.get(behind.id).waits_for, "the reason", 10)

    assert said.startswith("A free slot: ")
    assert "held by run idle-0 (STARTING, no simulator has joined for " in said
    paused = client.runs.wait(idle[0].id, ["PAUSED"], timeout=60)  # a game of `behind` would be lent the slot earlier
    player = play(behind.id)
    wait_for_step(client, behind, 600, 90)
    assert paused.stop_reason == "simulators_lost"
    assert f"ludus simulate GAME --run {idle[0].id}" in (paused.stop_detail or "")
    client.runs.cancel(behind.id)
    late = play(idle[0].id)
    wait_for_step(client, idle[0], 600, 90)

    assert late.process.poll() is None
    del player
    for run in idle:
        client.runs.cancel(run.id)


@pytest.mark.long
def test_a_resumed_run_has_a_startup_grace_of_its_own(client: Client) -> None:
    document: dict[str, Any] = cartpole()
    document["simulators"] = {"startup_grace_seconds": 2.0}
    run = client.runs.create(document)
    client.runs.wait(run.id, ["PAUSED"], timeout=60)

    client.runs.resume(run.id)
    client.runs.wait(run.id, ["STARTING"], timeout=60)
    again = client.runs.wait(run.id, ["PAUSED"], timeout=60)

    assert (again.stop_reason, again.attempt) == ("simulators_lost", 2)
    client.runs.cancel(run.id)
