"""What no run can do yet is refused where a run would be made from it, and resolves all the same."""

from typing import Any

import pytest

from ludus.config.network import NetworkSettings
from ludus.config.recommendations import advice, measured
from server.config.resolution import resolve, review
from server.config.rules import refuse_unsupported, unsupported
from server.kit.errors import InvalidConfig
from tests.server.config.checks import DEMONSTRATION, behavior, ppo_of

DEMONSTRATED = {"demonstrations": [DEMONSTRATION]}
LESSONS = [{"name": "low", "value": 1, "completion_criteria": {"behavior": "A"}}, {"name": "high", "value": 2}]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (behavior() | {"env_settings": {"env_path": "game"}}, "env_settings.env_path"),
        (behavior() | {"checkpoint_settings": {"initialize_from": "run"}}, "checkpoint_settings.initialize_from"),
        (behavior() | {"checkpoint_settings": {"resume": True}}, "checkpoint_settings.resume"),
        (behavior() | {"checkpoint_settings": {"load_model": True}}, "checkpoint_settings.load_model"),
        (
            behavior(trainer_type="clone", demo_path="a.demo") | {"checkpoint_settings": {"inference": True}},
            "checkpoint_settings.inference",
        ),
        (behavior() | {"checkpoint_settings": {"results_dir": "/x"}}, "checkpoint_settings.results_dir"),
    ],
)
def test_what_no_run_can_do_yet_is_refused_by_name(document: dict[str, Any], path: str) -> None:
    config = resolve(document, local=True)

    (problem,) = unsupported(config)

    assert (problem.path, problem.code) == (path, "unsupported")
    assert "does not support it yet" in problem.message
    with pytest.raises(InvalidConfig):
        refuse_unsupported(config)


def test_what_runs_can_do_is_not_refused() -> None:
    document = behavior(reward_signals={"curiosity": {}}, self_play={}) | {
        "default_settings": {"self_play": {}},
        "env_settings": {"num_envs": 4, "num_areas": 2, "seed": 3},
        "engine_settings": {"no_graphics": True, "time_scale": 1},
        "environment_parameters": {
            "number": 1,
            "drawn": {"sampler_type": "uniform", "sampler_parameters": {}},
            "alone": {"curriculum": [LESSONS[1]]},
        },
        "checkpoint_settings": {"run_id": "x", "force": True, "inference": True, "resume_from": f"ckpt_{'0' * 26}"},
        "debug": True,
    }

    refuse_unsupported(resolve(document))


def warnings_of(document: dict[str, Any]) -> dict[str, str]:
    """Resolve a document without mistakes, and return the codes of its warnings by path."""
    warnings = review(document)[1]
    return {warning.path: warning.code for warning in warnings}


def test_nothing_is_said_of_what_is_meant() -> None:
    document = behavior(
        reward_signals={"extrinsic": {}, "curiosity": {"encoding_size": None, "network_settings": {"memory": None}}}
    )

    assert warnings_of(document) == {}


@pytest.mark.parametrize(
    ("signal", "units"),
    [
        ({"encoding_size": 64}, 64),
        ({"encoding_size": 64, "network_settings": {"hidden_units": 32}}, 32),
        ({"encoding_size": 64, "network_settings": {}}, 128),
    ],
)
def test_an_encoding_size_counts_where_there_are_no_network_settings(signal: dict[str, Any], units: int) -> None:
    document = behavior(reward_signals={"curiosity": signal})

    curiosity = ppo_of(document).reward_signals.curiosity

    assert curiosity is not None
    assert curiosity.network_settings.hidden_units == units
    assert warnings_of(document) == {"behaviors.A.reward_signals.curiosity.encoding_size": "deprecated"}


def test_the_memory_of_a_signal_is_dropped_with_a_warning() -> None:
    document = behavior(reward_signals={"rnd": {"network_settings": {"memory": {"memory_size": 7}, "num_layers": 1}}})

    rnd = ppo_of(document).reward_signals.rnd

    assert rnd is not None
    assert rnd.network_settings == NetworkSettings(num_layers=1)
    assert warnings_of(document) == {"behaviors.A.reward_signals.rnd.network_settings.memory": "no_effect"}


def test_what_bounds_passes_is_said_to_have_no_effect_under_sac() -> None:
    cloning = {**DEMONSTRATED, "samples_per_update": 5, "num_epoch": 5}

    assert warnings_of(behavior(trainer_type="sac", behavioral_cloning=cloning)) == {
        "behaviors.A.behavioral_cloning.samples_per_update": "no_effect"
    }
    assert warnings_of(behavior(behavioral_cloning=cloning)) == {}


def test_intrinsic_rewards_under_poca_are_said_to_be_doubtful() -> None:
    document = {
        "default_settings": {"trainer_type": "poca", "reward_signals": {"extrinsic": {}, "rnd": {}}},
        "behaviors": {"A": {}},
    }

    assert warnings_of(document) == {
        "default_settings.reward_signals.rnd": "doubtful",
        "behaviors.A.reward_signals.rnd": "doubtful",
    }


def test_what_was_warned_of_is_not_stored() -> None:
    document = behavior(reward_signals={"curiosity": {"encoding_size": 64, "network_settings": {"memory": {}}}})

    stored = resolve(document).model_dump(mode="json")

    assert warnings_of(stored) == {}


def test_self_play_under_sac_is_advised_against() -> None:
    document = {
        "behaviors": {
            name: {"trainer_type": name, "self_play": {}, "max_steps": 10**6} for name in ("ppo", "poca", "sac")
        }
    }

    (warning,) = review(document)[1]

    assert (warning.path, warning.code) == ("behaviors.sac.self_play", "doubtful")
    assert "take `ppo` or `poca`" in warning.message


def test_a_limit_of_the_kl_has_no_effect_under_sac() -> None:
    document = {
        "behaviors": {name: {"trainer_type": name, "divergence": {"stop_kl_above": 1}} for name in ("ppo", "sac")}
    }

    (warning,) = review(document)[1]

    assert (warning.path, warning.code) == ("behaviors.sac.divergence.stop_kl_above", "no_effect")


def test_learning_rates_that_saturate_networks_are_said_to_be_doubtful() -> None:
    # The book's PPO expert has 1e-2 for its critic.
    usual = {"hyperparameters": {"learning_rate": 1e-3, "critic_learning_rate": 1e-2}}
    fast = {"hyperparameters": {"learning_rate": 0.1, "critic_learning_rate": 1}}
    clone = {"trainer_type": "clone", "demonstrations": [DEMONSTRATION], "hyperparameters": {"learning_rate": 0.5}}

    _, warnings = review({"behaviors": {"A": usual, "B": fast, "C": clone}})

    assert {warning.path: warning.code for warning in warnings} == {
        "behaviors.B.hyperparameters.learning_rate": "doubtful",
        "behaviors.B.hyperparameters.critic_learning_rate": "doubtful",
        "behaviors.C.hyperparameters.learning_rate": "doubtful",
    }
    assert "is 0.1: " in warnings[0].message
    assert "usual are 1e-5 to 1e-2" in warnings[0].message


@pytest.mark.parametrize("trainer", ["ppo", "sac", "poca"])
def test_keys_that_measured_better_are_at_most_one_warning_of_a_behavior(trainer: str) -> None:
    document = behavior(trainer_type=trainer, max_steps=40_000, summary_freq=1000)
    named = advice(measured(resolve(document).behaviors["A"].model_dump(mode="json")))

    warnings = [warning for warning in review(document)[1] if warning.code == "measured_better"]

    assert [warning.path for warning in warnings] == ([] if named is None else [f"behaviors.A.{named[0]}"])
