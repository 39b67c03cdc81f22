"""Several policies at once answer as each of them does alone."""

from typing import Any

import numpy as np
import pytest

from ludus.collector.stacked import StackedActing, rows_of
from ludus.config.network import MemorySettings, NetworkSettings
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from worker.collectors.acting import POLICIES

VECTORS = (ObservationSpec((3,)), ObservationSpec((2,)))
PICTURE = (ObservationSpec((3, 20, 20), dtype="uint8"), ObservationSpec((2,)))
ENTITIES = (
    ObservationSpec(
        (4, 3),
        "entities",
        "float32",
        ObservationType.DEFAULT,
        (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE),
    ),
)
CONTINUOUS, DISCRETE, HYBRID = ActionSpec(2), ActionSpec(0, (3, 2)), ActionSpec(1, (4,))
PLAIN = NetworkSettings(hidden_units=8, deterministic=True)
RECURRENT = PLAIN.model_copy(update={"memory": MemorySettings(memory_size=6)})
CASES = {
    "continuous": (VECTORS, CONTINUOUS, PLAIN, "gaussian"),
    "normalised": (VECTORS, CONTINUOUS, PLAIN.model_copy(update={"normalize": True}), "gaussian"),
    "squashed": (VECTORS, CONTINUOUS, PLAIN, "squashed"),
    "discrete": (VECTORS, DISCRETE, PLAIN, "gaussian"),
    "epsilon-greedy": (VECTORS, DISCRETE, PLAIN, "epsilon_greedy"),
    "hybrid": (VECTORS, HYBRID, PLAIN, "gaussian"),
    "squashed-hybrid": (VECTORS, HYBRID, PLAIN, "squashed"),
    "recurrent": (VECTORS, HYBRID, RECURRENT, "gaussian"),
    "recurrent-squashed": (VECTORS, CONTINUOUS, RECURRENT, "squashed"),
    "picture": (PICTURE, DISCRETE, PLAIN, "gaussian"),
    "entities": (ENTITIES, HYBRID, PLAIN, "gaussian"),
}


def observations_of(spec: BehaviorSpec, rows: int, rng: np.random.Generator) -> list[Any]:
    return [
        rng.integers(0, 256, (rows, *one.shape), np.uint8)
        if one.dtype == "uint8"
        else rng.standard_normal((rows, *one.shape), np.float32)
        for one in spec.observations
    ]


def weights_of(size: int, count: int) -> list[Any]:
    rng = np.random.default_rng(5)
    return [np.abs(rng.standard_normal(size, np.float32)) * 0.3 * (1 + place) for place in range(count)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("which", [[0, 1, 2, 0, 1, 2, 2], [1, 1, 1], [2], [0, 2, 2, 0], [2, 2, 2, 2, 0]], ids=str)
def test_each_row_is_answered_by_the_policy_that_it_names(case: str, which: list[int]) -> None:
    observations, actions, network, head = CASES[case]
    spec = BehaviorSpec("Player", observations, actions)
    alone = POLICIES.policy(spec, network, head)
    stacked = POLICIES.stacked(spec, network, head)
    weights = weights_of(alone.flat_size, 3)
    stacked.load(weights)
    rng = np.random.default_rng(1)
    seen = observations_of(spec, len(which), rng)
    memory = rng.standard_normal((len(which), alone.memory_size), np.float32) if alone.memory_size else None
    masks = None
    if actions.mask_size:
        masks = rng.integers(0, 2, (len(which), actions.mask_size)).astype(np.uint8)

    acted = stacked.act(np.array(which, np.intp), seen, masks, memory, rng)

    for policy, rows in rows_of(np.array(which, np.intp)):
        alone.load(weights[policy])
        expected = alone.act(
            [part[rows] for part in seen],
            None if masks is None else masks[rows],
            None if memory is None else memory[rows],
            rng,
        )
        np.testing.assert_allclose(acted.continuous_env[rows], expected.continuous_env, atol=1e-5)
        np.testing.assert_array_equal(acted.discrete[rows], expected.discrete)
        np.testing.assert_allclose(acted.log_probs[rows], expected.log_probs, atol=1e-4)
        assert (acted.memory is None) == (expected.memory is None)
        if acted.memory is not None and expected.memory is not None:
            np.testing.assert_allclose(acted.memory[rows], expected.memory, atol=1e-5)


def test_draws_of_each_row_have_the_deviation_of_its_own_policy() -> None:
    spec = BehaviorSpec("Player", (ObservationSpec((1,)),), ActionSpec(1))
    network = NetworkSettings(hidden_units=1, num_layers=1)
    stacked = StackedActing(spec, network)
    narrow, wide = np.zeros(5, np.float32), np.zeros(5, np.float32)
    narrow[-1], wide[-1] = np.log(0.1), np.log(2.0)
    stacked.load([narrow, wide])
    which = np.repeat([0, 1], 4000)

    drawn = stacked.act(which, [np.zeros((8000, 1), np.float32)], None, None, np.random.default_rng(1))

    assert drawn.continuous_sample[:4000].std() == pytest.approx(0.1, rel=0.05)
    assert drawn.continuous_sample[4000:].std() == pytest.approx(2.0, rel=0.05)


def test_a_forbidden_choice_is_taken_by_no_policy() -> None:
    spec = BehaviorSpec("Player", VECTORS, ActionSpec(0, (3,)))
    stacked = POLICIES.stacked(spec, NetworkSettings(hidden_units=4, num_layers=1))
    size = POLICIES.policy(spec, NetworkSettings(hidden_units=4, num_layers=1)).flat_size
    stacked.load(weights_of(size, 2))
    rng = np.random.default_rng(1)
    masks = np.tile(np.array([1, 0, 1], np.uint8), (200, 1))

    acted = stacked.act(np.arange(200) % 2, observations_of(spec, 200, rng), masks, None, rng)

    assert set(acted.discrete[:, 0].tolist()) == {0, 2}


def test_weights_replace_those_of_before_whatever_their_number() -> None:
    for network in (PLAIN, RECURRENT):
        spec = BehaviorSpec("Player", VECTORS, CONTINUOUS)
        alone, stacked = POLICIES.policy(spec, network), POLICIES.stacked(spec, network)
        first, second, third = weights_of(alone.flat_size, 3)
        rng = np.random.default_rng(1)
        seen = observations_of(spec, 1, rng)
        memory = np.zeros((1, alone.memory_size), np.float32) if alone.memory_size else None
        for loaded in ([first, second, third], [third], [second, third]):
            stacked.load(loaded)
            acted = stacked.act(np.array([len(loaded) - 1]), seen, None, memory, rng)
            alone.load(loaded[-1])
            np.testing.assert_allclose(
                acted.continuous_env, alone.act(seen, None, memory, rng).continuous_env, atol=1e-5
            )
