"""Keys: unknown ones, those that Ludus doesn't support yet, and paths."""

from pathlib import Path
from typing import Any

import pytest

from server.training.config import resolve
from server.training.foreign import KEYS, SECTIONS
from server.training.run import RunConfig
from tests.server.training.checks import behavior, codes_of, problem_of, problems_of

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
    assert "Legal here: normalize, hidden_units, num_layers, activation, deterministic" in problem.message


@pytest.mark.parametrize(
    ("document", "path", "home"),
    [
        (behavior(batch_size=64), "behaviors.A.batch_size", "hyperparameters"),
        (behavior(hidden_units=64), "behaviors.A.hidden_units", "network_settings"),
        (behavior(memory={}), "behaviors.A.memory", "network_settings"),
        (behavior(extrinsic={}), "behaviors.A.extrinsic", "reward_signals"),
        (behavior() | {"max_steps": 5}, "max_steps", "behaviors.NAME"),
    ],
)
def test_a_key_one_level_too_high_is_sent_to_its_place(document: dict[str, Any], path: str, home: str) -> None:
    problem = problem_of(document)

    assert (problem.path, problem.code) == (path, "unknown_key")
    assert f"it belongs under `{home}`" in problem.message


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (behavior(self_play={}), "behaviors.A.self_play"),
        (behavior(framework="tensorflow"), "behaviors.A.framework"),
        (behavior(network_settings={"memory": {"memory_size": 8}}), "behaviors.A.network_settings.memory"),
        (behavior(network_settings={"vis_encode_type": "resnet"}), "behaviors.A.network_settings.vis_encode_type"),
        (behavior(reward_signals={"curiosity": {}}), "behaviors.A.reward_signals.curiosity"),
        (behavior(reward_signals={"extrinsic": {}, "rnd": {}}), "behaviors.A.reward_signals.rnd"),
        (behavior() | {"debug": True}, "debug"),
        (behavior() | {"env_settings": {"num_envs": 2}}, "env_settings.num_envs"),
        (behavior() | {"env_settings": {"num_areas": True}}, "env_settings.num_areas"),
        (behavior() | {"engine_settings": {"no_graphics": True}}, "engine_settings.no_graphics"),
        (behavior() | {"checkpoint_settings": {"resume": True}}, "checkpoint_settings.resume"),
        (behavior() | {"environment_parameters": {"g": {"curriculum": []}}}, "environment_parameters.g"),
        (behavior() | {"environment_parameters": {"g": {"sampler_type": "uniform"}}}, "environment_parameters.g"),
    ],
)
def test_what_ludus_does_not_support_is_refused_by_name(document: dict[str, Any], path: str) -> None:
    problem = problem_of(document)

    assert (problem.path, problem.code) == (path, "unsupported")
    assert "does not support it yet" in problem.message


@pytest.mark.parametrize("trainer", ["sac", "poca"])
def test_another_trainer_is_refused_without_judging_its_hyperparameters(trainer: str) -> None:
    document = behavior(trainer_type=trainer, hyperparameters={"tau": 0.005}, threaded="x")

    assert codes_of(document) == {"behaviors.A.trainer_type": "unsupported", "behaviors.A.threaded": "wrong_type"}


def test_a_trainer_in_the_default_settings_counts_for_the_behaviors() -> None:
    document = {
        "default_settings": {"trainer_type": "sac", "hyperparameters": {"tau": 0.005}},
        "behaviors": {"A": {"hyperparameters": {"tau": 0.1}}, "B": {"trainer_type": "ppo"}},
    }

    assert codes_of(document) == {"default_settings.trainer_type": "unsupported"}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (behavior(init_path="x.pt"), "behaviors.A.init_path"),
        (behavior(output_path="out"), "behaviors.A.output_path"),
        (behavior() | {"env_settings": {"env_path": "game.exe"}}, "env_settings.env_path"),
        (behavior() | {"checkpoint_settings": {"results_dir": "/etc"}}, "checkpoint_settings.results_dir"),
        (behavior() | {"checkpoint_settings": {"initialize_from": "run"}}, "checkpoint_settings.initialize_from"),
    ],
)
def test_paths_are_refused_by_key(document: dict[str, Any], path: str) -> None:
    problem = problem_of(document)

    assert (problem.path, problem.code) == (path, "path_refused")
    assert "never mean the server's disk" in problem.message


def test_demonstrations_are_refused_as_paths_too() -> None:
    document = behavior(
        reward_signals={"gail": {"demo_path": "x.demo"}},
        behavioral_cloning={"demo_path": "x.demo"},
    )

    assert codes_of(document) == {
        "behaviors.A.reward_signals.gail": "unsupported",
        "behaviors.A.reward_signals.gail.demo_path": "path_refused",
        "behaviors.A.behavioral_cloning": "unsupported",
        "behaviors.A.behavioral_cloning.demo_path": "path_refused",
    }


@pytest.mark.parametrize("cloning", [{}, {"demo_path": None}, "x.demo"])
def test_cloning_without_a_demonstration_is_refused_once(cloning: object) -> None:
    assert codes_of(behavior(behavioral_cloning=cloning)) == {"behaviors.A.behavioral_cloning": "unsupported"}


def test_null_and_defaults_of_what_is_not_supported_change_nothing() -> None:
    sections = {
        name: {key: foreign.neutral[0] if foreign.neutral else None for key, foreign in keys.items()}
        for name, keys in SECTIONS.items()
    }
    document = behavior(self_play=None, framework="pytorch", network_settings={"goal_conditioning_type": "none"})

    assert resolve(document | sections | {"debug": False}) == resolve("behaviors: {A: {}}")


def test_null_sections_are_legal() -> None:
    names = [*SECTIONS, "environment_parameters", "default_settings"]

    assert resolve(behavior() | dict.fromkeys(names)) == resolve("behaviors: {A: {}}")


def test_a_section_of_another_type_is_refused() -> None:
    assert codes_of(behavior() | {"env_settings": 5}) == {"env_settings": "wrong_type"}


def test_networks_of_extrinsic_rewards_are_accepted_since_nobody_uses_them() -> None:
    document = behavior(reward_signals={"extrinsic": {"network_settings": {"hidden_units": 8}}})

    assert resolve(document) == resolve("behaviors: {A: {}}")
    assert codes_of(behavior(reward_signals={"extrinsic": {"network_settings": 5}})) == {
        "behaviors.A.reward_signals.extrinsic.network_settings": "unsupported"
    }


@pytest.mark.parametrize(
    "form",
    [
        9.81,
        "9.81",
        {"sampler_type": "constant", "sampler_parameters": {"value": 9.81, "seed": 3}},
        {"curriculum": [{"name": "only", "value": 9.81}]},
        {"curriculum": [{"name": "x", "value": {"sampler_type": "constant", "sampler_parameters": {"value": 9.81}}}]},
    ],
)
def test_a_constant_is_a_number_however_it_is_written(form: object) -> None:
    config = resolve(behavior() | {"environment_parameters": {"gravity": form}})

    assert config.environment_parameters == {"gravity": 9.81}


@pytest.mark.parametrize("form", [{"sampler_type": ["uniform"]}, {"sampler_type": "poisson"}, [1], True, None])
def test_nonsense_is_no_parameter(form: object) -> None:
    assert codes_of(behavior() | {"environment_parameters": {"g": form}}) == {"environment_parameters.g": "wrong_type"}


@pytest.mark.parametrize("name", ["gail_config.yaml", "wall_jump.yaml"])
def test_formats_before_behaviors_are_refused_as_such(name: str) -> None:
    problem = problem_of((CONFIGS / "old" / name).read_bytes())

    assert problem.code == "old_format"
    assert "upgrade_config" in problem.message


def test_sections_of_older_formats_are_refused_as_such() -> None:
    assert codes_of(behavior() | {"curriculum": {}, "parameter_randomization": {}}) == {
        "curriculum": "old_format",
        "parameter_randomization": "old_format",
    }


def test_every_refusal_says_what_to_do() -> None:
    refusals = [foreign for keys in (*KEYS.values(), *SECTIONS.values()) for foreign in keys.values()]

    assert all(len(foreign.instead) > 5 for foreign in refusals)


def test_no_key_is_both_supported_and_refused() -> None:
    assert all(not keys.keys() & section.model_fields.keys() for section, keys in KEYS.items())
    assert not SECTIONS.keys() & RunConfig.model_fields.keys()


# Real files

RESOLVED = {
    "exported.yaml": {"Walker"},
    "ppo-3DBall.yaml": {"3DBall"},
    "ppo-Crawler.yaml": {"Crawler"},
}


@pytest.mark.parametrize("name", RESOLVED)
def test_a_file_of_ml_agents_resolves(name: str) -> None:
    assert resolve((CONFIGS / name).read_bytes()).behaviors.keys() == RESOLVED[name]


def test_a_file_of_ml_agents_keeps_its_numbers() -> None:
    config = resolve((CONFIGS / "ppo-3DBall.yaml").read_text()).behaviors["3DBall"]

    assert config.hyperparameters.batch_size == 64
    assert config.hyperparameters.buffer_size == 12000
    assert config.hyperparameters.beta == 0.001
    assert config.hyperparameters.lambd == 0.99
    assert config.network_settings.normalize
    assert (config.max_steps, config.time_horizon, config.summary_freq) == (500_000, 1000, 12_000)


def test_an_exported_file_keeps_its_numbers() -> None:
    config = resolve((CONFIGS / "exported.yaml").read_text())

    assert config.behaviors["Walker"].checkpoint_interval == 100_000
    assert config.environment_parameters == {"gravity": 9.81}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("[ips]*-*.yaml")), ids=lambda path: path.stem)
def test_a_file_of_ml_agents_is_refused_only_for_what_is_not_supported(path: Path) -> None:
    if path.name in RESOLVED:
        return

    assert {problem.code for problem in problems_of(path.read_bytes())} <= {"unsupported", "path_refused"}
