"""The hand-written way back through the networks against automatic differentiation, and how weights start out."""

import pytest
import torch
from torch import Tensor

from server.config.network import NetworkSettings
from tests.worker.learning.networks.kinds import KINDS, OTHERS, remember, see
from tests.worker.rollouts import make_spec
from worker.learning.functional.distributions import joint_distribution
from worker.learning.networks.actor_critic import ActorCritic
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.optimizer import FlatAdam

SPACES = [(0, (3,)), (0, (3, 2)), (2, ()), (2, (3, 2))]


def make_model(
    continuous: int,
    branches: tuple[int, ...],
    *,
    shared: bool = False,
    units: int = 8,
    layers: int = 3,
    activation: str = "swish",
) -> ActorCritic:
    spec = make_spec(observations=(3, 2), continuous=continuous, branches=branches)
    settings = NetworkSettings.model_validate({"hidden_units": units, "num_layers": layers, "activation": activation})
    generator = torch.Generator().manual_seed(1)
    return ActorCritic(spec, settings, signals=2, shared_critic=shared, generator=generator)


def make_batch(continuous: int, branches: tuple[int, ...], rows: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    discrete = [torch.randint(0, size, (rows,), generator=generator) for size in branches]
    return (
        torch.randn(rows, 5, generator=generator),
        torch.randn(rows, continuous, generator=generator),
        torch.stack(discrete, 1) if discrete else torch.zeros(rows, 0, dtype=torch.int64),
    )


@pytest.mark.parametrize("activation", ["swish", "tanh", "relu"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("continuous", "branches"), SPACES)
def test_gradients_equal_automatic_differentiation(
    continuous: int, branches: tuple[int, ...], shared: bool, activation: str
) -> None:
    model = make_model(continuous, branches, shared=shared, activation=activation)
    names, parameters = zip(*model.trained_parameters(), strict=True)
    FlatAdam(zip(names, parameters, strict=True))
    encoded, sample, discrete = make_batch(continuous, branches)
    by_log_prob, by_values = torch.randn(7), torch.randn(7, 2)

    with torch.no_grad():
        prediction = model.evaluate([encoded], sample, discrete, None)
        model.backward(prediction, by_log_prob, 0.3, by_values)
    head, _ = model.actor([encoded])
    joint = joint_distribution(head, model.actor.log_sigma, sample, discrete, None, branches)
    features, _ = (model.critic.body or model.actor.body)([encoded])
    values = model.critic.heads(features)
    loss = (joint.log_prob * by_log_prob).sum() + 0.3 * joint.entropy.sum() + (values * by_values).sum()
    expected = torch.autograd.grad(loss, parameters)

    torch.testing.assert_close(prediction.joint.log_prob, joint.log_prob.detach())
    torch.testing.assert_close(prediction.values, values.detach())
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", [name for name, kind in OTHERS.items() if not kind.squashed])
def test_gradients_of_other_networks_equal_automatic_differentiation(name: str, shared: bool) -> None:
    kind, length = OTHERS[name], 3
    model, reference = (
        ActorCritic(
            kind.spec,
            kind.network,
            signals=2,
            shared_critic=shared,
            generator=torch.Generator().manual_seed(1),
        )
        for _ in range(2)
    )
    FlatAdam(model.trained_parameters())
    observations, masks = see(kind.spec, 6)
    encoded, actions = model.actor.encode(observations), kind.spec.actions
    sample = torch.randn(6, actions.continuous_size)
    discrete = torch.stack([torch.ones(6, dtype=torch.int64) for _ in actions.discrete_branches], 1)
    masks = masks | True
    memories = [remember(model.actor, 2, seed) for seed in (1, 2)]
    by_log_prob, by_values = torch.randn(6), torch.randn(6, 2)

    for _ in range(2):  # the second time over what the first left in `grad`
        with torch.no_grad():
            prediction = model.evaluate(
                encoded,
                sample,
                discrete,
                masks,
                actor_memory=memories[0],
                critic_memory=memories[1],
                length=length,
            )
            model.backward(prediction, by_log_prob, 0.3, by_values)
    head, _ = reference.actor(encoded, memories[0], length=length)
    joint = joint_distribution(head, reference.actor.log_sigma, sample, discrete, masks, actions.discrete_branches)
    if reference.critic.body is None:
        values = reference.critic.heads(reference.actor.body(encoded, memories[0], length=length)[0])
    else:
        values, _ = reference.critic(encoded, memories[1], length=length)
    ((joint.log_prob * by_log_prob).sum() + 0.3 * joint.entropy.sum() + (values * by_values).sum()).backward()

    torch.testing.assert_close(prediction.joint.log_prob, joint.log_prob.detach())
    torch.testing.assert_close(prediction.values, values.detach())
    assert not prediction.values.requires_grad
    for (parameter, mine), (_, other) in zip(model.trained_parameters(), reference.trained_parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-4, msg=parameter)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.squashed])
@pytest.mark.parametrize("shared", [False, True])
def test_values_are_the_same_in_pieces(name: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[name]
    generator = torch.Generator().manual_seed(1)
    model = ActorCritic(kind.spec, kind.network, signals=2, shared_critic=shared, generator=generator)
    observations, _ = see(kind.spec, 12)
    encoded, memory = model.actor.encode(observations), remember(model.actor, 4)

    at_once = model.values(encoded, memory, length=3)
    monkeypatch.setattr(NetworkBody, "rows_at_once", 5)  # one sequence of 3 at a time
    in_pieces = model.values(encoded, memory, length=3)

    torch.testing.assert_close(in_pieces, at_once)
    assert at_once[0].shape == (12, 2)
    assert (at_once[1] is None) == (memory is None)


def test_a_critic_remembers_what_it_saw_before() -> None:
    kind = KINDS["memory"]
    generator = torch.Generator().manual_seed(1)
    model = ActorCritic(kind.spec, kind.network, signals=1, shared_critic=False, generator=generator)
    encoded = model.actor.encode(see(kind.spec, 8)[0])

    at_once, after = model.values(encoded, length=8)
    first, between = model.values([encoded[0][:5]], length=5)
    second, last = model.values([encoded[0][5:]], between, length=3)

    torch.testing.assert_close(torch.cat([first, second]), at_once)
    torch.testing.assert_close(last, after)


def test_adam_over_one_vector_equals_torchs() -> None:
    ours, theirs = make_model(2, (3,)), make_model(2, (3,))
    flat = FlatAdam(ours.trained_parameters())
    reference = torch.optim.Adam([parameter for _, parameter in theirs.trained_parameters()], lr=0.01)

    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        for (_, mine), (_, other) in zip(ours.trained_parameters(), theirs.trained_parameters(), strict=True):
            other.grad = torch.randn(other.shape, generator=generator)
            assert mine.grad is not None
            mine.grad.copy_(other.grad)
        flat.step(0.01)
        reference.step()

    for (_, mine), (_, other) in zip(ours.trained_parameters(), theirs.trained_parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_a_restored_snapshot_is_bit_equal() -> None:
    model = make_model(2, ())
    optimizer = FlatAdam(model.trained_parameters())
    before, state = optimizer.snapshot(), {name: item.clone() for name, item in model.state_dict().items()}

    for _, parameter in model.trained_parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(1.0)
    optimizer.step(0.1)
    assert not torch.equal(model.state_dict()["actor.head.weight"], state["actor.head.weight"])
    optimizer.restore(before)

    assert all(torch.equal(model.state_dict()[name], item) for name, item in state.items())


def test_weights_start_as_in_ml_agents() -> None:
    model = make_model(40, (40,), units=512, layers=2).requires_grad_(requires_grad=False)
    actor, critic = model.actor, model.critic

    # Kaiming normal with gain 1: deviation 1 / sqrt(inputs), scaled by 0.2 for means and 0.1 for logits
    assert float(actor.body.hidden.layers[1].weight.std()) == pytest.approx(512**-0.5, rel=0.02)
    assert float(actor.head.weight[:40].std()) == pytest.approx(0.2 * 512**-0.5, rel=0.05)
    assert float(actor.head.weight[40:].std()) == pytest.approx(0.1 * 512**-0.5, rel=0.05)
    # Xavier uniform for values: within sqrt(6 / (512 + 2))
    assert float(critic.heads.weight.abs().max()) == pytest.approx((6 / 514) ** 0.5, rel=0.02)
    assert not any(parameter.any() for name, parameter in model.named_parameters() if name.endswith("bias"))
    assert not actor.log_sigma.any()


@pytest.mark.parametrize("name", KINDS)
def test_equal_seeds_build_equal_networks_without_the_global_generator(name: str) -> None:
    kind, state = KINDS[name], torch.random.get_rng_state()

    one, two, other = (
        ActorCritic(
            kind.spec, kind.network, signals=2, shared_critic=False, generator=torch.Generator().manual_seed(seed)
        )
        for seed in (1, 1, 2)
    )

    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert torch.equal(torch.random.get_rng_state(), state)
