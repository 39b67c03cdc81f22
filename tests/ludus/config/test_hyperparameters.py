"""Numbers of trainers that make no sense, alone or together."""

import pytest

from tests.server.config.checks import behavior, codes_of, ppo_of, problem_of


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("hyperparameters", "batch_size", 0),
        ("hyperparameters", "buffer_size", -1),
        ("hyperparameters", "learning_rate", -0.1),
        ("hyperparameters", "learning_rate", 0),
        ("hyperparameters", "learning_rate", 1.5),
        ("hyperparameters", "beta", -1e-9),
        ("hyperparameters", "epsilon", 0),
        ("hyperparameters", "lambd", 1.01),
        ("hyperparameters", "num_epoch", 0),
        ("network_settings", "hidden_units", 0),
        ("network_settings", "hidden_units", 10**9),
        ("network_settings", "num_layers", -1),
    ],
)
def test_values_that_make_no_sense_are_refused(section: str, key: str, value: float) -> None:
    problem = problem_of(behavior(**{section: {key: value}}))

    assert (problem.path, problem.code) == (f"behaviors.A.{section}.{key}", "out_of_range")
    assert str(value) in problem.message


@pytest.mark.parametrize("hyperparameters", [{"batch_size": 20_000}, {"buffer_size": 64}])
def test_a_batch_larger_than_the_buffer_is_refused(hyperparameters: dict[str, int]) -> None:
    problem = problem_of(behavior(hyperparameters=hyperparameters))

    assert (problem.path, problem.code) == ("behaviors.A.hyperparameters.batch_size", "contradiction")
    assert "batch_size" in problem.message
    assert "buffer_size" in problem.message


def test_a_batch_as_large_as_the_buffer_is_legal() -> None:
    ppo = ppo_of(behavior(hyperparameters={"batch_size": 64, "buffer_size": 64})).hyperparameters

    assert ppo.batch_size == ppo.buffer_size == 64


def test_a_word_that_is_no_schedule_is_said_once() -> None:
    problem = problem_of(behavior(hyperparameters={"learning_rate_schedule": "quadratic"}))

    assert problem.code == "invalid_value"
    assert "'linear' or 'constant'" in problem.message


def test_a_wrong_ratio_is_said_once() -> None:
    assert codes_of(behavior(trainer_type="sac", hyperparameters={"steps_per_update": 0})) == {
        "behaviors.A.hyperparameters.steps_per_update": "out_of_range"
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tau", 0),
        ("tau", 1.1),
        ("init_entcoef", 0),
        ("buffer_init_steps", -1),
        ("reward_signal_steps_per_update", -1),
        ("batch_size", 0),
    ],
)
def test_values_that_make_no_sense_for_sac_are_refused(key: str, value: float) -> None:
    assert codes_of(behavior(trainer_type="sac", hyperparameters={key: value})) == {
        f"behaviors.A.hyperparameters.{key}": "out_of_range"
    }


def test_a_learning_rate_for_the_critic_needs_a_critic_of_its_own() -> None:
    problem = problem_of(behavior(hyperparameters={"shared_critic": True, "critic_learning_rate": 0.01}))

    assert (problem.path, problem.code) == ("behaviors.A.hyperparameters.critic_learning_rate", "contradiction")
    assert "shared_critic" in problem.message
    assert ppo_of(behavior(hyperparameters={"critic_learning_rate": "1e-2"})).hyperparameters.critic_learning_rate
