"""Every trainer, signal and network: its defaults, which are ML-Agents', and what does not go together."""

from typing import Any, get_args

import pytest

from ludus.config.behavior import (
    TRAINERS,
    BehaviorConfig,
    CloneConfig,
    DQNConfig,
    ReinforcementConfig,
)
from ludus.config.network import NetworkSettings
from ludus.config.problems import WARNINGS
from ludus.config.rewards import ExtrinsicConfig, GAILConfig, RewardSignals, SignalConfig
from server.config.resolution import resolve, review
from tests.server.config.checks import DEMONSTRATION, behavior, codes_of, config_of, ppo_of, problem_of

DEMONSTRATED = {"demonstrations": [DEMONSTRATION]}


def test_the_table_of_trainers_is_the_union() -> None:
    union, *_ = get_args(BehaviorConfig)

    assert set(get_args(union)) == set(TRAINERS.values())
    assert all(trainer.model_fields["trainer_type"].default == name for name, trainer in TRAINERS.items())


# Trainers


def test_dqn_explores_less_and_less_and_has_its_extensions_by_choice() -> None:
    config = config_of(behavior(trainer_type="dqn"))

    assert isinstance(config, DQNConfig)
    hyper = config.hyperparameters
    assert (hyper.exploration_initial_eps, hyper.exploration_final_eps, hyper.exploration_steps) == (1.0, 0.05, None)
    assert (hyper.double, hyper.dueling, hyper.n_step, hyper.prioritized) == (True, False, 1, False)
    assert config.head == "epsilon_greedy"


@pytest.mark.parametrize(
    ("section", "path", "named"),
    [
        ({"network_settings": {"memory": {}}}, "network_settings.memory", "has no memory"),
        ({"behavioral_cloning": DEMONSTRATED}, "behavioral_cloning", "learns values of choices"),
    ],
)
def test_what_dqn_does_not_have_is_refused_with_the_way_out(section: dict[str, Any], path: str, named: str) -> None:
    problem = problem_of(behavior(trainer_type="dqn", **section))

    assert (problem.path, problem.code) == (f"behaviors.A.{path}", "contradiction")
    assert named in problem.message
    assert "sac" in problem.message


def test_a_wrong_ratio_is_said_once() -> None:
    assert codes_of(behavior(trainer_type="sac", hyperparameters={"steps_per_update": 0})) == {
        "behaviors.A.hyperparameters.steps_per_update": "out_of_range"
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tau", 0),
        ("tau", 1.1),
        ("init_entcoef", 0),
        ("buffer_init_steps", -1),
        ("reward_signal_steps_per_update", -1),
        ("batch_size", 0),
    ],
)
def test_values_that_make_no_sense_for_sac_are_refused(key: str, value: float) -> None:
    assert codes_of(behavior(trainer_type="sac", hyperparameters={key: value})) == {
        f"behaviors.A.hyperparameters.{key}": "out_of_range"
    }


def test_a_learning_rate_for_the_critic_needs_a_critic_of_its_own() -> None:
    problem = problem_of(behavior(hyperparameters={"shared_critic": True, "critic_learning_rate": 0.01}))

    assert (problem.path, problem.code) == ("behaviors.A.hyperparameters.critic_learning_rate", "contradiction")
    assert "shared_critic" in problem.message
    assert ppo_of(behavior(hyperparameters={"critic_learning_rate": "1e-2"})).hyperparameters.critic_learning_rate


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


def test_units_that_poca_cannot_share_among_its_heads_are_refused() -> None:
    problem = problem_of(behavior(trainer_type="poca", network_settings={"hidden_units": 30}))

    assert (problem.path, problem.code) == ("behaviors.A.network_settings.hidden_units", "contradiction")
    assert "hidden_units (30) is no multiple of the 4 attention heads" in problem.message
    assert "take 28 or 32" in problem.message
    assert config_of(behavior(network_settings={"hidden_units": 30})).network_settings.hidden_units == 30


def test_a_sequence_is_not_judged_by_a_batch_that_is_wrong_itself() -> None:
    document = behavior(hyperparameters={"batch_size": 0}, network_settings={"memory": {}})

    assert codes_of(document) == {"behaviors.A.hyperparameters.batch_size": "out_of_range"}


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


# Reward signals


def test_signals_have_the_order_of_the_value_heads_however_they_are_written() -> None:
    document = behavior(
        reward_signals={
            "rnd": {},
            "gail": [DEMONSTRATED, {**DEMONSTRATED, "gamma": 0.5}],
            "curiosity": {},
            "extrinsic": {},
        }
    )

    active = ppo_of(document).reward_signals.active()

    assert [name for name, _ in active] == ["extrinsic", "curiosity", "gail", "gail_2", "rnd"]
    assert [signal.gamma for _, signal in active] == [0.99, 0.99, 0.99, 0.5, 0.99]


def test_a_signal_is_of_one_class_only() -> None:
    """`worker.learning.build` dispatches on the type; with subclasses, the order of its arms would matter."""
    classes = get_args(SignalConfig)

    assert [(a, b) for a in classes for b in classes if a is not b and issubclass(a, b)] == []


@pytest.mark.parametrize("signals", [{}, {"extrinsic": None}, {"curiosity": None, "gail": None}])
def test_a_behavior_without_any_signal_is_refused(signals: dict[str, Any]) -> None:
    problem = problem_of(behavior(reward_signals=signals))

    assert (problem.path, problem.code) == ("behaviors.A.reward_signals", "missing")
    assert "extrinsic" in problem.message


@pytest.mark.parametrize("gail", [{}, {"demonstrations": []}, {"demo_path": None}])
def test_gail_without_demonstrations_is_refused(gail: dict[str, Any]) -> None:
    problem = problem_of(behavior(reward_signals={"gail": gail}))

    assert (problem.path, problem.code) == ("behaviors.A.reward_signals.gail.demonstrations", "missing")
    assert "ludus demonstration upload" in problem.message


def test_a_mistake_in_one_of_several_signals_is_found_at_its_place() -> None:
    document = behavior(reward_signals={"gail": [DEMONSTRATED, {**DEMONSTRATED, "gamma": 2, "use_actoins": True}]})

    assert codes_of(document) == {
        "behaviors.A.reward_signals.gail[1].gamma": "out_of_range",
        "behaviors.A.reward_signals.gail[1].use_actoins": "unknown_key",
    }


@pytest.mark.parametrize(
    ("gail", "path", "code"),
    [
        ([], "gail", "out_of_range"),
        ([DEMONSTRATED] * 9, "gail", "out_of_range"),
        ([5], "gail[0]", "wrong_type"),
        (5, "gail", "wrong_type"),
        ({"demonstrations": "x"}, "gail.demonstrations", "wrong_type"),
        ({"demonstrations": ["run_1"]}, "gail.demonstrations[0]", "invalid_value"),
        ({"demonstrations": [DEMONSTRATION, DEMONSTRATION]}, "gail.demonstrations", "invalid_value"),
    ],
)
def test_nonsense_is_no_gail(gail: object, path: str, code: str) -> None:
    assert codes_of(behavior(reward_signals={"extrinsic": {}, "gail": gail})) == {
        f"behaviors.A.reward_signals.{path}": code
    }


def test_a_reward_signals_section_can_be_made_in_code() -> None:
    signals = RewardSignals(extrinsic=ExtrinsicConfig(), gail=[GAILConfig(demonstrations=[DEMONSTRATION])])

    assert [name for name, _ in signals.active()] == ["extrinsic", "gail"]


# Imitation


def test_cloning_without_demonstrations_is_refused() -> None:
    assert codes_of(behavior(behavioral_cloning={})) == {"behaviors.A.behavioral_cloning.demonstrations": "missing"}


def test_a_behavior_drops_inherited_cloning_by_null() -> None:
    document = {
        "default_settings": {"behavioral_cloning": DEMONSTRATED},
        "behaviors": {"A": {"behavioral_cloning": None}},
    }

    assert ppo_of(document).behavioral_cloning is None


# Warnings


def warnings_of(document: dict[str, Any]) -> dict[str, str]:
    """Resolve a document without mistakes, and return the codes of its warnings by path."""
    warnings = review(document)[1]
    assert {warning.code for warning in warnings} <= WARNINGS
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
