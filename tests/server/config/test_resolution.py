"""From documents to configurations: all mistakes at once, defaults for behaviors, overrides, differences."""

from typing import Any

import pytest

from ludus.config.behavior import CloneConfig, SACConfig
from ludus.config.hyperparameters import SACHyperparameters
from ludus.schemas import ConfigChange
from server.config.key_validation import MAX_PROBLEMS
from server.config.resolution import apply_overrides, diff, resolve
from server.kit.errors import InvalidConfig
from tests.server.config.checks import behavior, codes_of, ppo_of, problem_of, problems_of

DEMO = "dem_" + 26 * "0"


def test_yaml_json_and_mappings_resolve_alike() -> None:
    by_yaml = resolve("behaviors:\n  A:\n    hyperparameters:\n      learning_rate: 1e-3\n")
    by_json = resolve(b'{"behaviors": {"A": {"hyperparameters": {"learning_rate": 1e-3}}}}')
    by_mapping = resolve(behavior(hyperparameters={"learning_rate": 0.001}))

    assert by_yaml == by_json == by_mapping


def test_all_mistakes_are_reported_at_once_each_with_its_path() -> None:
    document = """
    behaviors:
      Cart.Pole:
        hyperparameters: {batch_size: 20000, learning_rate: -1, num_epoch: 1.5, lambda: 1, beta_schedule: cubic}
        network_settings: {normalize: "false", memory: {memory_size: 7}}
        summary_frequency: 10
        init_path: /tmp/x.pt
      Other: nothing
    simulators: {grace_seconds: soon}
    extra: 1
    """

    assert codes_of(document) == {
        'behaviors."Cart.Pole".hyperparameters.batch_size': "contradiction",
        'behaviors."Cart.Pole".hyperparameters.learning_rate': "out_of_range",
        'behaviors."Cart.Pole".hyperparameters.num_epoch': "wrong_type",
        'behaviors."Cart.Pole".hyperparameters.lambda': "unknown_key",
        'behaviors."Cart.Pole".hyperparameters.beta_schedule': "invalid_value",
        'behaviors."Cart.Pole".network_settings.normalize': "wrong_type",
        'behaviors."Cart.Pole".network_settings.memory.memory_size': "invalid_value",
        'behaviors."Cart.Pole".summary_frequency': "unknown_key",
        'behaviors."Cart.Pole".init_path': "path_refused",
        "behaviors.Other": "wrong_type",
        "simulators.grace_seconds": "wrong_type",
        "extra": "unknown_key",
    }


@pytest.mark.parametrize(
    ("document", "path", "code"),
    [
        ({"seed": 1}, "behaviors", "missing"),
        ({"behaviors": {}}, "behaviors", "missing"),
        ({"behaviors": None}, "behaviors", "wrong_type"),
        ({"behaviors": []}, "behaviors", "wrong_type"),
        ({"behaviors": {"A": None}}, "behaviors.A", "wrong_type"),
        ({"behaviors": {"A": {"hyperparameters": None}}}, "behaviors.A.hyperparameters", "wrong_type"),
        ({"behaviors": {"A": {"hyperparameters": 3}}}, "behaviors.A.hyperparameters", "wrong_type"),
        ({"behaviors": {"A": {"reward_signals": {}}}}, "behaviors.A.reward_signals", "missing"),
        ({"behaviors": {"A": {"reward_signals": None}}}, "behaviors.A.reward_signals", "wrong_type"),
        ({"behaviors": {"A": {"trainer_type": "reinforce"}}}, "behaviors.A.trainer_type", "invalid_value"),
        ({"behaviors": {"A": {"trainer_type": ["ppo"]}}}, "behaviors.A.trainer_type", "invalid_value"),
        ({"behaviors": {"A": {"trainer_type": None}}}, "behaviors.A.trainer_type", "invalid_value"),
        ({"behaviors": {"A": {"behavioral_cloning": 3}}}, "behaviors.A.behavioral_cloning", "wrong_type"),
        ({"behaviors": {"A": {}}, "torch_settings": None}, "torch_settings", "wrong_type"),
        ({"behaviors": {"A": {}}, "environment_parameters": [1]}, "environment_parameters", "wrong_type"),
        ({"behaviors": {"A": {}}, "default_settings": 3}, "default_settings", "wrong_type"),
        ({"behaviors": {"A": {}}, "environment_parameters": {"": 1}}, 'environment_parameters.""', "invalid_value"),
        (
            {"behaviors": {"A": {}}, "environment_parameters": {"höhe": 1}},
            "environment_parameters.höhe",
            "invalid_value",
        ),
        ({"default_settings": {"trainer_type": "clone", "demonstrations": [DEMO]}}, "behaviors", "contradiction"),
        ({"behaviors": {f"A{n}": {} for n in range(257)}}, "behaviors", "out_of_range"),
    ],
)
def test_impossible_documents_are_refused(document: dict[str, Any], path: str, code: str) -> None:
    problem = problem_of(document)

    assert (problem.path, problem.code) == (path, code)


def test_a_flood_of_mistakes_is_cut() -> None:
    problems = problems_of({f"key{n}": n for n in range(50_000)})

    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].code == "too_many_problems"


def test_a_flood_of_wrong_values_is_cut() -> None:
    parameters = {f"p{n}": "x" for n in range(900)}

    problems = problems_of(behavior() | {"environment_parameters": parameters})

    assert len(problems) == MAX_PROBLEMS + 1


# Defaults for behaviors


def test_default_settings_are_the_base_of_each_behavior() -> None:
    document = """
    default_settings:
      hyperparameters: {batch_size: 16, buffer_size: 120}
      network_settings: {hidden_units: 256, num_layers: 4}
      max_steps: 5000
    behaviors:
      A: {}
      B: {network_settings: {hidden_units: 4}, max_steps: 10}
    """

    config = resolve(document)

    assert config.behaviors["A"] == config.default_settings
    assert config.behaviors["A"].hyperparameters.batch_size == 16
    assert config.behaviors["B"].network_settings.hidden_units == 4
    assert config.behaviors["B"].network_settings.num_layers == 4
    assert config.behaviors["B"].max_steps == 10


def test_a_mistake_in_the_defaults_is_said_once() -> None:
    document = {
        "default_settings": {"max_steps": -1, "hyperparameters": {"beta": "x"}},
        "behaviors": {"A": {}, "B": {"hyperparameters": {"num_epoch": 2}}, "C": {"max_steps": -2}},
    }

    assert codes_of(document) == {
        "default_settings.max_steps": "out_of_range",
        "default_settings.hyperparameters.beta": "wrong_type",
        "behaviors.C.max_steps": "out_of_range",
    }


def test_a_contradiction_between_a_behavior_and_the_defaults_is_found() -> None:
    document = behavior(hyperparameters={"batch_size": 500}) | {
        "default_settings": {"hyperparameters": {"batch_size": 16, "buffer_size": 120}}
    }

    assert codes_of(document) == {"behaviors.A.hyperparameters.batch_size": "contradiction"}


def test_a_behavior_drops_an_inherited_signal_by_null() -> None:
    document = behavior(reward_signals={"curiosity": None}) | {
        "default_settings": {"reward_signals": {"extrinsic": {}, "curiosity": {}}}
    }

    assert [name for name, _ in ppo_of(document).reward_signals.active()] == ["extrinsic"]


def test_a_behavior_drops_inherited_sections_by_null() -> None:
    document = behavior(network_settings={"memory": None}, self_play=None) | {
        "default_settings": {"network_settings": {"memory": {}}, "self_play": {}}
    }

    config = ppo_of(document)

    assert (config.network_settings.memory, config.self_play) == (None, None)


def test_hyperparameters_of_another_trainer_are_not_inherited() -> None:
    document = {
        "default_settings": {"hyperparameters": {"beta": 1, "batch_size": 8}, "max_steps": 5},
        "behaviors": {"A": {"trainer_type": "sac"}, "B": {"trainer_type": "ppo"}},
    }

    config = resolve(document)

    assert config.behaviors["A"].hyperparameters == SACHyperparameters()
    assert config.behaviors["A"].max_steps == 5
    assert config.behaviors["B"] == config.default_settings


def test_keys_that_only_another_trainer_has_are_not_inherited() -> None:
    demonstrations = [f"dem_{'0' * 26}"]
    document = {
        "default_settings": {"reward_signals": {"curiosity": {}}, "max_steps": 7},
        "behaviors": {"A": {"trainer_type": "clone", "demonstrations": demonstrations}, "B": {"trainer_type": "sac"}},
    }

    config = resolve(document)

    assert (config.behaviors["A"].max_steps, config.behaviors["B"].max_steps) == (7, 7)
    assert isinstance(config.behaviors["A"], CloneConfig)
    assert isinstance(config.behaviors["B"], SACConfig)
    assert [name for name, _ in config.behaviors["B"].reward_signals.active()] == ["curiosity"]


def test_the_template_of_another_trainer_is_the_trainer_of_those_that_name_none() -> None:
    config = resolve(
        {"default_settings": {"trainer_type": "sac"}, "behaviors": {"A": {"hyperparameters": {"tau": 0.1}}}}
    )

    assert isinstance(config.behaviors["A"], SACConfig)
    assert config.behaviors["A"].hyperparameters.tau == 0.1


def test_a_mistake_in_the_template_of_another_trainer_is_said_once() -> None:
    document = {
        "default_settings": {"trainer_type": "sac", "hyperparameters": {"tau": 2}},
        "behaviors": {"A": {}, "B": {"trainer_type": "ppo"}},
    }

    assert codes_of(document) == {"default_settings.hyperparameters.tau": "out_of_range"}


# Overrides


def test_overrides_are_paths_or_parts_of_a_document() -> None:
    document = behavior(max_steps=5, hyperparameters={"batch_size": 8, "buffer_size": 80})

    changed = apply_overrides(
        document,
        {
            "behaviors.A.max_steps": 7,
            "behaviors": {"A": {"hyperparameters": {"batch_size": 16}}},
            "simulators.grace_seconds": 5,
            'behaviors."my.bot"': {},
        },
    )

    assert changed == {
        "behaviors": {"A": {"max_steps": 7, "hyperparameters": {"batch_size": 16, "buffer_size": 80}}, "my.bot": {}},
        "simulators": {"grace_seconds": 5},
    }


def test_overrides_leave_the_document_alone() -> None:
    document = behavior(max_steps=5)

    apply_overrides(document, {"behaviors.A.max_steps": 7})

    assert document == behavior(max_steps=5)
    assert apply_overrides(document, {}) == document


def test_an_override_may_fill_what_was_null() -> None:
    document = {**behavior(), "default_settings": None}

    assert apply_overrides(document, {"default_settings.max_steps": 7})["default_settings"] == {"max_steps": 7}


@pytest.mark.parametrize(
    ("overrides", "path", "code"),
    [
        ({"behaviors..A": 1}, "behaviors..A", "unknown_key"),
        ({"behaviors.A.max_steps.deeper": 1}, "behaviors.A.max_steps", "wrong_type"),
        ({"behaviors.A.x": float("nan")}, '"behaviors.A.x"', "not_finite"),
    ],
)
def test_overrides_that_lead_nowhere_are_refused(overrides: dict[str, Any], path: str, code: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        apply_overrides(behavior(max_steps=5), overrides)

    (problem,) = caught.value.problems
    assert (problem.path, problem.code) == (path, code)


# Differences


def test_the_difference_of_two_configurations_names_what_changed() -> None:
    old = resolve({"behaviors": {"A": {}, "B": {}}, "environment_parameters": {"gravity": 9.81}})
    new = resolve({"behaviors": {"A": {"threaded": True}, "C": {}}, "environment_parameters": {"gravity": 1}})

    changes = diff(old, new)

    assert changes == [
        ConfigChange(path="behaviors.A.threaded", kind="changed", old=False, new=True),
        ConfigChange(path="behaviors.C", kind="added", new=new.behaviors["C"].model_dump(mode="json")),
        ConfigChange(path="behaviors.B", kind="removed", old=old.behaviors["B"].model_dump(mode="json")),
        ConfigChange(path="environment_parameters.gravity", kind="changed", old=9.81, new=1.0),
    ]


def test_equal_configurations_do_not_differ() -> None:
    config = resolve(behavior())

    assert diff(config, config.model_dump(mode="json")) == []


def test_true_differs_from_one() -> None:
    assert diff({"a": 1, "b": 0}, {"a": True, "b": 0}) == [ConfigChange(path="a", kind="changed", old=1, new=True)]
