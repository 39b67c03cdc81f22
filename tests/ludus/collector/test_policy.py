"""The policies that act, in numpy and torch, against the actor that learns."""

import subprocess
import sys
from dataclasses import astuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Normal, TanhTransform, TransformedDistribution

from ludus.collector.policy import Acted, ActingPolicy, Policy, sample
from ludus.config.network import NetworkSettings
from tests.worker.learning.networks.kinds import KINDS, OTHERS, PLAIN, Kind, make_actor, remember, see
from tests.worker.rollouts import make_spec, random_masks
from worker.collectors.acting import POLICIES
from worker.learning.functional.distributions import branch_bounds, masked_logits
from worker.learning.networks.actor import Actor
from worker.learning.networks.head_operations import TORCH
from worker.learning.networks.torch_policy import TorchPolicy


def make_pair(kind: Kind, *, deterministic: bool = False) -> tuple[Actor, Policy]:
    """An actor and a policy with its weights."""
    settings = kind.network.model_copy(update={"deterministic": deterministic})
    actor, policy = make_actor(kind), POLICIES.policy(kind.spec, settings, kind.head)
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
def test_acting_does_not_change_what_it_is_given(name: str) -> None:
    actor, policy = make_pair(KINDS[name])
    observations, masks = see(KINDS[name].spec, 9)
    memory = remember(actor, 9)
    given_ = [part.clone() for part in observations]
    remembered = None if memory is None else memory.clone()

    act(policy, observations, masks, memory)

    assert all(torch.equal(part, before) for part, before in zip(observations, given_, strict=True))
    assert memory is None or (remembered is not None and torch.equal(memory, remembered))


@pytest.mark.parametrize("name", KINDS)
def test_what_is_read_only_is_answered_all_the_same(name: str) -> None:
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
def test_all_actors_act_in_numpy_on_a_cpu(name: str) -> None:
    _, policy = make_pair(KINDS[name])

    assert type(policy).__name__ == ("ActingPolicy" if name in PLAIN else "NetworkPolicy")
    assert policy.memory_size == (12 if "memory" in KINDS[name].settings else 0)
    assert set(OTHERS) | set(PLAIN) == set(KINDS)


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


@pytest.mark.parametrize("observation", ["ObservationSpec((4,))", "ObservationSpec((3, 20, 20), dtype='uint8')"])
def test_acting_needs_no_torch(observation: str) -> None:
    code = f"""
import sys
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from worker.collectors.acting import POLICIES
POLICIES.policy(BehaviorSpec("Walker", ({observation},), ActionSpec(2)), NetworkSettings(), 'squashed')
sys.exit('torch' in sys.modules)
"""

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
