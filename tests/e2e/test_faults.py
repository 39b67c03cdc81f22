"""kill -9, one part after the other: nothing acknowledged is lost, the run goes on or ends in a true state."""

from collections.abc import Callable

import psutil
import pytest

from ludus.client import ApiError, Client
from ludus.schemas import Run
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.xdist_group("stack")]

Play = Callable[..., Player]


def playing(client: Client, play: Play, step: int = 1100, **settings: int) -> Run:
    """Start a run with one player and wait until it has a checkpoint."""
    run = client.runs.create(cartpole(**settings))
    play(run.id)
    wait_for_step(client, run, step)
    eventually(lambda: client.checkpoints.list(run.id), "a checkpoint")
    return run


def finish(client: Client, run: Run) -> Run:
    """Stop a run and return how it ended."""
    client.runs.stop(run.id)
    return client.runs.wait(run.id, timeout=40)


def the(processes: list[psutil.Process]) -> psutil.Process:
    """Return the one process, where there are two with the warm one that waits for the next run."""
    return max(processes, key=lambda process: process.cpu_times().user)


def test_a_killed_simulator_costs_only_itself(client: Client, play: Play) -> None:
    run = client.runs.create(cartpole())
    survivor, victim = play(run.id), play(run.id)
    eventually(lambda: len(client.simulators.list(run.id, "connected")) == 2, "two simulators")

    victim.kill()
    eventually(lambda: len(client.simulators.list(run.id, "connected")) == 1, "one left")
    step = client.runs.get(run.id).step
    wait_for_step(client, run, step + 600)

    assert survivor.process.poll() is None
    (left,) = client.simulators.list(run.id, "left")
    assert left.leave_reason
    assert finish(client, run).state == "SUCCEEDED"


def test_a_killed_collector_is_started_again_and_the_run_goes_on(stack: LudusUp, client: Client, play: Play) -> None:
    run = playing(client, play)

    the(stack.processes("worker.collectors")).kill()
    eventually(lambda: [e for e in client.events.list(run.id) if e.type == "collector_died"], "the event")
    wait_for_step(client, run, client.runs.get(run.id).step + 600)

    ended = finish(client, run)
    assert (ended.state, ended.attempt) == ("SUCCEEDED", 1), "the same attempt went on"


def test_a_killed_trainer_is_replaced_and_resumes_from_the_checkpoint(
    stack: LudusUp, client: Client, play: Play
) -> None:
    run = playing(client, play)
    acknowledged = max(checkpoint.step for checkpoint in client.checkpoints.list(run.id))

    the(stack.processes("worker.trainer")).kill()
    eventually(lambda: client.runs.get(run.id).attempt == 2, "a second attempt")
    wait_for_step(client, run, acknowledged + 1100)

    ended = finish(client, run)
    first, second = sorted(client.runs.attempts(run.id), key=lambda attempt: attempt.number)
    assert first.outcome == "trainer_lost"
    assert second.resumed_from in {checkpoint.id for checkpoint in client.checkpoints.list(run.id)} | {
        second.resumed_from
    }
    assert ended.state == "SUCCEEDED"
    types = [event.type for event in client.events.list(run.id)]
    assert "trainer_lost" in types
    (series,) = client.metrics.series(run.id, "Policy/Entropy")
    assert list(series.steps) == sorted(set(series.steps)), "one curve, without the steps that were lost twice"


def test_lessons_and_what_users_changed_outlive_a_killed_trainer(stack: LudusUp, client: Client, play: Play) -> None:
    def lesson(value: float, threshold: float) -> dict[str, object]:
        criteria = {"behavior": "CartPole", "threshold": threshold, "min_lesson_length": 10}
        return {"name": f"L{value:g}", "value": value, "completion_criteria": criteria}

    lessons = [lesson(1, 8), lesson(2, 1e6), lesson(3, 1e6), {"name": "end", "value": 4}]
    parameters = {"pole": {"curriculum": lessons}, "wind": 0.5}
    run = client.runs.create({**cartpole(), "environment_parameters": parameters})
    play(run.id)
    eventually(lambda: client.environment_parameters.get(run.id).parameters[0].lesson == 2, "the second lesson", 60)
    assert client.environment_parameters.set_value(run.id, "wind", 0.25).pending[0].parameter == "wind"
    eventually(lambda: not client.environment_parameters.get(run.id).pending, "the trainer has changed it")
    seen = {checkpoint.id for checkpoint in client.checkpoints.list(run.id)}
    for _ in range(2):  # the first new one may have been begun before the change
        fresh = eventually(lambda: {each.id for each in client.checkpoints.list(run.id)} - seen, "a newer checkpoint")
        seen.update(fresh)

    the(stack.processes("worker.trainer")).kill()
    client.environment_parameters.set_lesson(run.id, "pole", 3)
    eventually(lambda: client.runs.get(run.id).attempt == 2, "a second attempt")
    eventually(lambda: not client.environment_parameters.get(run.id).pending, "the second trainer has changed it", 60)

    pole, wind = sorted(client.environment_parameters.get(run.id).parameters, key=lambda each: each.name)
    assert pole.lesson == 3
    assert pole.waits_for.startswith("lesson 3 of 4 'L3': ")
    assert wind.value == 0.25
    changes = [event for event in client.events.list(run.id) if event.type in {"lesson_changed", "parameter_changed"}]
    done = [(event.data["parameter"], event.data["cause"]) for event in changes]
    assert done == [("pole", "completed"), ("wind", "edited"), ("pole", "edited")], "nothing was done twice"
    assert finish(client, run).state == "SUCCEEDED"


def test_a_killed_worker_leaves_the_run_to_its_successor(stack: LudusUp, client: Client, play: Play) -> None:
    run = playing(client, play)
    acknowledged = max(checkpoint.step for checkpoint in client.checkpoints.list(run.id))

    stack.children()["worker"].kill()
    eventually(lambda: client.runs.get(run.id).attempt == 2, "a second attempt", 60)
    wait_for_step(client, run, acknowledged + 600)

    assert finish(client, run).state == "SUCCEEDED"
    assert len(stack.processes("worker.trainer")) <= 2, "the first attempt's trainer is gone"


def test_a_killed_api_comes_back_with_everything_that_was_acknowledged(
    stack: LudusUp, client: Client, play: Play
) -> None:
    run = playing(client, play)
    queued = client.runs.create(cartpole(), name="acknowledged-before-the-kill")

    stack.children()["api"].kill()

    def back() -> Run | None:
        try:
            return client.runs.get(queued.id)
        except ApiError:
            return None

    assert eventually(back, "the api is back").name == "acknowledged-before-the-kill"
    wait_for_step(client, run, client.runs.get(run.id).step + 500)
    client.runs.cancel(queued.id)
    assert finish(client, run).state == "SUCCEEDED"


def test_a_killed_gateway_and_a_killed_controller_come_back(stack: LudusUp, client: Client, play: Play) -> None:
    run = playing(client, play)

    before = stack.children()
    before["gateway"].kill()
    before["controller"].kill()
    eventually(lambda: {"gateway", "controller"} <= stack.children().keys(), "both roles are back")
    play(run.id)
    eventually(lambda: len(client.simulators.list(run.id, "connected")) == 2, "a newcomer gets in")

    assert finish(client, run).state == "SUCCEEDED"


def test_a_run_whose_simulators_are_all_gone_pauses_and_goes_on_when_one_comes_back(client: Client, play: Play) -> None:
    document = cartpole()
    document["simulators"] = {"grace_seconds": 1.0}
    run = client.runs.create(document)
    player = play(run.id)
    wait_for_step(client, run, 600)

    player.kill()
    eventually(lambda: client.runs.get(run.id).state == "PAUSED", "the pause")
    assert client.runs.get(run.id).stop_reason == "simulators_lost"
    step = client.checkpoints.get(run.id, "latest").step
    play(run.id)
    wait_for_step(client, run, step + 600)

    assert finish(client, run).state == "SUCCEEDED"
