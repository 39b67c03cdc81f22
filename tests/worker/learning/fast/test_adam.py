"""One vector of parameters learns as torch's own Adam does."""

import pytest
import torch
from torch import nn

from worker.learning.fast.adam import FlatAdam


def make_layers() -> list[nn.Linear]:
    generator = torch.Generator().manual_seed(1)
    layers = [nn.Linear(3, 4), nn.Linear(4, 2)]
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.normal_(parameter, generator=generator)
    return layers


def named(layer: nn.Linear, prefix: str) -> list[tuple[str, nn.Parameter]]:
    return [(f"{prefix}.{name}", parameter) for name, parameter in layer.named_parameters()]


def loss_of(layers: list[nn.Linear]) -> torch.Tensor:
    inputs = torch.arange(12.0).view(4, 3) / 10
    return layers[1](layers[0](inputs).tanh()).square().sum()


@pytest.mark.parametrize("rates", [(1e-2, 1e-2), (1e-2, 1e-4)])
def test_groups_descend_at_their_own_rates_as_torchs_adam(rates: tuple[float, float]) -> None:
    ours, theirs = make_layers(), make_layers()
    flat = FlatAdam(named(ours[0], "first"), named(ours[1], "second"))
    adam = torch.optim.Adam(
        [{"params": layer.parameters(), "lr": rate} for layer, rate in zip(theirs, rates, strict=True)]
    )

    for _ in range(5):
        flat.zero_gradient()
        loss_of(ours).backward()
        norm = flat.step(rates)
        adam.zero_grad()
        loss_of(theirs).backward()
        adam.step()

    own, expected = ([p.detach() for layer in layers for p in layer.parameters()] for layers in (ours, theirs))
    for parameter, reference in zip(own, expected, strict=True):
        torch.testing.assert_close(parameter, reference)
    gradients = [parameter.grad for layer in ours for parameter in layer.parameters() if parameter.grad is not None]
    torch.testing.assert_close(norm, torch.cat([gradient.reshape(-1) for gradient in gradients]).norm())


def test_gradients_are_clipped_by_the_length_of_all_groups() -> None:
    layers = make_layers()
    optimizer = FlatAdam(named(layers[0], "first"), named(layers[1], "second"))
    loss_of(layers).backward()

    norm = optimizer.step((1e-3, 1e-3), max_norm=0.5)

    assert float(norm) > 0.5
    assert float(optimizer.gradient.norm()) == pytest.approx(0.5)


def test_a_state_loads_into_other_groups() -> None:
    layers, again = make_layers(), make_layers()
    optimizer = FlatAdam(named(layers[0], "first") + named(layers[1], "second"))
    loss_of(layers).backward()
    optimizer.step(1e-2)
    restored = FlatAdam(named(again[0], "first"), named(again[1], "second"))
    for layer, source in zip(again, layers, strict=True):
        layer.load_state_dict(source.state_dict())

    restored.load_state_dict(optimizer.state_dict())
    for parts, adam in ((layers, optimizer), (again, restored)):
        adam.zero_gradient()
        loss_of(parts).backward()
        adam.step(1e-2)

    assert torch.equal(layers[0].weight, again[0].weight)
    assert torch.equal(layers[1].bias, again[1].bias)


def test_a_snapshot_brings_everything_back() -> None:
    layers = make_layers()
    optimizer = FlatAdam(named(layers[0], "first"), named(layers[1], "second"))
    loss_of(layers).backward()
    optimizer.step(1e-2)
    snapshot, weight = optimizer.snapshot(), layers[0].weight.detach().clone()
    optimizer.step(1e-2)
    assert not torch.equal(layers[0].weight, weight)

    optimizer.restore(snapshot)

    assert torch.equal(layers[0].weight, weight)
    assert optimizer.state_dict()["steps"] == 1
    assert bool(optimizer.all_finite())
