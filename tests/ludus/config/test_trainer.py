"""What every trainer's section has: a sequence fits into a batch."""

import pytest

from tests.server.config.checks import DEMONSTRATION, behavior, codes_of, config_of, problem_of

DEMONSTRATED = {"demonstrations": [DEMONSTRATION]}


@pytest.mark.parametrize("trainer", ["ppo", "sac", "poca"])
def test_a_sequence_longer_than_a_batch_is_refused(trainer: str) -> None:
    document = behavior(
        trainer_type=trainer, hyperparameters={"batch_size": 32}, network_settings={"memory": {"sequence_length": 33}}
    )

    problem = problem_of(document)

    assert (problem.path, problem.code) == ("behaviors.A.network_settings.memory.sequence_length", "contradiction")
    assert "sequence_length (33)" in problem.message
    assert "batch_size (32)" in problem.message
    assert config_of(
        behavior(hyperparameters={"batch_size": 32}, network_settings={"memory": {"sequence_length": 32}})
    ).network_settings.memory


def test_a_sequence_is_not_judged_by_a_batch_that_is_wrong_itself() -> None:
    document = behavior(hyperparameters={"batch_size": 0}, network_settings={"memory": {}})

    assert codes_of(document) == {"behaviors.A.hyperparameters.batch_size": "out_of_range"}
