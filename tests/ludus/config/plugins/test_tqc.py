"""TQC: its defaults, and what does not go together with it."""

from ludus.config.plugins.tqc import TQCConfig
from tests.server.config.checks import DEMONSTRATION, behavior, config_of, problem_of


def test_tqc_has_the_keys_of_sac_and_those_of_its_critics() -> None:
    config = config_of(behavior(trainer_type="tqc", hyperparameters={"init_entcoef": 0.5, "exploration_noise": "pink"}))

    assert isinstance(config, TQCConfig)
    hyper = config.hyperparameters
    assert (hyper.init_entcoef, hyper.exploration_noise) == (0.5, "pink")
    assert (hyper.critics, hyper.quantiles, hyper.dropped_quantiles) == (2, 25, 2.0)


def test_a_memory_is_refused_with_the_way_out() -> None:
    problem = problem_of(behavior(trainer_type="tqc", network_settings={"memory": {}}))

    assert (problem.path, problem.code) == ("behaviors.A.network_settings.memory", "contradiction")
    assert "take trainer_type sac or ppo" in problem.message


def test_to_drop_every_quantile_is_refused() -> None:
    problem = problem_of(behavior(trainer_type="tqc", hyperparameters={"quantiles": 5, "dropped_quantiles": 4.5}))

    assert (problem.path, problem.code) == ("behaviors.A.hyperparameters.dropped_quantiles", "contradiction")
    assert "lower it to at most 4" in problem.message


def test_cloning_is_taken_as_by_sac() -> None:
    config = config_of(behavior(trainer_type="tqc", behavioral_cloning={"demonstrations": [DEMONSTRATION]}))

    assert isinstance(config, TQCConfig)
    assert config.behavioral_cloning is not None
