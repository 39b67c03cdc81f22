"""Actors of every kind: head, flat vector, deterministic actions; and ML-Agents' own, weight for weight."""

from math import prod

import numpy as np
import pytest
import torch

from tests.worker.learning.networks import mlagents
from tests.worker.learning.networks.kinds import KINDS, PLAIN, make_actor, remember, see
from tests.worker.rollouts import make_spec
from worker.learning.networks.actor import Actor


@pytest.mark.parametrize("name", KINDS)
def test_the_flat_vector_makes_an_equal_actor(name: str) -> None:
    kind = KINDS[name]
    actor, other = make_actor(kind), make_actor(kind, seed=9)
    observations, masks = see(kind.spec, 20)
    memory = remember(actor, 20)

    other.load_flat(actor.flatten())

    for mine, theirs in zip(
        actor.deterministic(observations, masks, memory), other.deterministic(observations, masks, memory), strict=True
    ):
        assert (mine is None and theirs is None) or torch.equal(mine, theirs)
    np.testing.assert_array_equal(actor.flatten(), other.flatten())
    assert actor.flatten().shape == (actor.flat_size,)


@pytest.mark.parametrize("name", [*PLAIN, "memory", "memory, squashed", "memory, epsilon greedy"])
def test_the_flat_vector_of_a_dense_actor_is_as_its_layout_says(name: str) -> None:
    actor = make_actor(KINDS[name])

    shapes = [tuple(part.shape) for part in actor.sections() if part.numel()]

    assert shapes == [shape for _, shape in actor.layout.sections() if prod(shape)]
    assert actor.flat_size == actor.layout.flat_size


def test_a_vector_of_another_network_is_refused() -> None:
    actor = make_actor(KINDS["everything"])

    with pytest.raises(ValueError, match=rf"expected {actor.flat_size} weights"):
        actor.load_flat(np.zeros(7, np.float32))


def test_the_head_of_a_squashed_actor_is_means_deviations_and_logits() -> None:
    actor = make_actor(KINDS["squashed hybrid"])
    head = torch.tensor([[1.0, 2.0, -30.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]])

    means, log_sigmas, logits = actor.parts(head)

    assert means.tolist() == [[1.0, 2.0]]
    assert log_sigmas.tolist() == [[-20.0, 2.0]]  # clamped
    assert logits.tolist() == [[6.0, 7.0, 8.0, 9.0, 10.0]]


def test_the_deviations_of_another_actor_are_its_parameter() -> None:
    actor = make_actor(KINDS["hybrid"])

    means, log_sigmas, logits = actor.parts(torch.arange(14.0).view(2, 7))

    assert means.tolist() == [[0.0, 1.0], [7.0, 8.0]]
    assert torch.equal(log_sigmas, actor.log_sigma.expand(2, 2))
    assert logits.shape == (2, 5)


@pytest.mark.parametrize(
    ("squashed", "expected"), [(False, [1.0, 0.5 / 3]), (True, [float(np.tanh(4.0)), float(np.tanh(0.5))])]
)
def test_deterministic_actions_are_within_what_the_environment_takes(squashed: bool, expected: list[float]) -> None:
    actor = make_actor(KINDS["squashed" if squashed else "continuous"])
    with torch.no_grad():
        actor.head.weight.zero_()
        actor.head.bias[:2] = torch.tensor([4.0, 0.5])

    means, _, _ = actor.deterministic(see(KINDS["continuous"].spec, 1)[0], None)

    assert means.tolist() == [pytest.approx(expected)]


def test_squashed_heads_start_as_in_ml_agents() -> None:
    kind = KINDS["squashed hybrid"]._replace(spec=make_spec(continuous=40, branches=(40,)))
    network = kind.network.model_copy(update={"hidden_units": 512})
    actor = Actor(kind.spec, network, torch.Generator().manual_seed(1), head="squashed").requires_grad_(False)

    # Kaiming normal: 0.2 for means and log-sigmas, 0.1 for logits
    for columns, scale in ((slice(0, 40), 0.2), (slice(40, 80), 0.2), (slice(80, 120), 0.1)):
        assert float(actor.head.weight[columns].std()) == pytest.approx(scale * 512**-0.5, rel=0.05)
    assert actor.log_sigma.numel() == 0


@pytest.mark.parametrize("name", mlagents.MODELS)
def test_an_actor_with_ml_agents_weights_acts_as_its_model(name: str) -> None:
    spec, _, squashed = mlagents.MODELS[name]
    model, actor = mlagents.load(name), mlagents.make_actor(name)
    mlagents.adopt(actor, model)
    observations, masks = see(spec, 20)
    memory = remember(actor, 20)

    feed = {
        f"obs_{index}": part.numpy() / 255.0 if part.dtype == torch.uint8 else part.numpy()
        for index, part in enumerate(observations)
    }
    feed = {key: value.astype(np.float32) for key, value in feed.items()}
    if memory is not None:
        feed["recurrent_in"] = memory.unsqueeze(1).numpy()
    theirs = mlagents.run(model, {**feed, "action_masks": masks.numpy().astype(np.float32)})
    means, choices, after = actor.deterministic(observations, masks, memory)

    if spec.actions.continuous_size:
        expected = theirs["deterministic_continuous_actions"]
        expected = np.tanh(expected) if squashed else expected  # theirs is the bare mean
        np.testing.assert_allclose(means.numpy(), expected, atol=1e-6)
    if spec.actions.discrete_branches:
        np.testing.assert_array_equal(choices.numpy(), theirs["deterministic_discrete_actions"])
    if after is not None:
        np.testing.assert_allclose(after.unsqueeze(1).numpy(), theirs["recurrent_out"], atol=1e-5)
