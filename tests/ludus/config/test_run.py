"""What belongs to a run as a whole: seeds, patience, names, how builds are started."""

from typing import Any

import pytest

from ludus.config.run import RunConfig
from server.config.resolution import resolve, review
from tests.server.config.checks import behavior, codes_of, problem_of


def test_the_seed_of_the_environment_is_that_of_the_run() -> None:
    assert resolve(behavior() | {"env_settings": {"seed": 7}}).seed == 7
    assert resolve(behavior() | {"env_settings": {"seed": -1}}).seed is None
    assert resolve(behavior() | {"env_settings": {"seed": 7}, "seed": 7}).seed == 7
    assert resolve(behavior() | {"env_settings": {"seed": -1}, "seed": 9}).seed == 9


def test_two_seeds_that_differ_are_a_contradiction() -> None:
    problem = problem_of(behavior() | {"env_settings": {"seed": 7}, "seed": 8})

    assert (problem.path, problem.code) == ("seed", "contradiction")
    assert "env_settings.seed" in problem.message


@pytest.mark.parametrize(
    ("sections", "seconds"),
    [
        ({}, 60),
        ({"env_settings": {"timeout_wait": 300}}, 300),
        ({"env_settings": {"timeout_wait": 300}, "simulators": {"grace_seconds": 5}}, 300),
        ({"env_settings": {"timeout_wait": 300}, "simulators": {"step_timeout_seconds": 10}}, 10),
    ],
)
def test_a_build_has_as_long_as_ml_agents_waits_unless_simulators_say_otherwise(
    sections: dict[str, Any], seconds: float
) -> None:
    assert resolve(behavior() | sections).simulators.step_timeout_seconds == seconds


@pytest.mark.parametrize(
    ("run_id", "name", "warned"),
    [("ppo", None, False), ("walker-3", "walker-3", False), (12, "12", False), ("a b", None, True)],
)
def test_a_run_is_called_by_its_run_id_if_that_can_be_a_name(run_id: object, name: str | None, warned: bool) -> None:
    config, warnings = review(behavior() | {"checkpoint_settings": {"run_id": run_id}})

    assert config.name == name
    assert bool(warnings) == warned


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("env_settings", "num_envs", 0),
        ("env_settings", "num_areas", 0),
        ("env_settings", "base_port", 65_536),
        ("env_settings", "seed", -2),
        ("env_settings", "timeout_wait", 0),
        ("engine_settings", "time_scale", 0),
        ("engine_settings", "width", 0),
        ("engine_settings", "target_frame_rate", -2),
        ("simulators", "unity_port", 0),
        ("simulators", "unity_port", 65_536),
    ],
)
def test_numbers_out_of_range_are_refused(section: str, key: str, value: int) -> None:
    assert codes_of(behavior() | {section: {key: value}}) == {f"{section}.{key}": "out_of_range"}


def test_unity_builds_may_dial_in_on_a_fixed_port() -> None:
    assert resolve(behavior() | {"simulators": {"unity_port": 5004}}).simulators.unity_port == 5004
    assert resolve(behavior()).simulators.unity_port is None


def test_arguments_of_builds_may_be_numbers() -> None:
    config = resolve(behavior() | {"env_settings": {"env_args": ["--level", 3, 0.5]}})

    assert config.env_settings.env_args == ["--level", "3", "0.5"]


@pytest.mark.parametrize(
    ("document", "path", "code"),
    [
        (behavior() | {"checkpoint_settings": {"force": True}}, "checkpoint_settings.force", "no_effect"),
        (behavior() | {"checkpoint_settings": {"train_model": True}}, "checkpoint_settings.train_model", "no_effect"),
        (behavior() | {"engine_settings": {"time_scale": 101}}, "engine_settings.time_scale", "doubtful"),
        (
            behavior(self_play={"play_against_latest_model_ratio": 1.5}),
            "behaviors.A.self_play.play_against_latest_model_ratio",
            "doubtful",
        ),
        (
            behavior(self_play={"play_against_latest_model_ratio": 1}),
            "behaviors.A.self_play.play_against_latest_model_ratio",
            "doubtful",
        ),
        (behavior(self_play={}, max_steps=50_000, summary_freq=5_000), "behaviors.A.self_play.team_change", "doubtful"),
    ],
)
def test_what_is_probably_not_meant_is_warned_of(document: dict[str, Any], path: str, code: str) -> None:
    (warning,) = review(document)[1]

    assert (warning.path, warning.code) == (path, code)


@pytest.mark.parametrize(("ratio", "stands"), [(1, True), (1.5, True), (0.99, False), (0, False), (-1, False)])
def test_a_policy_that_only_plays_itself_is_told_why_its_elo_stands_still(ratio: float, stands: bool) -> None:
    _, warnings = review(behavior(self_play={"play_against_latest_model_ratio": ratio}))

    assert any("`Self-play/ELO` is constant" in warning.message for warning in warnings) == stands


@pytest.mark.parametrize(
    ("torch", "gpus", "needed"),
    [
        ({"processes": 2}, 0, 2),
        ({"processes": 4, "device": "cuda"}, 3, 4),
        ({"processes": 2, "device": "cuda:1"}, 2, 3),
    ],
)
def test_more_processes_than_gpus_are_refused_with_both_keys_and_the_fix(
    torch: dict[str, Any], gpus: int, needed: int
) -> None:
    document = behavior() | {"torch_settings": torch, "resources": {"gpu": gpus}}

    problem = problem_of(document)

    assert (problem.path, problem.code) == ("torch_settings.processes", "contradiction")
    assert f"resources.gpu is {gpus}" in problem.message
    assert f"set resources.gpu to {needed}" in problem.message
    assert resolve(document | {"resources": {"gpu": needed}}).torch_settings.processes == torch["processes"]


def test_ranks_without_a_collector_are_refused_with_the_fix() -> None:
    torch = {"processes": 4, "device": "cpu"}
    document = behavior() | {"torch_settings": torch, "simulators": {"collectors": {"local": 0, "edge": 2}}}

    problem = problem_of(document)

    assert (problem.path, problem.code) == ("torch_settings.processes", "contradiction")
    assert problem.message.endswith("local is 0 and edge is 2; set edge to 4, or leave local out")


def test_processes_on_a_cpu_need_no_gpu_and_a_stored_run_of_an_earlier_release_is_still_read() -> None:
    on_cpu = resolve(behavior() | {"torch_settings": {"processes": 2, "device": "cpu"}})
    stored = on_cpu.model_dump(mode="json") | {"torch_settings": {"processes": 2}}

    assert RunConfig.model_validate(stored).torch_settings.processes == 2
