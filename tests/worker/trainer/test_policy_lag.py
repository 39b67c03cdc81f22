"""Real runs: what acts in a collector's process is what learns, and steps that are too old are left out."""

from typing import Any

import pytest

from ludus.adapters.gymnasium import EnvironmentSimulation
from tests.toys.chase import Chase
from tests.worker.trainer.conftest import StartTrainer
from tests.worker.trainer.health.runs import SECTION, Ended, merged, play_through


def chase(start: StartTrainer, changes: dict[str, Any]) -> Ended:
    """Let eight games of `Chase` play a run to its end."""
    simulation = EnvironmentSimulation([Chase() for _ in range(8)], "Chase")
    section = merged(SECTION, {"max_steps": 5120, **changes})
    return play_through(start, simulation, {"behaviors": {"Chase": section}})


def points(run: Ended, key: str) -> list[float]:
    messages = [message for message in run.messages if message["type"] == "metrics"]
    return [point["value"] for message in messages for point in message["points"] if point["key"] == key]


@pytest.mark.long
@pytest.mark.parametrize("memory", [None, {"memory_size": 8, "sequence_length": 16}], ids=["plain", "memory"])
def test_in_lockstep_collectors_act_with_the_policy_that_learns(
    start: StartTrainer, memory: dict[str, int] | None
) -> None:
    run = chase(start, {"hyperparameters": {"max_policy_lag": 0}, "network_settings": {"memory": memory}})

    measured = points(run, "Policy/Acting KL")
    assert len(measured) >= 4
    assert max(measured) < 1e-6
    assert min(points(run, "Policy/Approximate KL")) > 1e-6, "updates move the policy by more"
    assert max(points(run, "Policy/Stale Share")) < 0.05, "at most what was answered before its round began"
    assert not {"actors_disagree", "steps_stale"} & run.ever


@pytest.mark.long
@pytest.mark.parametrize("trainer", ["sac", "dqn", "crossq"])
def test_collectors_explore_with_the_policy_that_learns_from_a_replay_buffer(start: StartTrainer, trainer: str) -> None:
    simulation = EnvironmentSimulation([Chase(continuous=trainer == "crossq") for _ in range(8)], "Chase")
    width = {"critic_hidden_units": 32} if trainer == "crossq" else {}
    section = {
        "trainer_type": trainer,
        "hyperparameters": {"batch_size": 64, "buffer_init_steps": 64, "steps_per_update": 8, **width},
        "network_settings": {"hidden_units": 32, "normalize": True},
        "max_steps": 1024,
        "summary_freq": 256,
    }

    run = play_through(start, simulation, {"behaviors": {"Chase": section}})

    measured = points(run, "Policy/Acting KL")
    assert len(measured) >= 2
    assert max(measured) < 1e-6
    assert "actors_disagree" not in run.ever


@pytest.mark.long
@pytest.mark.parametrize(("threaded", "limit"), [(False, 1), (True, 2)])
def test_a_run_that_waits_for_late_steps_drops_none_and_ends(start: StartTrainer, threaded: bool, limit: int) -> None:
    waits = {"buffer_size": 450, "batch_size": 64, "max_policy_lag": limit, "late_steps": "wait"}  # 8 games: 456 steps

    run = chase(start, {"threaded": threaded, "hyperparameters": waits})

    assert 0.0 < max(points(run, "Policy/Lag")) <= limit
    assert set(points(run, "Policy/Stale Share")) == {0.0}
    assert "actors_disagree" not in run.ever


@pytest.mark.long
def test_a_threaded_run_drops_what_is_older_than_its_limit_and_ends(start: StartTrainer) -> None:
    run = chase(start, {"threaded": True, "hyperparameters": {"max_policy_lag": 1}})

    assert 0.0 < max(points(run, "Policy/Lag")) <= 2
    assert max(points(run, "Policy/Stale Share")) < 0.5, "a round ahead is within the limit"
    assert "actors_disagree" not in run.ever
