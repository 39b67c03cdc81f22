"""CrossQ: its defaults, and what does not go together with it."""

from ludus.config.plugins.crossq import CrossQConfig
from tests.server.config.checks import DEMONSTRATION, behavior, config_of, problem_of


def test_crossq_has_the_keys_of_sac_and_the_papers_numbers() -> None:
    config = config_of(behavior(trainer_type="crossq", hyperparameters={"init_entcoef": 0.5}))

    assert isinstance(config, CrossQConfig)
    hyper = config.hyperparameters
    assert (hyper.learning_rate, hyper.batch_size, hyper.policy_delay, hyper.critic_hidden_units) == (
        1e-3,
        256,
        3,
        2048,
    )
    assert (hyper.init_entcoef, hyper.exploration_noise, hyper.steps_per_update) == (0.5, "white", 1.0)


def test_the_fraction_of_target_networks_is_refused_because_there_are_none() -> None:
    problem = problem_of(behavior(trainer_type="crossq", hyperparameters={"tau": 0.01}))

    assert problem.code == "unknown_key"
    assert problem.path == "behaviors.A.hyperparameters.tau"
    assert "hyperparameters.tau" not in CrossQConfig.tuning


def test_memory_is_refused_with_the_way_out() -> None:
    problem = problem_of(behavior(trainer_type="crossq", network_settings={"memory": {}}))

    assert problem.path == "behaviors.A.network_settings.memory"
    assert "crossq has no memory" in problem.message


def test_crossq_clones_beside_its_own_objective() -> None:
    config = config_of(behavior(trainer_type="crossq", behavioral_cloning={"demonstrations": [DEMONSTRATION]}))

    assert isinstance(config, CrossQConfig)
    assert config.behavioral_cloning is not None
