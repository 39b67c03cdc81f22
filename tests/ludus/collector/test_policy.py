"""The policies that act, alone and several at once, against the actor that learns."""

import math
import subprocess
import sys
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Normal, TanhTransform, TransformedDistribution

from ludus.collector.acted import Acted
from ludus.collector.policy import ActingPolicy, NetworkPolicy, Policy, StackedActing, sample
from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.network import MemorySettings, NetworkSettings
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from tests.worker.learning.networks.kinds import KINDS, NORMED, OTHERS, PLAIN, Kind, graph_of, make_actor, remember, see
from tests.worker.rollouts import make_spec, random_masks
from worker.collectors.acting import POLICIES
from worker.learning.functional.distributions import branch_bounds, masked_logits
from worker.learning.networks.actor import Actor
from worker.learning.networks.head_operations import TORCH
from worker.learning.networks.torch_policy import TorchPolicy
from worker.onnx.graph import acting_graph


def make_pair(kind: Kind, *, deterministic: bool = False) -> tuple[Actor, Policy]:
    """An actor and a policy with its weights."""
    settings = kind.network.model_copy(update={"deterministic": deterministic})
    actor = make_actor(kind)
    policy = POLICIES.policy(kind.spec, settings, kind.head, graph=acting_graph(actor))
    policy.load(actor.flatten())
    return actor, policy


def act(
    policy: Policy, observations: list[Tensor], masks: Tensor | None, memory: Tensor | None, seed: int = 5
) -> Acted:
    return policy.act(
        [part.numpy() for part in observations],
        None if masks is None else masks.numpy(),
        None if memory is None else memory.numpy(),
        np.random.default_rng(seed),
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_log_probs_are_the_learners(name: str, masked: bool) -> None:
    kind = KINDS[name]
    actor, policy = make_pair(kind)
    observations, masks = see(kind.spec, 100)
    memory = remember(actor, 100)

    acted = act(policy, observations, masks if masked else None, memory)
    with torch.no_grad():
        head, after = actor(actor.encode(observations), memory)
        means, log_sigmas, logits = actor.parts(head)
        logits = masked_logits(logits, masks if masked else None)

    columns = []
    if kind.spec.actions.continuous_size:
        gaussian = Normal(means, log_sigmas.exp())
        squashed = TransformedDistribution(gaussian, [TanhTransform()])
        columns = list(
            (squashed if kind.head == "squashed" else gaussian).log_prob(torch.from_numpy(acted.continuous_sample)).t()
        )
    chosen, discrete = torch.from_numpy(acted.discrete).long(), actor.layout.kind.discrete
    for branch, (start, stop) in enumerate(branch_bounds(kind.spec.actions.discrete_branches)):
        of_choices = discrete.logits(TORCH, logits[:, start:stop], actor.head_parameters())
        columns.append(Categorical(logits=of_choices).log_prob(chosen[:, branch]))
    # near the ends of tanh, torch's own inverse of the sample is what is imprecise
    np.testing.assert_allclose(
        acted.log_probs, torch.stack(columns, 1).detach().numpy(), atol=1e-3 if kind.head == "squashed" else 2e-5
    )
    assert (acted.memory is None) == (after is None)
    if after is not None:
        np.testing.assert_allclose(acted.memory, after.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_deterministic_actions_are_the_learners(name: str) -> None:
    kind = KINDS[name]
    actor, policy = make_pair(kind, deterministic=True)
    observations, masks = see(kind.spec, 50)
    memory = remember(actor, 50)

    acted = act(policy, observations, masks, memory)
    means, choices, _ = actor.deterministic(observations, masks, memory)

    np.testing.assert_allclose(acted.continuous_env, means.numpy(), atol=1e-5)
    np.testing.assert_array_equal(acted.discrete, choices.numpy())


@pytest.mark.parametrize("name", KINDS)
def test_equal_generators_draw_equal_actions(name: str) -> None:
    actor, policy = make_pair(KINDS[name])
    observations, masks = see(KINDS[name].spec, 100)
    memory = remember(actor, 100)

    one, two, other = (act(policy, observations, masks, memory, seed) for seed in (9, 9, 10))

    np.testing.assert_array_equal(one.log_probs, two.log_probs)
    np.testing.assert_array_equal(one.discrete, two.discrete)
    assert (one.log_probs != other.log_probs).any() or (one.discrete != other.discrete).any()


@pytest.mark.parametrize("name", KINDS)
def test_what_is_read_only_is_answered_and_not_changed(name: str) -> None:
    actor, policy = make_pair(KINDS[name])
    observations, masks = see(KINDS[name].spec, 9)
    arrays = [part.numpy().copy() for part in observations]
    memory = remember(actor, 9)
    remembered = None if memory is None else memory.numpy().copy()
    for array in arrays if remembered is None else [*arrays, remembered]:
        array.flags.writeable = False  # as what a message holds

    acted = policy.act(arrays, masks.numpy(), remembered, np.random.default_rng(5))

    np.testing.assert_array_equal(acted.log_probs, act(policy, observations, masks, memory).log_probs)


@pytest.mark.parametrize("name", KINDS)
def test_loaded_weights_are_a_copy(name: str) -> None:
    actor, policy = make_pair(KINDS[name])
    observations, masks = see(KINDS[name].spec, 9)
    flat = actor.flatten()
    view = flat.view()
    view.flags.writeable = False  # as a collector's view of shared memory
    policy.load(view)
    before = act(policy, observations, masks, None)

    flat[:] = 9.0
    after = act(policy, observations, masks, None)

    np.testing.assert_array_equal(before.log_probs, after.log_probs)


@pytest.mark.parametrize("name", KINDS)
def test_weights_of_another_network_are_refused(name: str) -> None:
    _, policy = make_pair(KINDS[name])

    with pytest.raises(ValueError, match=rf"expected {policy.flat_size} weights"):
        policy.load(np.zeros(7, np.float32))


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if "memory" in kind.settings])
def test_without_a_memory_everything_is_forgotten(name: str) -> None:
    actor, policy = make_pair(KINDS[name])
    observations, masks = see(KINDS[name].spec, 9)

    nothing = act(policy, observations, masks, None)
    zeros = act(policy, observations, masks, torch.zeros(9, actor.memory_size))
    something = act(policy, observations, masks, remember(actor, 9))

    np.testing.assert_array_equal(nothing.log_probs, zeros.log_probs)
    assert (nothing.log_probs != something.log_probs).any()


@given(st.integers(0, 2**31), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.floats(1.0, 1e4))
def test_forbidden_choices_are_never_taken(seed: int, sizes: list[int], scale: float) -> None:
    branches, rng = tuple(sizes), np.random.default_rng(seed)
    policy = ActingPolicy(make_spec(branches=branches), NetworkSettings(hidden_units=4, num_layers=1))
    policy.load(rng.normal(0.0, scale, policy.flat_size).astype(np.float32))  # logits as extreme as one likes
    masks = random_masks(rng, 64, branches)

    acted = policy.act([rng.normal(size=(64, 4)).astype(np.float32)], masks, None, rng)

    for branch, (start, stop) in enumerate(branch_bounds(branches)):
        assert masks[:, start:stop][np.arange(64), acted.discrete[:, branch]].all()
    assert np.isfinite(acted.log_probs).all()


def test_choices_are_drawn_with_their_probabilities() -> None:
    policy = ActingPolicy(make_spec(branches=(3,)), NetworkSettings(hidden_units=4, num_layers=1))
    flat = np.zeros(policy.flat_size, np.float32)
    flat[-3:] = np.log([0.2, 0.3, 0.5])  # the head's bias: the logits of every observation
    policy.load(flat)

    acted = policy.act([np.zeros((20_000, 4), np.float32)], None, None, np.random.default_rng(7))

    # three standard deviations of a share of 20,000 draws are at most 3 * sqrt(0.25 / 20,000) = 0.011
    shares = np.bincount(acted.discrete[:, 0], minlength=3) / 20_000
    np.testing.assert_allclose(shares, [0.2, 0.3, 0.5], atol=0.011)
    np.testing.assert_allclose(
        np.exp(acted.log_probs[:, 0]), np.array([0.2, 0.3, 0.5])[acted.discrete[:, 0]], rtol=1e-5
    )


def test_continuous_actions_are_clipped_and_scaled_for_the_environment_only() -> None:
    policy = ActingPolicy(make_spec(continuous=1), NetworkSettings(hidden_units=4, num_layers=1))
    flat = np.zeros(policy.flat_size, np.float32)
    flat[-1] = np.log(4.0)  # log_sigma
    policy.load(flat)

    acted = policy.act([np.zeros((10_000, 4), np.float32)], None, None, np.random.default_rng(8))

    assert float(acted.continuous_sample.std()) == pytest.approx(4.0, rel=0.05)
    np.testing.assert_allclose(acted.continuous_env, acted.continuous_sample.clip(-3, 3) / 3, rtol=1e-6)
    assert np.abs(acted.continuous_env).max() == 1.0


def test_squashed_actions_have_the_spread_of_their_observation_and_finite_log_probs() -> None:
    policy = ActingPolicy(make_spec(continuous=1), NetworkSettings(hidden_units=4, num_layers=1), head="squashed")
    flat = np.zeros(policy.flat_size, np.float32)
    flat[-1] = 50.0  # the log-sigma's bias: clamped at 2
    policy.load(flat)

    acted = policy.act([np.zeros((10_000, 4), np.float32)], None, None, np.random.default_rng(8))

    raw = np.arctanh(acted.continuous_sample[np.abs(acted.continuous_sample) < 0.999].astype(np.float64))
    # of a deviation of e^2 = 7.39, what lies within arctanh(0.999) = 3.8 is |z| < 0.514: 39.3 %
    assert len(raw) / 10_000 == pytest.approx(0.393, abs=0.015)
    assert np.isfinite(acted.log_probs).all(), "although tanh is 1 in float32 for most"
    np.testing.assert_array_equal(acted.continuous_env, acted.continuous_sample)


@pytest.mark.parametrize("name", ["squashed hybrid", "memory, squashed", "hybrid"])
def test_the_noise_that_is_given_drives_the_columns_and_takes_nothing_from_the_generator(name: str) -> None:
    _, policy = make_pair(KINDS[name])
    spec, rng = KINDS[name].spec, np.random.default_rng(8)
    seen = [rng.standard_normal((5, *part.shape), np.float32) for part in spec.observations]
    noise = rng.standard_normal((5, spec.actions.continuous_size), np.float32)

    drawn = policy.act(seen, None, None, np.random.default_rng(1))
    given = policy.act(seen, None, None, np.random.default_rng(2), noise)
    again = policy.act(seen, None, None, np.random.default_rng(3), noise)

    np.testing.assert_array_equal(given.continuous_sample, again.continuous_sample)
    assert not np.array_equal(given.continuous_sample, drawn.continuous_sample)


@pytest.mark.parametrize("name", KINDS)
def test_actors_that_see_vectors_alone_act_in_numpy_and_all_others_with_onnx_runtime(name: str) -> None:
    _, policy = make_pair(KINDS[name])

    remembering = {"memory", "memory, squashed", "memory, epsilon greedy", "layer norm and memory", "simba and memory"}
    in_numpy = name in {*PLAIN, *NORMED, *remembering}
    assert type(policy).__name__ == ("ActingPolicy" if in_numpy else "NetworkPolicy")
    assert policy.memory_size == (12 if "memory" in KINDS[name].settings else 0)
    assert set(OTHERS) | set(PLAIN) == set(KINDS)


FLOATS = ObservationSpec((4, 21, 20))
MIXED = BehaviorSpec("Mixed", (ObservationSpec((3, 22, 21), dtype="uint8"), FLOATS), ActionSpec(2, (3, 2)))


@pytest.mark.parametrize("kind", [*OTHERS.values(), Kind(MIXED, {})], ids=[*OTHERS, "pictures of bytes and of floats"])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_collectors_and_torch_give_the_same_columns_and_memory_step_after_step(kind: Kind, rows: int) -> None:
    actor, policy = make_pair(kind)
    assert isinstance(policy, (ActingPolicy, NetworkPolicy))
    reference = TorchPolicy(kind.spec, kind.network, head=kind.head)
    reference.load(actor.flatten())
    assert policy.flat_size == reference.flat_size

    memory = expected_memory = None
    for step in range(3):
        observations = [part.numpy() for part in see(kind.spec, rows, seed=step)[0]]
        columns, memory = policy.forward(observations, memory)
        expected, expected_memory = reference.forward(observations, expected_memory)

        assert columns.shape == expected.shape
        np.testing.assert_allclose(columns, expected, rtol=1e-4, atol=1e-4)
        assert (memory is None) == (expected_memory is None) == (policy.memory_size == 0)
        if memory is not None and expected_memory is not None:
            np.testing.assert_allclose(memory, expected_memory, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_a_policy_in_torch_lies_on_the_device_that_is_named(name: str) -> None:
    kind = OTHERS[name]

    policy = POLICIES.policy(kind.spec, kind.network, kind.head, "meta")

    assert isinstance(policy, TorchPolicy)
    assert {part.device.type for part in policy.actor.state_dict().values()} == {"meta"}


@pytest.mark.parametrize("name", OTHERS)
def test_acting_in_torch_is_the_actor_and_the_sampling_bit_by_bit(name: str) -> None:
    kind = OTHERS[name]
    actor, _ = make_pair(kind)
    policy = TorchPolicy(kind.spec, kind.network, head=kind.head)
    policy.load(actor.flatten())
    observations, masks = see(kind.spec, 20)
    memory = remember(actor, 20)
    with torch.inference_mode():
        head, after = actor(actor.encode(observations), memory)
        parameters = {name: values.numpy() for name, values in actor.head_parameters().items()}

    acted = act(policy, observations, masks, memory)

    rng = np.random.default_rng(5)
    state = None if after is None else after.numpy()
    expected = sample(actor.layout, head.numpy(), parameters, masks.numpy(), rng, None, state)
    for column, wanted in zip(astuple(acted), astuple(expected), strict=True):
        np.testing.assert_array_equal(column, wanted)


def run_alone(program: str) -> int:
    return subprocess.run([sys.executable, "-c", program], check=False).returncode


def test_an_actor_that_sees_vectors_alone_needs_neither_torch_nor_onnx_runtime() -> None:
    program = """
import sys
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from worker.collectors.acting import POLICIES
POLICIES.policy(BehaviorSpec("Walker", (ObservationSpec((4,)),), ActionSpec(2)), NetworkSettings(), 'squashed')
sys.exit('torch' in sys.modules or 'onnxruntime' in sys.modules)
"""
    assert run_alone(program) == 0


def test_a_network_that_is_not_plain_needs_no_torch() -> None:
    kind = OTHERS["picture simple"]
    actor, _ = make_pair(kind)
    program = f"""
import sys
import numpy as np
from ludus.collector.layout import NetworkGraph
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from worker.collectors.acting import POLICIES
spec = BehaviorSpec("Walker", (ObservationSpec((3, 40, 37), dtype="uint8"),), ActionSpec(0, (3,)))
settings = NetworkSettings(hidden_units=16)
policy = POLICIES.policy(spec, settings, graph={acting_graph(actor)!r})
policy.load(np.zeros(policy.flat_size, np.float32))
policy.act([np.zeros((2, 3, 40, 37), np.uint8)], None, None, np.random.default_rng(1))
sys.exit('torch' in sys.modules)
"""
    assert run_alone(program) == 0


def test_without_onnx_runtime_the_refusal_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    with pytest.raises(UnsupportedSpec, match=r"pip install 'ludus\[play\]'") as refused:
        make_pair(OTHERS["goal"])

    assert refused.value.code == "onnxruntime_missing"
    make_pair(OTHERS["memory"])


def test_actions_of_a_deterministic_policy_have_noise_of_the_published_deviation_and_stay_in_their_range() -> None:
    spec = make_spec(continuous=2)
    actor = make_actor(Kind(spec, {}, "gaussian_noise"))
    with torch.no_grad():
        actor.head.weight.zero_()
        actor.head.bias.copy_(torch.tensor([0.5, 20.0]))
        actor.head_parameters()["noise_log_sigma"].fill_(math.log(0.1))
    policy = POLICIES.policy(spec, NetworkSettings(hidden_units=16), "gaussian_noise")
    policy.load(actor.flatten())

    acted = policy.act([np.zeros((40_000, 4), np.float32)], None, None, np.random.default_rng(1))

    first, second = acted.continuous_env.T
    assert first.mean() == pytest.approx(math.tanh(0.5), abs=0.002)
    assert first.std() == pytest.approx(0.1, abs=0.002)
    # tanh(20) is 1: half of the samples lie beyond the range, and are its end
    assert second.max() == 1.0
    assert np.mean(second == 1.0) == pytest.approx(0.5, abs=0.01)
    np.testing.assert_array_equal(acted.continuous_sample, acted.continuous_env)


def test_epsilon_of_the_choices_are_random_among_the_allowed_and_each_branch_explores_by_itself() -> None:
    spec = make_spec(branches=(4, 2))
    actor = make_actor(Kind(spec, {}, "epsilon_greedy"))
    with torch.no_grad():
        actor.head.weight.zero_()
        actor.head.bias.copy_(torch.tensor([9.0, 1.0, 2.0, 3.0, 5.0, 4.0]))
        actor.head_parameters()["epsilon"].fill_(0.3)
    policy = POLICIES.policy(spec, NetworkSettings(hidden_units=16), "epsilon_greedy")
    policy.load(actor.flatten())
    rows = 40_000
    masks = np.tile(np.array([[0, 1, 1, 1, 1, 1]], bool), (rows, 1))

    acted = policy.act([np.zeros((rows, 4), np.float32)], masks, None, np.random.default_rng(1))

    # the best of the branch is forbidden: 3 is the next best, and each of three allowed choices has a third of epsilon
    shares = [np.bincount(acted.discrete[:, branch], minlength=size) / rows for branch, size in enumerate((4, 2))]
    np.testing.assert_allclose(shares[0], [0.0, 0.1, 0.1, 0.8], atol=0.01)
    np.testing.assert_allclose(shares[1], [0.85, 0.15], atol=0.01)
    assert shares[0][0] == 0.0, "a forbidden choice is never taken"
    both = np.mean((acted.discrete[:, 0] != 3) & (acted.discrete[:, 1] != 0))
    assert both == pytest.approx(0.2 * 0.15, abs=0.005)
    np.testing.assert_allclose(np.exp(acted.log_probs[acted.discrete[:, 0] == 3][0, 0]), 0.8, rtol=1e-4)


# Several policies at once ----------------------------------------------------------------------------------------

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
DETERMINISTIC = NetworkSettings(hidden_units=8, deterministic=True)
RECURRENT = DETERMINISTIC.model_copy(update={"memory": MemorySettings(memory_size=6)})
SEVERAL = {
    "continuous": (VECTORS, CONTINUOUS, DETERMINISTIC, "gaussian"),
    "normalised": (VECTORS, CONTINUOUS, DETERMINISTIC.model_copy(update={"normalize": True}), "gaussian"),
    "squashed": (VECTORS, CONTINUOUS, DETERMINISTIC, "squashed"),
    "discrete": (VECTORS, DISCRETE, DETERMINISTIC, "gaussian"),
    "epsilon-greedy": (VECTORS, DISCRETE, DETERMINISTIC, "epsilon_greedy"),
    "hybrid": (VECTORS, HYBRID, DETERMINISTIC, "gaussian"),
    "squashed-hybrid": (VECTORS, HYBRID, DETERMINISTIC, "squashed"),
    "recurrent": (VECTORS, HYBRID, RECURRENT, "gaussian"),
    "recurrent-squashed": (VECTORS, CONTINUOUS, RECURRENT, "squashed"),
    "layer-norm": (VECTORS, HYBRID, DETERMINISTIC.model_copy(update={"hidden_type": "layer_norm"}), "gaussian"),
    "simba": (VECTORS, HYBRID, DETERMINISTIC.model_copy(update={"hidden_type": "simba"}), "gaussian"),
    "picture": (PICTURE, DISCRETE, DETERMINISTIC, "gaussian"),
    "entities": (ENTITIES, HYBRID, DETERMINISTIC, "gaussian"),
}


def observations_of(spec: BehaviorSpec, rows: int, rng: np.random.Generator) -> list[Any]:
    return [
        rng.integers(0, 256, (rows, *observation.shape), np.uint8)
        if observation.dtype == "uint8"
        else rng.standard_normal((rows, *observation.shape), np.float32)
        for observation in spec.observations
    ]


def weights_of(size: int, count: int) -> list[Any]:
    rng = np.random.default_rng(5)
    return [np.abs(rng.standard_normal(size, np.float32)) * 0.3 * (1 + place) for place in range(count)]


@pytest.mark.parametrize("case", SEVERAL)
@pytest.mark.parametrize("which", [[0, 1, 2, 0, 1, 2, 2], [1, 1, 1], [0, 2, 2, 0]], ids=str)
def test_each_row_is_answered_by_the_policy_that_it_names(case: str, which: list[int]) -> None:
    observations, actions, network, head = SEVERAL[case]
    spec = BehaviorSpec("Player", observations, actions)
    graph = graph_of(spec, network, head)
    alone, stacked = (
        POLICIES.policy(spec, network, head, graph=graph),
        POLICIES.stacked(spec, network, head, graph=graph),
    )
    weights = weights_of(alone.flat_size, 3)
    stacked.load(weights)
    rng = np.random.default_rng(1)
    seen = observations_of(spec, len(which), rng)
    memory = rng.standard_normal((len(which), alone.memory_size), np.float32) if alone.memory_size else None
    masks = None
    if actions.mask_size:
        masks = rng.integers(0, 2, (len(which), actions.mask_size)).astype(np.uint8)

    acted = stacked.act(np.array(which, np.intp), seen, masks, memory, rng)

    for policy in set(which):
        rows = np.flatnonzero(np.array(which) == policy)
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
    for network in (DETERMINISTIC, RECURRENT):
        spec = BehaviorSpec("Player", VECTORS, CONTINUOUS)
        graph = graph_of(spec, network)
        alone, stacked = POLICIES.policy(spec, network, graph=graph), POLICIES.stacked(spec, network, graph=graph)
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
