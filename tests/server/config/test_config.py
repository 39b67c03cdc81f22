"""Resolved configurations: defaults, constraints, and that they survive storage."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ludus.config.behavior import PPOConfig
from ludus.config.hyperparameters import PPOHyperparameters
from ludus.config.run import RunConfig
from ludus.protocol.environment_parameters import Constant
from server.config.resolution import resolve
from tests.server.config.checks import DEMONSTRATION, behavior, codes_of, ppo_of, problem_of

WHOLE = st.integers(1, 10**6)
SCHEDULE = st.sampled_from(["linear", "constant"])
WHOLE_SIZE = st.none() | st.integers(1, 512)
HYPERPARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "batch_size": st.integers(1, 10240),
        "buffer_size": st.integers(10240, 10**7),
        "learning_rate": st.floats(0, 1, exclude_min=True),
        "beta": st.floats(0, 10),
        "epsilon": st.floats(0, 1, exclude_min=True),
        "lambd": st.floats(0, 1),
        "num_epoch": st.integers(1, 1000),
        "shared_critic": st.booleans(),
        "learning_rate_schedule": SCHEDULE,
        "beta_schedule": SCHEDULE,
        "epsilon_schedule": SCHEDULE,
    },
)
NETWORK = st.fixed_dictionaries(
    {},
    optional={
        "normalize": st.booleans(),
        "hidden_units": st.integers(1, 256).map(lambda quarter: 4 * quarter),
        "num_layers": st.integers(1, 8),
        "deterministic": st.booleans(),
        "vis_encode_type": st.sampled_from(["fully_connected", "match3", "simple", "nature_cnn", "resnet"]),
        "goal_conditioning_type": st.sampled_from(["hyper", "none"]),
        "memory": st.none()
        | st.fixed_dictionaries(
            {"sequence_length": st.just(1)}, optional={"memory_size": st.integers(1, 512).map(lambda half: 2 * half)}
        ),
    },
)
SIGNAL = {"gamma": st.floats(0, 1), "strength": st.floats(-100, 100)}
EXTRINSIC = st.fixed_dictionaries({}, optional=SIGNAL)
INTRINSIC = st.fixed_dictionaries({}, optional={**SIGNAL, "network_settings": NETWORK, "encoding_size": WHOLE_SIZE})
GAIL = st.fixed_dictionaries(
    {"demonstrations": st.just([DEMONSTRATION])}, optional={**SIGNAL, "use_actions": st.booleans()}
)
SIGNALS = st.fixed_dictionaries(
    {"extrinsic": EXTRINSIC},
    optional={
        "curiosity": st.none() | INTRINSIC,
        "rnd": INTRINSIC,
        "gail": st.none() | GAIL | st.lists(GAIL, min_size=1, max_size=3),
    },
)
SAC = st.fixed_dictionaries(
    {},
    optional={
        "steps_per_update": st.floats(0.1, 100),
        "reward_signal_steps_per_update": st.floats(0.1, 100),
        "buffer_init_steps": st.integers(0, 1000),
        "tau": st.floats(0, 1, exclude_min=True),
        "init_entcoef": st.floats(0, 10, exclude_min=True),
        "save_replay_buffer": st.booleans(),
        "learning_rate_schedule": SCHEDULE,
    },
)
PPO = st.fixed_dictionaries({}, optional={"trainer_type": st.just("ppo"), "hyperparameters": HYPERPARAMETERS})
TRAINER = (
    PPO
    | st.fixed_dictionaries({"trainer_type": st.just("sac")}, optional={"hyperparameters": SAC})
    | st.fixed_dictionaries({"trainer_type": st.just("poca")})
)
REST = st.fixed_dictionaries(
    {},
    optional={
        "network_settings": NETWORK,
        "reward_signals": SIGNALS,
        "behavioral_cloning": st.none() | st.just({"demonstrations": [DEMONSTRATION], "steps": 5}),
        "max_steps": st.integers(1000, 10**12) | st.floats(1000, 10**9) | st.just("5e5"),
        "time_horizon": WHOLE,
        "summary_freq": WHOLE,
        "keep_checkpoints": st.integers(1, 1000),
        "even_checkpoints": st.booleans(),
        "checkpoint_interval": WHOLE,
        "threaded": st.booleans(),
    },
)
CLONE = st.fixed_dictionaries(
    {"trainer_type": st.just("clone"), "demonstrations": st.just([DEMONSTRATION])},
    optional={"network_settings": NETWORK, "evaluation_interval": WHOLE, "evaluation_episodes": st.integers(1, 100)},
)
BEHAVIOR = st.builds(lambda trainer, rest: {**trainer, **rest}, TRAINER, REST) | CLONE
TEMPLATE = st.builds(lambda trainer, rest: {**trainer, **rest}, PPO, REST)
NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="-_"), min_size=1, max_size=9)
DEVICES = st.sampled_from([None, "cpu", "cuda", "cuda:1"])
DOCUMENTS = st.fixed_dictionaries(
    {"behaviors": st.dictionaries(NAMES, BEHAVIOR, min_size=1, max_size=3)},
    optional={
        "default_settings": st.none() | TEMPLATE,
        "environment_parameters": st.none() | st.dictionaries(NAMES, st.floats(-1e6, 1e6) | st.integers(), max_size=3),
        "torch_settings": st.fixed_dictionaries(
            {"device": DEVICES, "collector_device": DEVICES, "bf16": st.booleans()}
        ),
        "seed": st.none() | st.integers(0, 2**31 - 1),
        "simulators": st.fixed_dictionaries({"startup_timeout_seconds": st.none() | st.floats(0.1, 1e6)}),
    },
)


@settings(deadline=None)
@given(DOCUMENTS)
def test_a_configuration_survives_json(document: dict[str, Any]) -> None:
    config = resolve(document)

    stored = config.model_dump(mode="json")

    assert RunConfig.model_validate(stored) == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


@settings(deadline=None)
@given(DOCUMENTS)
def test_resolving_what_is_resolved_changes_nothing(document: dict[str, Any]) -> None:
    config = resolve(document)

    assert resolve(config.model_dump(mode="json")) == config


def test_defaults_are_those_of_ml_agents() -> None:
    golden = Path(__file__).parents[2] / "golden" / "defaults.yaml"

    assert resolve("behaviors: {A: {}}").model_dump(mode="json") == yaml.safe_load(golden.read_text())


def test_a_configuration_that_an_earlier_release_stored_is_read() -> None:
    stored = resolve(behavior() | {"environment_parameters": {"gravity": 9.81}}).model_dump(mode="json")
    for section in ("env_settings", "engine_settings", "checkpoint_settings", "debug"):
        del stored[section]
    for key in ("init_path", "self_play"):
        del stored["behaviors"]["A"][key]
    del stored["simulators"]["unity_port"]
    stored["simulators"]["step_timeout_seconds"] = 5.0

    config = RunConfig.model_validate(stored)

    assert config.samplers(0) == {"gravity": Constant(9.81)}
    assert config.simulators.step_timeout_seconds == 5


def test_configurations_cannot_be_changed() -> None:
    config = resolve("behaviors: {A: {}}")

    with pytest.raises(ValidationError, match="frozen"):
        setattr(config.behaviors["A"], "max_steps", 1)  # noqa: B010


def test_even_checkpoints_need_a_step_each() -> None:
    problem = problem_of(behavior(even_checkpoints=True, keep_checkpoints=11, max_steps=10))

    assert (problem.path, problem.code) == ("behaviors.A.keep_checkpoints", "contradiction")
    assert "max_steps (10)" in problem.message


def test_a_wrong_number_of_checkpoints_is_said_once() -> None:
    assert codes_of(behavior(even_checkpoints=True, keep_checkpoints=0)) == {
        "behaviors.A.keep_checkpoints": "out_of_range"
    }


@pytest.mark.parametrize(
    ("written", "steps"), [(5e5, 500_000), ("5e5", 500_000), ("5.0e+5", 500_000), (50000.7, 50_000), (7, 7), ("12", 12)]
)
def test_max_steps_is_read_as_a_float_and_cut(written: object, steps: int) -> None:
    assert ppo_of(behavior(max_steps=written)).max_steps == steps


@pytest.mark.parametrize(("text", "rate"), [("3e-4", 0.0003), ("3.0e-4", 0.0003), ("1", 1.0), ("'5e-5'", 0.00005)])
def test_text_of_yaml_1_1_that_denotes_a_float_is_one(text: str, rate: float) -> None:
    config = resolve(f"behaviors: {{A: {{hyperparameters: {{learning_rate: {text}}}}}}}")

    assert config.behaviors["A"].hyperparameters.learning_rate == rate


@pytest.mark.parametrize("written", [2048, 2048.0, "2048", "2.048e3", "2_048"])
def test_whole_numbers_may_be_written_as_floats_and_text(written: object) -> None:
    config = resolve(behavior(hyperparameters={"batch_size": written}))

    assert config.behaviors["A"].hyperparameters.batch_size == 2048


@pytest.mark.parametrize("written", [64.5, "64.5", "many", True, None, [64], "", {}])
def test_what_is_no_whole_number_is_refused(written: object) -> None:
    problem = problem_of(behavior(hyperparameters={"batch_size": written}))

    assert (problem.path, problem.code) == ("behaviors.A.hyperparameters.batch_size", "wrong_type")
    assert "must be a whole number" in problem.message


@pytest.mark.parametrize("written", ["fast", False, None, [0.1]])
def test_what_is_no_number_is_refused(written: object) -> None:
    assert problem_of(behavior(hyperparameters={"beta": written})).code == "wrong_type"


@pytest.mark.parametrize("written", ["nan", "inf", "-1e999", 2**1024 - 1])
def test_numbers_that_are_not_finite_are_refused(written: object) -> None:
    assert codes_of(behavior(hyperparameters={"beta": written})) == {"behaviors.A.hyperparameters.beta": "not_finite"}


@pytest.mark.parametrize("written", ["inf", "nan"])
def test_max_steps_has_to_be_finite(written: str) -> None:
    assert codes_of(behavior(max_steps=written)) == {"behaviors.A.max_steps": "not_finite"}


@pytest.mark.parametrize("written", ["false", "true", 1, 0, None])
def test_truth_values_are_never_text_or_numbers(written: object) -> None:
    problem = problem_of(behavior(threaded=written))

    assert (problem.path, problem.code) == ("behaviors.A.threaded", "wrong_type")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("hyperparameters", "batch_size", 0),
        ("hyperparameters", "buffer_size", -1),
        ("hyperparameters", "learning_rate", -0.1),
        ("hyperparameters", "learning_rate", 0),
        ("hyperparameters", "learning_rate", 1.5),
        ("hyperparameters", "beta", -1e-9),
        ("hyperparameters", "epsilon", 0),
        ("hyperparameters", "lambd", 1.01),
        ("hyperparameters", "num_epoch", 0),
        ("network_settings", "hidden_units", 0),
        ("network_settings", "hidden_units", 10**9),
        ("network_settings", "num_layers", -1),
    ],
)
def test_values_that_make_no_sense_are_refused(section: str, key: str, value: float) -> None:
    problem = problem_of(behavior(**{section: {key: value}}))

    assert (problem.path, problem.code) == (f"behaviors.A.{section}.{key}", "out_of_range")
    assert str(value) in problem.message


@pytest.mark.parametrize(
    "key", ["max_steps", "time_horizon", "summary_freq", "keep_checkpoints", "checkpoint_interval"]
)
def test_intervals_of_zero_steps_are_refused(key: str) -> None:
    assert codes_of(behavior(**{key: 0})) == {f"behaviors.A.{key}": "out_of_range"}


@pytest.mark.parametrize("gamma", [-0.1, 1.1])
def test_a_discount_factor_lies_between_0_and_1(gamma: float) -> None:
    assert codes_of(behavior(reward_signals={"extrinsic": {"gamma": gamma}})) == {
        "behaviors.A.reward_signals.extrinsic.gamma": "out_of_range"
    }


@pytest.mark.parametrize("hyperparameters", [{"batch_size": 20_000}, {"buffer_size": 64}])
def test_a_batch_larger_than_the_buffer_is_refused(hyperparameters: dict[str, int]) -> None:
    problem = problem_of(behavior(hyperparameters=hyperparameters))

    assert (problem.path, problem.code) == ("behaviors.A.hyperparameters.batch_size", "contradiction")
    assert "batch_size" in problem.message
    assert "buffer_size" in problem.message


def test_a_batch_as_large_as_the_buffer_is_legal() -> None:
    ppo = ppo_of(behavior(hyperparameters={"batch_size": 64, "buffer_size": 64})).hyperparameters

    assert ppo.minibatches_per_epoch == 1


def test_an_incomplete_minibatch_does_not_count() -> None:
    assert PPOHyperparameters(batch_size=64, buffer_size=200).minibatches_per_epoch == 3


def test_a_word_that_is_no_schedule_is_said_once() -> None:
    problem = problem_of(behavior(hyperparameters={"learning_rate_schedule": "quadratic"}))

    assert problem.code == "invalid_value"
    assert "'linear' or 'constant'" in problem.message


@pytest.mark.parametrize("key", ["device", "collector_device"])
@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", "cpu\n", 0])
def test_a_device_is_cpu_or_cuda(device: object, key: str) -> None:
    assert set(codes_of(behavior() | {"torch_settings": {key: device}})) == {f"torch_settings.{key}"}


@pytest.mark.parametrize("key", ["device", "collector_device"])
def test_whoever_names_another_device_is_told_which_there_are(key: str) -> None:
    problem = problem_of(behavior() | {"torch_settings": {key: "gpu"}})

    assert (problem.code, problem.message) == (
        "invalid_value",
        'must be cpu, cuda or cuda:N (N is 0 to 999), but is "gpu"',
    )


@pytest.mark.parametrize(
    "name", ["", " A", "A ", "A?team=0", "a/b", "..", ".a", "a\\b", "C:", "a\nb", "x" * 101, "猫" * 61]
)
def test_a_behavior_name_can_be_a_file_name(name: str) -> None:
    (code,) = codes_of({"behaviors": {name: {}}}).values()

    assert code == "invalid_value"


@pytest.mark.parametrize("name", ["3DBall", "My Behavior", "a.b", "Läufer", "A-1_b"])
def test_behavior_names_of_games_are_legal(name: str) -> None:
    assert list(resolve({"behaviors": {name: {}}}).behaviors) == [name]


@pytest.mark.parametrize(
    "key", ["grace_seconds", "startup_grace_seconds", "startup_timeout_seconds", "step_timeout_seconds"]
)
def test_patience_is_positive(key: str) -> None:
    assert codes_of(behavior() | {"simulators": {key: 0}}) == {f"simulators.{key}": "out_of_range"}


def test_a_seed_has_31_bits() -> None:
    assert resolve(behavior() | {"seed": 2**31 - 1}).seed == 2**31 - 1
    assert codes_of(behavior() | {"seed": 2**31}) == {"seed": "out_of_range"}
    assert codes_of(behavior() | {"seed": -1}) == {"seed": "out_of_range"}


def test_another_schema_version_is_refused() -> None:
    assert codes_of(behavior() | {"schema_version": 2}) == {"schema_version": "invalid_value"}


def test_the_run_is_complete_when_its_last_behavior_is() -> None:
    config = resolve({"behaviors": {"A": {"max_steps": 100}, "B": {"max_steps": 30}}})

    assert config.max_steps == 130


def test_a_behavior_that_is_not_named_is_trained_by_the_default_settings() -> None:
    without = resolve(behavior(max_steps=7))
    config = resolve(behavior() | {"default_settings": {"max_steps": 5}})

    assert without.behavior("B") is None
    assert without.behavior("A") == without.behaviors["A"]
    unnamed = config.behavior("B")
    assert isinstance(unnamed, PPOConfig)
    assert unnamed.max_steps == 5


def test_numbers_are_stored_as_numbers() -> None:
    stored = resolve(behavior(hyperparameters={"beta": "1e-3"}, max_steps="1e3")).model_dump(mode="json")

    assert math.isclose(stored["behaviors"]["A"]["hyperparameters"]["beta"], 0.001)
    assert stored["behaviors"]["A"]["max_steps"] == 1000
