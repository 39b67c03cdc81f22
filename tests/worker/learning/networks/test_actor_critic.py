"""Actor and critic: values in pieces, memories, the optimizer over their weights, and how weights start out."""

import pytest
import torch

from ludus.config.network import NetworkSettings
from tests.worker.learning.networks.kinds import KINDS, remember, see
from tests.worker.rollouts import make_spec
from worker.learning.fast.adam import FlatAdam
from worker.learning.networks.actor_critic import ActorCritic
from worker.learning.networks.body import NetworkBody

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


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.head == "gaussian"])
@pytest.mark.parametrize("shared", [False, True])
def test_values_are_the_same_in_pieces(name: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[name]
    shared = shared and not kind.network.privileged_observations  # which a configuration has not both of
    generator = torch.Generator().manual_seed(1)
    model = ActorCritic(kind.spec, kind.network, signals=2, shared_critic=shared, generator=generator)
    observations, _ = see(kind.spec, 12)
    encoded = model.actor.encode(observations) + model.privileged.encode(observations)
    memory = remember(model.actor, 4)

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


def test_a_restored_snapshot_is_bit_equal() -> None:
    model = make_model(2, ())
    optimizer = FlatAdam(model.named_parameters())
    before, state = optimizer.snapshot(), {name: item.clone() for name, item in model.state_dict().items()}

    for _, parameter in model.named_parameters():
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
