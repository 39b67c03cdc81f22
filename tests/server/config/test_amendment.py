"""What may change in a run that goes on, what may not, and what its configuration is then."""

from typing import Any

import pytest

from ludus.config.behavior import TRAINERS
from ludus.config.run import RunConfig
from ludus.config.trainer import TrainerConfig
from server.config.amendment import amend, apply_changes
from server.config.resolution import resolve
from server.kit.errors import InvalidEdit, Problem

DOCUMENT: dict[str, Any] = {
    "behaviors": {
        "Walker": {"max_steps": 1000, "hyperparameters": {"learning_rate": 3e-4, "beta": 0.005}},
        "Swimmer": {"trainer_type": "sac", "even_checkpoints": True, "keep_checkpoints": 4, "max_steps": 4000},
    }
}


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return resolve(DOCUMENT)


def refused(config: RunConfig, wanted: dict[str, Any]) -> list[Problem]:
    with pytest.raises(InvalidEdit) as caught:
        amend(config, wanted)
    return list(caught.value.problems)


@pytest.mark.parametrize("trainer", TRAINERS.values())
def test_every_trainer_declares_keys_that_it_has(trainer: type[TrainerConfig]) -> None:
    section = trainer.model_fields
    for key in trainer.amendable:
        group, _, inner = key.partition(".")
        assert group in section, key
        assert not inner or inner in section[group].annotation.model_fields, key  # type: ignore[union-attr]


def test_changes_come_with_old_and_new(config: RunConfig) -> None:
    amended, changes = amend(config, {"Walker": {"hyperparameters": {"learning_rate": "1e-4"}, "max_steps": 800}})

    assert {(each.path, each.old, each.new) for each in changes} == {
        ("behaviors.Walker.max_steps", 1000, 800),
        ("behaviors.Walker.hyperparameters.learning_rate", 3e-4, 1e-4),
    }
    assert amended.behaviors["Walker"].hyperparameters.learning_rate == 1e-4
    assert config.behaviors["Walker"].max_steps == 1000


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (True, {"share": 1.0}),
        (0.25, {"share": 0.25}),
        ({"share": 0.5, "max_seconds": 10}, {"share": 0.5, "max_seconds": 10.0}),
        ({"errors": False}, {"errors": False}),
    ],
)
def test_what_is_recorded_changes_and_nothing_else(config: RunConfig, record: object, expected: dict[str, Any]) -> None:
    amended, changes = amend(config, {}, record)

    paths = {f"simulators.record.{key}": value for key, value in expected.items()}
    assert {change.path: change.new for change in changes} == paths
    assert apply_changes(config, paths) == amended
    assert amended.simulators.record == config.simulators.record.model_copy(update=expected)
    back, _ = amend(amended, {}, False)
    assert back.simulators.record.share == 0.0
    assert back.simulators.record.max_seconds == amended.simulators.record.max_seconds, "other keys stay"


@pytest.mark.parametrize(
    ("record", "path"),
    [
        (2, "simulators.record.share"),
        ({"share": -1}, "simulators.record.share"),
        ({"shard": 1}, "simulators.record.shard"),
        ({"sessions": 0}, "simulators.record.sessions"),
        ({"errors": "perhaps"}, "simulators.record.errors"),
    ],
)
def test_a_bad_recording_is_refused_with_its_path(config: RunConfig, record: object, path: str) -> None:
    with pytest.raises(InvalidEdit) as caught:
        amend(config, {}, record)

    assert [problem.path for problem in caught.value.problems] == [path]


def test_what_follows_from_a_change_changes_too(config: RunConfig) -> None:
    _, changes = amend(config, {"Swimmer": {"max_steps": 8000}})

    assert {(each.path.rpartition(".")[2], each.old, each.new) for each in changes} == {
        ("max_steps", 4000, 8000),
        ("checkpoint_interval", 1000, 2000),
    }


def test_a_trainer_that_makes_the_changes_has_the_same_configuration(config: RunConfig) -> None:
    amended, changes = amend(
        config, {"Walker": {"hyperparameters": {"beta": 1e-3}}, "Swimmer": {"hyperparameters": {"tau": 0.01}}}
    )

    assert apply_changes(config, {each.path: each.new for each in changes}) == amended


def test_the_present_value_is_no_change(config: RunConfig) -> None:
    assert amend(config, {"Walker": {"max_steps": 1000, "time_horizon": 64}}) == (config, [])


def test_every_mistake_is_listed_with_its_path(config: RunConfig) -> None:
    problems = refused(
        config,
        {
            "Walker": {
                "hyperparameters": {"learning_rate": -1, "epsilom": 0.1, "buffer_size": 64, "lambd": 2},
                "network_settings": {"hidden_units": 8},
                "max_steps": "many",
            },
            "Runner": {"max_steps": 5},
            "Swimmer": {"hyperparameters": {"beta": 0.1}},
        },
    )

    found = {problem.path: problem.code for problem in problems}
    hyper = "behaviors.Walker.hyperparameters"
    assert found == {
        f"{hyper}.learning_rate": "out_of_range",
        f"{hyper}.epsilom": "unknown_key",
        f"{hyper}.buffer_size": "immutable",
        f"{hyper}.lambd": "out_of_range",
        "behaviors.Walker.network_settings": "immutable",
        "behaviors.Walker.max_steps": "wrong_type",
        "behaviors.Runner": "not_found",
        "behaviors.Swimmer.hyperparameters.beta": "unknown_key",
    }
    [misspelt] = [problem.message for problem in problems if problem.path == f"{hyper}.epsilom"]
    assert "did you mean `hyperparameters.epsilon`?" in misspelt


def test_what_cannot_change_is_refused_by_name_with_the_reason_and_the_way_out(config: RunConfig) -> None:
    (problem,) = refused(config, {"Walker": {"hyperparameters": {"buffer_size": 64}}})

    assert problem.path == "behaviors.Walker.hyperparameters.buffer_size"
    assert "the memory for experience is laid out by it" in problem.message
    assert "`ludus run branch`" in problem.message
    assert "hyperparameters.learning_rate" in problem.message, "and what can be changed"


def test_a_critic_gets_no_rate_of_its_own_on_the_way(config: RunConfig) -> None:
    (problem,) = refused(config, {"Walker": {"hyperparameters": {"critic_learning_rate": 1e-3}}})
    assert (problem.path, problem.code) == ("behaviors.Walker.hyperparameters.critic_learning_rate", "immutable")

    own = resolve({"behaviors": {"Walker": {"hyperparameters": {"critic_learning_rate": 1e-3}}}})
    amended, _ = amend(own, {"Walker": {"hyperparameters": {"critic_learning_rate": 1e-4}}})
    assert amended.behaviors["Walker"].hyperparameters.critic_learning_rate == 1e-4  # type: ignore[attr-defined]


def test_hyperparameters_are_a_mapping(config: RunConfig) -> None:
    (problem,) = refused(config, {"Walker": {"hyperparameters": 3}})

    assert (problem.path, problem.code) == ("behaviors.Walker.hyperparameters", "wrong_type")


def test_limits_of_divergence_change_one_by_one(config: RunConfig) -> None:
    amended, changes = amend(config, {"Swimmer": {"divergence": {"stop_entropy_below": 0.01}}})

    assert [(each.path, each.old, each.new) for each in changes] == [
        ("behaviors.Swimmer.divergence.stop_entropy_below", None, 0.01)
    ]
    assert amended.behaviors["Swimmer"].divergence.warn_kl_above == 1.0  # type: ignore[attr-defined]


def test_a_limit_of_divergence_has_to_be_one(config: RunConfig) -> None:
    problems = refused(
        config, {"Walker": {"divergence": {"stop_kl_above": 0, "stop_kl": 1}}, "Swimmer": {"divergence": 3}}
    )

    assert {problem.path: problem.code for problem in problems} == {
        "behaviors.Walker.divergence.stop_kl_above": "out_of_range",
        "behaviors.Walker.divergence.stop_kl": "unknown_key",
        "behaviors.Swimmer.divergence": "wrong_type",
    }


def test_a_clone_has_no_limits_of_divergence() -> None:
    clone = {"trainer_type": "clone", "demonstrations": ["dem_" + "0" * 26]}

    (problem,) = refused(resolve({"behaviors": {"Echo": clone}}), {"Echo": {"divergence": {"warn_kl_above": 2}}})

    assert (problem.path, problem.code) == ("behaviors.Echo.divergence", "unknown_key")
