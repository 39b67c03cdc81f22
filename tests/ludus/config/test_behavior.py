"""Every trainer, signal and network: its defaults, which are ML-Agents', and what does not go together."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from ludus.config.behavior import TRAINERS, BehaviorConfig, CloneConfig
from ludus.config.network import NetworkSettings
from ludus.config.trainer import ReinforcementConfig
from tests.server.config.checks import DEMONSTRATION, behavior, codes_of, config_of, ppo_of, problem_of

DEMONSTRATED = {"demonstrations": [DEMONSTRATION]}


def test_the_table_of_trainers_is_the_union() -> None:
    union = TypeAdapter[Any](BehaviorConfig).json_schema()["discriminator"]["mapping"]

    assert union.keys() == TRAINERS.keys()
    assert all(trainer.model_fields["trainer_type"].default == name for name, trainer in TRAINERS.items())


# Trainers


def test_a_clone_needs_demonstrations_and_nothing_else() -> None:
    config = config_of(behavior(trainer_type="clone", **DEMONSTRATED))

    assert isinstance(config, CloneConfig)
    assert not isinstance(config, ReinforcementConfig)
    assert config.demonstrations == [DEMONSTRATION]
    assert codes_of(behavior(trainer_type="clone")) == {"behaviors.A.demonstrations": "missing"}


@pytest.mark.parametrize("key", ["reward_signals", "behavioral_cloning", "time_horizon", "threaded"])
def test_a_clone_has_nothing_that_only_players_need(key: str) -> None:
    problem = problem_of(behavior(trainer_type="clone", **DEMONSTRATED, **{key: {}}))

    assert (problem.path, problem.code) == (f"behaviors.A.{key}", "unknown_key")


# Networks


def test_units_that_poca_cannot_share_among_its_heads_are_refused() -> None:
    problem = problem_of(behavior(trainer_type="poca", network_settings={"hidden_units": 30}))

    assert (problem.path, problem.code) == ("behaviors.A.network_settings.hidden_units", "contradiction")
    assert "hidden_units (30) is no multiple of the 4 attention heads" in problem.message
    assert "take 28 or 32" in problem.message
    assert config_of(behavior(network_settings={"hidden_units": 30})).network_settings.hidden_units == 30


@pytest.mark.parametrize("trainer", ["offline", "finetune"])
def test_recorded_rewards_have_one_scale(trainer: str) -> None:
    signals = {"extrinsic": {"normalize_reward": True}}
    problem = problem_of(behavior(trainer_type=trainer, **DEMONSTRATED, reward_signals=signals))

    assert problem.path == "behaviors.A.reward_signals.extrinsic.normalize_reward"
    assert "remove normalize_reward, and set reward_signals.extrinsic.strength" in problem.message


@pytest.mark.parametrize("value", [1, "yes", None, 0.5])
def test_whether_a_signal_is_scaled_is_true_or_false(value: object) -> None:
    problem = problem_of(behavior(reward_signals={"extrinsic": {"normalize_reward": value}}))

    assert (problem.path, problem.code) == ("behaviors.A.reward_signals.extrinsic.normalize_reward", "wrong_type")


PRIVILEGED = {"network_settings": {"privileged_observations": ["state"]}}


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_a_critic_may_see_more_than_its_policy(trainer: str) -> None:
    assert config_of(behavior(trainer_type=trainer, **PRIVILEGED)).network_settings.privileged_observations == ["state"]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"trainer_type": "sac"}, "trainer_type sac has no critic that sees more than the policy; remove"),
        ({"trainer_type": "dqn"}, "take trainer_type ppo or poca"),
        ({"trainer_type": "td3"}, "take trainer_type ppo or poca"),
        ({"trainer_type": "clone", **DEMONSTRATED}, "trainer_type clone has no critic"),
        ({"hyperparameters": {"shared_critic": True}}, "policy and critic are one network, and see the same; remove"),
    ],
)
def test_privileged_observations_without_a_critic_for_them_are_refused(section: dict[str, Any], message: str) -> None:
    problem = problem_of(behavior(**section, **PRIVILEGED))

    place = "behaviors.A.network_settings.privileged_observations"
    assert (problem.path, problem.code) == (place, "contradiction")
    assert message in problem.message


def test_a_reward_signal_sees_everything() -> None:
    problem = problem_of(behavior(reward_signals={"extrinsic": {}, "rnd": PRIVILEGED}))

    assert problem.path == "behaviors.A.reward_signals.rnd.network_settings.privileged_observations"
    assert "set it in the behavior's network_settings" in problem.message


@pytest.mark.parametrize(
    ("names", "place", "code"),
    [
        (["a", "b", "a"], "", "invalid_value"),
        ([""], "[0]", "invalid_value"),
        (["x" * 201], "[0]", "invalid_value"),
        ("a", "", "wrong_type"),
    ],
)
def test_names_of_privileged_observations_are_a_list_without_repetition(names: object, place: str, code: str) -> None:
    problem = problem_of(behavior(network_settings={"privileged_observations": names}))

    assert problem.path == f"behaviors.A.network_settings.privileged_observations{place}"
    assert problem.code == code


@pytest.mark.parametrize(("size", "code"), [(127, "invalid_value"), (0, "out_of_range"), (-2, "out_of_range")])
def test_a_memory_that_has_no_halves_is_refused(size: int, code: str) -> None:
    problem = problem_of(behavior(network_settings={"memory": {"memory_size": size}}))

    assert (problem.path, problem.code) == ("behaviors.A.network_settings.memory.memory_size", code)
    assert str(size) in problem.message


@pytest.mark.parametrize(("key", "value"), [("vis_encode_type", "vit"), ("goal_conditioning_type", "film")])
def test_an_unknown_network_is_refused_with_the_known_ones(key: str, value: str) -> None:
    problem = problem_of(behavior(network_settings={key: value}))

    assert (problem.path, problem.code) == (f"behaviors.A.network_settings.{key}", "invalid_value")
    assert NetworkSettings.model_fields[key].default in problem.message


# Imitation


def test_cloning_without_demonstrations_is_refused() -> None:
    assert codes_of(behavior(behavioral_cloning={})) == {"behaviors.A.behavioral_cloning.demonstrations": "missing"}


def test_a_behavior_drops_inherited_cloning_by_null() -> None:
    document = {
        "default_settings": {"behavioral_cloning": DEMONSTRATED},
        "behaviors": {"A": {"behavioral_cloning": None}},
    }

    assert ppo_of(document).behavioral_cloning is None
