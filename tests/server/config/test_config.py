"""Resolved configurations: defaults, constraints, and that they survive storage."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ludus.config.behavior import PPOConfig
from ludus.config.run import RunConfig
from ludus.protocol.environment_parameters import Constant
from server.config.resolution import resolve
from tests.server.config.checks import DEMONSTRATION, behavior, codes_of, problem_of

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
    "key", ["max_steps", "time_horizon", "summary_freq", "keep_checkpoints", "checkpoint_interval"]
)
def test_intervals_of_zero_steps_are_refused(key: str) -> None:
    assert codes_of(behavior(**{key: 0})) == {f"behaviors.A.{key}": "out_of_range"}


@pytest.mark.parametrize("gamma", [-0.1, 1.1])
def test_a_discount_factor_lies_between_0_and_1(gamma: float) -> None:
    assert codes_of(behavior(reward_signals={"extrinsic": {"gamma": gamma}})) == {
        "behaviors.A.reward_signals.extrinsic.gamma": "out_of_range"
    }


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
    "key", ["grace_seconds", "startup_grace_seconds", "startup_timeout_seconds", "step_timeout_seconds"]
)
def test_patience_is_positive(key: str) -> None:
    assert codes_of(behavior() | {"simulators": {key: 0}}) == {f"simulators.{key}": "out_of_range"}


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
