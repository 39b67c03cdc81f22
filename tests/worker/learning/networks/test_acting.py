"""Collectors act in numpy with the networks that the learner has in torch: all of them, and mixtures."""

from typing import Any

import numpy as np
import pytest

from ludus.collector.policy import NetworkPolicy
from ludus.collector.stacked import StackedNetworks
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from worker.learning.networks.torch_policy import TorchPolicy

MEMORY = {"memory_size": 32, "sequence_length": 16}
VARIABLE = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)


def vector(size: int) -> ObservationSpec:
    return ObservationSpec((size,))


def goal(*shape: int, dtype: Any = "float32") -> ObservationSpec:
    return ObservationSpec(shape, dtype=dtype, type=ObservationType.GOAL_SIGNAL)


def picture(*shape: int, dtype: Any = "uint8") -> ObservationSpec:
    return ObservationSpec(shape, dtype=dtype)


def entities(count: int, size: int) -> ObservationSpec:
    return ObservationSpec((count, size), dimension_properties=VARIABLE)


CASES: dict[str, tuple[list[ObservationSpec], dict[str, Any]]] = {
    "fully connected": ([picture(1, 12, 9)], {"vis_encode_type": "fully_connected"}),
    "match3 of floats": ([picture(6, 8, 7, dtype="float32")], {"vis_encode_type": "match3"}),
    "simple": ([picture(3, 30, 41)], {"vis_encode_type": "simple"}),
    "nature": ([picture(2, 44, 36)], {"vis_encode_type": "nature_cnn"}),
    "resnet": ([picture(3, 21, 32)], {"vis_encode_type": "resnet"}),
    "more windows than fit into one product": ([picture(3, 200, 160)], {"vis_encode_type": "simple"}),
    "entities": ([entities(6, 3)], {}),
    "entities with a vector": ([vector(4), entities(6, 3), entities(2, 5)], {}),
    "memory": ([vector(4)], {"normalize": True, "memory": MEMORY}),
    "goal": ([vector(4), goal(3)], {}),
    "goal and one layer": ([goal(3), vector(4)], {"num_layers": 1, "activation": "tanh"}),
    "goal that is a picture": ([vector(4), goal(3, 20, 20, dtype="uint8")], {}),
    "everything": (
        [vector(4), picture(3, 21, 22), entities(3, 2), goal(2), picture(1, 20, 20, dtype="float32"), vector(1)],
        {"normalize": True, "memory": MEMORY},
    ),
}


def drawn(specs: list[ObservationSpec], rows: int, rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    observations: list[np.ndarray[Any, Any]] = []
    for spec in specs:
        if spec.dtype == "uint8":
            observations.append(rng.integers(0, 256, (rows, *spec.shape), dtype=np.uint8))
            continue
        values = rng.standard_normal((rows, *spec.shape)).astype(np.float32)
        if spec.dimension_properties:  # some rows have no entity, some have all
            for row in range(rows):
                values[row, row % (spec.shape[0] + 1) :] = 0.0
        observations.append(values)
    return observations


def weights(policy: NetworkPolicy, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return weights of usual sizes, with deviations of the normalizer above 0."""
    flat = []
    for name, shape in policy.layout.sections():
        values = rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 10.0))
        flat.append(np.abs(values).ravel() + 0.5 if name == "normalizer.std" else values.ravel())
    return np.concatenate(flat).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_numpy_and_torch_give_the_same_columns_and_memory_step_after_step(case: str, rows: int) -> None:
    rng = np.random.default_rng(5)
    specs, keys = CASES[case]
    settings = NetworkSettings.model_validate(keys)
    spec = BehaviorSpec("Mixed", tuple(specs), ActionSpec(2, (3, 2)))
    ours, theirs = NetworkPolicy(spec, settings), TorchPolicy(spec, settings)
    assert ours.flat_size == theirs.flat_size
    flat = weights(ours, rng)
    ours.load(flat)
    theirs.load(flat)

    memory = expected_memory = None
    for _ in range(3):
        observations = drawn(specs, rows, rng)
        actual, memory = ours.forward(observations, memory)
        expected, expected_memory = theirs.forward(observations, expected_memory)

        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
        assert (memory is None) == (expected_memory is None) == (ours.memory_size == 0)
        if memory is not None and expected_memory is not None:
            np.testing.assert_allclose(memory, expected_memory, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_the_flat_vector_is_described_part_by_part_as_torch_has_it(case: str) -> None:
    specs, keys = CASES[case]
    settings = NetworkSettings.model_validate(keys)
    policy = TorchPolicy(BehaviorSpec("Mixed", tuple(specs), ActionSpec(2, (3, 2))), settings)

    described = list(policy.layout.sections())

    assert [shape for _, shape in described] == [tuple(part.shape) for part in policy.actor.sections()]
    names = [name for name, _ in described if name.startswith(("body.", "head."))]
    assert names == [name for name, _ in policy.actor.named_parameters() if name.startswith(("body.", "head."))]


def test_observations_are_not_changed_by_acting() -> None:
    rng = np.random.default_rng(5)
    specs, keys = CASES["everything"]
    settings = NetworkSettings.model_validate(keys)
    policy = NetworkPolicy(BehaviorSpec("Mixed", tuple(specs), ActionSpec(2, (3, 2))), settings)
    policy.load(weights(policy, rng))
    observations = drawn(specs, 4, rng)
    before = [part.copy() for part in observations]
    for part in observations:
        part.flags.writeable = False

    policy.act(observations, None, None, rng)

    assert all(np.array_equal(one, other) for one, other in zip(observations, before, strict=True))


def test_policies_that_answer_one_batch_answer_as_each_alone() -> None:
    rng = np.random.default_rng(5)
    specs, keys = CASES["everything"]
    spec = BehaviorSpec("Mixed", tuple(specs), ActionSpec(2, (3, 2)))
    settings = NetworkSettings.model_validate({**keys, "deterministic": True})
    alone = [NetworkPolicy(spec, settings) for _ in range(3)]
    flats = [weights(policy, rng) for policy in alone]
    for policy, flat in zip(alone, flats, strict=True):
        policy.load(flat)
    stacked = StackedNetworks(lambda: NetworkPolicy(spec, settings))
    stacked.load(flats)
    observations, which = drawn(specs, 6, rng), np.array([2, 0, 2, 1, 0, 2])

    acted = stacked.act(which, observations, None, None, rng)

    for row, policy in enumerate(which):
        expected = alone[policy].act([part[row : row + 1] for part in observations], None, None, rng)
        np.testing.assert_allclose(acted.continuous_env[row], expected.continuous_env[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(acted.log_probs[row], expected.log_probs[0], rtol=1e-4, atol=1e-4)
        assert acted.memory is not None
        assert expected.memory is not None
        np.testing.assert_allclose(acted.memory[row], expected.memory[0], rtol=1e-4, atol=1e-5)
