"""The main job, from the request to a model that plays: through HTTP, gRPC, Celery and a trainer process."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import psutil
import pytest

from ludus.client import Client
from server.kit.processes import marked
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("stack")]


def test_a_run_from_the_request_to_a_model_that_answers(
    client: Client, play: Callable[..., Player], tmp_path: Path
) -> None:
    run = client.runs.create(cartpole(max_steps=4096), name="whole-life", tags=["e2e"])
    play(run.id)
    play(run.id)

    ended = client.runs.wait(run.id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "completed"), ended.stop_detail
    assert ended.step == 4096, "a run ends at max_steps exactly"
    states = [event.type for event in client.events.list(run.id)]
    assert states[0] == "run_created"
    assert "simulator_connected" in states
    assert "checkpoint_saved" in states
    assert [event.seq for event in client.events.list(run.id)] == list(range(1, len(states) + 1))
    latest = {metric.key: metric for metric in client.metrics.list(run.id)}
    assert latest["Environment/Cumulative Reward"].value > 5
    assert latest["Resources/Trainer Memory"].value > 2**20
    (series,) = client.metrics.series(run.id, "Environment/Cumulative Reward", points=4)
    assert len(series.steps) == 4
    assert series.total == 8, "one point for each multiple of summary_freq up to 4096"
    simulators = client.simulators.list(run.id)
    assert [simulator.leave_code for simulator in simulators] == ["run_finished", "run_finished"]
    assert {simulator.number for simulator in simulators} == {0, 1}
    (log,) = client.logs.list(run.id)
    assert "trainer" in client.logs.read(run.id, log.attempt, log.name).text

    checkpoint = client.checkpoints.get(run.id, "latest")
    assert (checkpoint.reason, checkpoint.step) == ("final", 4096)
    model = client.checkpoints.download(run.id, checkpoint.id, "CartPole.onnx", tmp_path / "CartPole.onnx")
    session = onnxruntime.InferenceSession(model)
    (actions,) = session.run(
        ["deterministic_discrete_actions"],
        {"obs_0": np.zeros((3, 4), np.float32), "action_masks": np.ones((3, 2), np.float32)},
    )
    assert actions.shape == (3, 1)
    described = {file.name: file.model for file in checkpoint.files}["CartPole.onnx"]
    assert described is not None
    assert [(each.name, list(each.shape)) for each in described.inputs] == [
        (each.name, each.shape) for each in session.get_inputs()
    ]
    assert (described.behavior, described.discrete_branches, described.memory_size) == ("CartPole", (2,), 0)


@pytest.mark.long
def test_stop_ends_a_run_with_a_checkpoint(client: Client, play: Callable[..., Player]) -> None:
    run = client.runs.create(cartpole())
    play(run.id)
    wait_for_step(client, run, 600)
    used = eventually(lambda: used_by_both(client, run.id), "trainer and collector were measured")

    client.runs.stop(run.id)
    ended = client.runs.wait(run.id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "user")
    assert client.checkpoints.get(run.id, "latest").reason == "final"
    assert used["Resources/Trainer Memory"] > 2**20
    assert used["Resources/Collector Memory"] > 2**20
    assert used["Resources/Collector CPU"] < 1.5, "one collector has one thread"


def used_by_both(client: Client, run: str) -> dict[str, float] | None:
    """Return the newest resources of a run, once its collectors were seen at work: a look may fall into a pause."""
    found = {metric.key: metric.value or 0.0 for metric in client.metrics.list(run) if metric.behavior == ""}
    return found if found.get("Resources/Collector CPU") else None


@pytest.mark.long
def test_cancel_ends_a_run_without_a_checkpoint(client: Client, play: Callable[..., Player]) -> None:
    run = client.runs.create(cartpole(checkpoint_interval=1_000_000))
    play(run.id)
    wait_for_step(client, run, 600)

    client.runs.cancel(run.id)
    ended = client.runs.wait(run.id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("CANCELLED", "user")
    assert client.checkpoints.list(run.id) == []


@pytest.mark.long
def test_a_behavior_that_the_configuration_lacks_is_refused_by_name(
    client: Client, play: Callable[..., Player]
) -> None:
    run = client.runs.create({"behaviors": {"SomethingElse": {}}})
    player = play(run.id)

    assert player.process.wait(60) != 0
    refusals = [event for event in client.events.list(run.id) if event.type == "behavior_refused"]
    assert "'CartPole'" in refusals[0].message
    assert "SomethingElse" in refusals[0].message
    assert client.runs.get(run.id).state == "RUNNING", "it cost that simulator its session, and nobody else anything"
    client.runs.cancel(run.id)
    client.runs.wait(run.id, timeout=60)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_run_of_two_ranks_outlives_the_death_of_one_and_ends(
    stack: LudusUp, client: Client, play: Callable[..., Player]
) -> None:
    ranked = {**cartpole(max_steps=8192), "torch_settings": {"device": "cpu", "processes": 2}}
    run = client.runs.create(ranked)
    play(run.id)
    play(run.id)
    wait_for_step(client, run, 1024)
    eventually(lambda: client.checkpoints.list(run.id), "a checkpoint")

    (rank,) = (
        process
        for process in map(psutil.Process, marked(stack.mark))
        if any("worker.trainer.ranks" in word for word in process.cmdline())
    )
    rank.kill()
    ended = client.runs.wait(run.id, timeout=180)

    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "completed"), ended.stop_detail
    first, second = sorted(client.runs.attempts(run.id), key=lambda attempt: attempt.number)
    assert first.outcome == "trainer_lost"
    assert second.resumed_from
    told = [event.message for event in client.events.list(run.id)]
    assert any("rank 1 ended with signal SIGKILL" in message for message in told)
    latest = {metric.key: metric for metric in client.metrics.list(run.id)}
    assert latest["Ranks/Exchanged Bytes"].value > 0
    assert latest["Environment/Cumulative Reward"].value > 5
