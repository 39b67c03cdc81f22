"""Keys: unknown ones, those that Ludus doesn't support yet, and paths."""

from pathlib import Path
from typing import Any

import pytest

from server.config.key_validation import KEYS, PATHS
from server.config.resolution import resolve, review
from tests.server.config.checks import behavior, codes_of, problem_of, problems_of

CONFIGS = Path(__file__).parents[2] / "data" / "configs"


@pytest.mark.parametrize(
    ("document", "path", "meant"),
    [
        ({"behaviour": {}, **behavior()}, "behaviour", "behaviors"),
        (behavior(hyperparameters={"batch_sise": 1}), "behaviors.A.hyperparameters.batch_sise", "batch_size"),
        (behavior(hyperparameters={"Learning_Rate": 1}), "behaviors.A.hyperparameters.Learning_Rate", "learning_rate"),
        (behavior(network_settings={"normalise": True}), "behaviors.A.network_settings.normalise", "normalize"),
        (behavior(reward_signals={"extrinsik": {}}), "behaviors.A.reward_signals.extrinsik", "extrinsic"),
        (behavior(trainer="ppo"), "behaviors.A.trainer", "trainer_type"),
        (behavior() | {"torch_settings": {"devise": "cpu"}}, "torch_settings.devise", "device"),
        (behavior() | {"env_setting": {}}, "env_setting", "env_settings"),
        (behavior() | {"engine_settings": {"time_scales": 1}}, "engine_settings.time_scales", "time_scale"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(document: dict[str, Any], path: str, meant: str) -> None:
    problem = problem_of(document)

    assert (problem.path, problem.code) == (path, "unknown_key")
    assert f"did you mean `{meant}`?" in problem.message
    assert "Legal here: " in problem.message


def test_an_unknown_key_without_a_relative_is_refused_with_all_legal_ones() -> None:
    problem = problem_of(behavior(network_settings={"zzz": 1}))

    assert "did you mean" not in problem.message
    assert (
        "Legal here: normalize, hidden_units, num_layers, activation, hidden_type, vis_encode_type" in problem.message
    )


@pytest.mark.parametrize(
    ("document", "path", "home"),
    [
        (behavior(batch_size=64), "behaviors.A.batch_size", "hyperparameters"),
        (behavior(hidden_units=64), "behaviors.A.hidden_units", "network_settings"),
        (behavior(memory={}), "behaviors.A.memory", "network_settings"),
        (behavior(extrinsic={}), "behaviors.A.extrinsic", "reward_signals"),
        (behavior(demo_path="x"), "behaviors.A.demo_path", "behavioral_cloning"),
        (behavior(network_settings={"memory_size": 8}), "behaviors.A.network_settings.memory_size", "memory"),
        (behavior() | {"max_steps": 5}, "max_steps", "behaviors.NAME"),
        (behavior(hyperparameters={"gamma": 0.9}), "behaviors.A.hyperparameters.gamma", "reward_signals.extrinsic"),
        (behavior(network_settings={"max_steps": 5}), "behaviors.A.network_settings.max_steps", "behaviors.NAME"),
        (
            behavior(reward_signals={"extrinsic": {"learning_rate": 0.1}}),
            "behaviors.A.reward_signals.extrinsic.learning_rate",
            "hyperparameters",
        ),
    ],
)
def test_a_key_in_another_section_is_sent_to_its_place(document: dict[str, Any], path: str, home: str) -> None:
    problem = problem_of(document)

    assert (problem.path, problem.code) == (path, "unknown_key")
    assert f"it belongs under `{home}`" in problem.message


def test_of_the_hyperparameters_of_an_unknown_trainer_only_the_keys_are_judged() -> None:
    numbers = {"tau": 0.005, "batch_size": "x", "betta": 0.1}
    document = behavior(trainer_type="mappo", hyperparameters=numbers, threaded="x")

    assert codes_of(document) == {
        "behaviors.A.trainer_type": "invalid_value",
        "behaviors.A.hyperparameters.betta": "unknown_key",
        "behaviors.A.threaded": "wrong_type",
    }


def test_an_unknown_trainer_in_the_default_settings_is_said_once() -> None:
    document = {
        "default_settings": {"trainer_type": "mappo", "hyperparameters": {"tau": 0.005}},
        "behaviors": {"A": {"hyperparameters": {"tau": 0.1}}, "B": {"trainer_type": "ppo"}},
    }

    assert codes_of(document) == {"default_settings.trainer_type": "invalid_value"}


@pytest.mark.parametrize(
    ("document", "path", "trainers"),
    [
        (behavior(hyperparameters={"tau": 0.1}), "behaviors.A.hyperparameters.tau", "`sac`"),
        (
            behavior(trainer_type="sac", hyperparameters={"beta": 0.1}),
            "behaviors.A.hyperparameters.beta",
            "`ppo` and `poca`",
        ),
        (behavior(evaluation_interval=5), "behaviors.A.evaluation_interval", "`clone`"),
    ],
)
def test_a_key_of_another_trainer_is_refused_with_that_trainer(
    document: dict[str, Any], path: str, trainers: str
) -> None:
    problem = problem_of(document)

    assert (problem.path, problem.code) == (path, "unknown_key")
    assert f"is a key of `trainer_type: {trainers.strip('`')}`" in problem.message


@pytest.mark.parametrize("trainer", ["sac", "poca"])
def test_a_shared_critic_is_refused_where_the_critic_sees_something_else(trainer: str) -> None:
    problem = problem_of(behavior(trainer_type=trainer, hyperparameters={"shared_critic": True}))

    assert (problem.path, problem.code) == ("behaviors.A.hyperparameters.shared_critic", "unknown_key")
    assert trainer.upper() in problem.message
    assert resolve(behavior(trainer_type=trainer, hyperparameters={"shared_critic": False})) == resolve(
        behavior(trainer_type=trainer)
    )


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (behavior(init_path="x.pt"), "behaviors.A.init_path"),
        (behavior() | {"env_settings": {"env_path": "game.exe"}}, "env_settings.env_path"),
        (behavior() | {"checkpoint_settings": {"results_dir": "/etc"}}, "checkpoint_settings.results_dir"),
        (behavior() | {"checkpoint_settings": {"initialize_from": "run"}}, "checkpoint_settings.initialize_from"),
    ],
)
def test_paths_are_refused_by_key(document: dict[str, Any], path: str) -> None:
    problem = problem_of(document)

    assert (problem.path, problem.code) == (path, "path_refused")
    assert "never mean the server's disk" in problem.message


def test_paths_of_demonstrations_are_refused_with_what_to_do_instead() -> None:
    document = behavior(
        reward_signals={"gail": [{"demo_path": "x.demo"}, {"demo_path": 5}]}, behavioral_cloning={"demo_path": "x.demo"}
    )

    problems = problems_of(document)

    assert {problem.path: problem.code for problem in problems} == {
        "behaviors.A.reward_signals.gail[0].demo_path": "path_refused",
        "behaviors.A.reward_signals.gail[1].demo_path": "path_refused",
        "behaviors.A.behavioral_cloning.demo_path": "path_refused",
    }
    assert all("ludus demonstration upload" in problem.message for problem in problems)


def test_null_and_the_default_of_a_path_are_no_paths() -> None:
    document = behavior(init_path=None) | {
        "env_settings": {"env_path": None},
        "checkpoint_settings": {"results_dir": "results", "initialize_from": None},
    }

    assert resolve(document) == resolve("behaviors: {A: {}}")


def test_a_trainer_alone_is_told_paths() -> None:
    document = behavior(init_path="x.pt") | {
        "env_settings": {"env_path": "game.exe"},
        "checkpoint_settings": {"results_dir": "/tmp", "initialize_from": "other"},
    }

    config = resolve(document, local=True)

    assert config.behaviors["A"].init_path == "x.pt"
    assert config.env_settings.env_path == "game.exe"
    assert (config.checkpoint_settings.results_dir, config.checkpoint_settings.initialize_from) == ("/tmp", "other")


def test_the_output_path_that_ml_agents_refuses_is_refused_by_name() -> None:
    problem = problem_of(behavior(output_path="out"))

    assert (problem.path, problem.code) == ("behaviors.A.output_path", "unknown_key")
    assert "ML-Agents 1.1.0 refuses it" in problem.message


def test_a_framework_has_no_effect_and_a_warning_says_so() -> None:
    config, warnings = review(behavior(framework="tensorflow"))

    assert config == resolve(behavior())
    assert [(warning.path, warning.code) for warning in warnings] == [("behaviors.A.framework", "deprecated")]


@pytest.mark.parametrize("name", ["environment_parameters", "default_settings"])
def test_some_sections_may_be_null(name: str) -> None:
    assert resolve(behavior() | {name: None}) == resolve("behaviors: {A: {}}")


@pytest.mark.parametrize("name", ["env_settings", "engine_settings", "checkpoint_settings", "torch_settings"])
def test_other_sections_may_not_be_null(name: str) -> None:
    assert codes_of(behavior() | {name: None}) == {name: "wrong_type"}


def test_a_section_of_another_type_is_refused() -> None:
    assert codes_of(behavior() | {"env_settings": 5}) == {"env_settings": "wrong_type"}


def test_networks_of_extrinsic_rewards_are_accepted_since_nobody_uses_them() -> None:
    document = behavior(reward_signals={"extrinsic": {"network_settings": {"hidden_units": 8}}})

    assert resolve(document) == resolve("behaviors: {A: {}}")
    assert codes_of(behavior(reward_signals={"extrinsic": {"network_settings": 5}})) == {
        "behaviors.A.reward_signals.extrinsic.network_settings": "unsupported"
    }


@pytest.mark.parametrize("name", ["gail_config.yaml", "wall_jump.yaml"])
def test_formats_before_behaviors_are_refused_as_such(name: str) -> None:
    problem = problem_of((CONFIGS / "old" / name).read_bytes())

    assert problem.code == "old_format"
    assert "ludus config upgrade" in problem.message


def test_sections_of_older_formats_are_refused_as_such() -> None:
    assert codes_of(behavior() | {"curriculum": {}, "parameter_randomization": {}}) == {
        "curriculum": "old_format",
        "parameter_randomization": "old_format",
    }


def test_every_refusal_says_what_to_do() -> None:
    refusals = [foreign for keys in (*KEYS.values(), *PATHS.values()) for foreign in keys.values()]

    assert all(len(foreign.instead) > 5 for foreign in refusals)


def test_no_key_is_both_known_and_foreign_and_every_path_is_a_key() -> None:
    assert all(not keys.keys() & section.model_fields.keys() for section, keys in KEYS.items())
    assert all(keys.keys() <= section.model_fields.keys() for section, keys in PATHS.items())


# Real files

FILES = {path.stem: path for path in CONFIGS.glob("*.yaml")}
REFUSED = "ppo-SoccerTwos"
"""The file that ML-Agents 1.1.0 refuses, too."""
LEGAL = sorted(FILES.keys() - {REFUSED})


def test_there_are_files_of_every_trainer() -> None:
    assert {name.partition("-")[0] for name in LEGAL} == {"exported", "imitation", "poca", "ppo", "pushbutton", "sac"}


@pytest.mark.parametrize("name", LEGAL)
def test_nothing_in_a_file_of_ml_agents_is_warned_of(name: str) -> None:
    assert review(FILES[name].read_bytes(), local=True)[1] == []


@pytest.mark.parametrize("name", [name for name in LEGAL if "demo_path" in FILES[name].read_text(encoding="utf-8")])
def test_a_file_of_ml_agents_with_demonstrations_is_refused_for_their_paths_alone(name: str) -> None:
    assert set(codes_of(FILES[name].read_bytes()).values()) == {"path_refused"}
