"""Hidden layers that are normalised over the batch: worked numbers before and after the warm-up, and in evaluation."""

import pytest
import torch

from worker.learning.networks.batch_renorm import WARM_UP, BatchRenorm, BatchRenormBody

INPUTS = torch.tensor([[1.0], [5.0]])
"""Mean 3, deviation 2, variance 4."""


def test_a_batch_is_normalised_by_its_own_statistics_and_moves_the_running_ones_by_a_hundredth() -> None:
    norm = BatchRenorm(1)
    with torch.no_grad():
        norm.scale.fill_(2.0)
        norm.shift.fill_(0.5)

    outputs = norm(INPUTS)

    assert outputs.flatten().tolist() == pytest.approx([-1.5, 2.5], abs=1e-3)
    assert norm.running_mean.tolist() == pytest.approx([0.03])
    assert norm.running_variance.tolist() == pytest.approx([0.99 * 1.0 + 0.01 * 4.0])
    assert norm.batches.item() == 1


def test_after_the_warm_up_outputs_are_those_of_the_running_statistics_while_these_are_near() -> None:
    norm = BatchRenorm(1)
    norm.running_mean.fill_(2.0)
    norm.running_variance.fill_(1.0)
    norm.batches.fill_(WARM_UP)

    outputs = norm(INPUTS)

    # std / running std = 2 and (3 - 2) / 1 = 1 are within their bounds: (x - 2) / 1
    assert outputs.flatten().tolist() == pytest.approx([-1.0, 3.0], abs=5e-3)


def test_after_the_warm_up_the_correction_is_bounded() -> None:
    norm = BatchRenorm(1)
    norm.running_mean.fill_(-100.0)
    norm.running_variance.fill_(1e-2)
    norm.batches.fill_(WARM_UP)

    outputs = norm(INPUTS)

    # 2 / 0.1 and 103 / 0.1 are cut to 3 and 5: -1 * 3 + 5 and 1 * 3 + 5
    assert outputs.flatten().tolist() == pytest.approx([2.0, 8.0], abs=1e-2)


def test_the_correction_is_a_constant_in_the_gradient() -> None:
    norm, weights = BatchRenorm(1), torch.tensor([[1.0], [0.0], [0.0]])
    norm.running_mean.fill_(2.0)
    norm.batches.fill_(WARM_UP)
    inputs = torch.tensor([[1.0], [5.0], [6.0]], requires_grad=True)

    (norm(inputs) * weights).sum().backward()

    # a shift of all inputs alike changes nothing in the batch's own normalisation, and r and d do not derive
    assert inputs.grad is not None
    assert inputs.grad.sum().item() == pytest.approx(0.0, abs=1e-6)
    assert inputs.grad.abs().sum().item() > 0.1


def test_evaluation_uses_the_running_statistics_and_leaves_them() -> None:
    norm = BatchRenorm(1).eval()
    norm.running_mean.fill_(1.0)
    norm.running_variance.fill_(4.0)

    outputs = norm(torch.tensor([[5.0]]))

    assert outputs.item() == pytest.approx(2.0, abs=1e-3)
    assert (norm.running_mean.item(), norm.running_variance.item(), norm.batches.item()) == (1.0, 4.0, 0)


def test_inputs_are_normalised_and_each_layer_behind_its_activation() -> None:
    body = BatchRenormBody(1, 1, 1, torch.Generator().manual_seed(1), activation="relu")
    with torch.no_grad():
        body.layers[0].weight.fill_(1.0)

    outputs = body(INPUTS)

    # -1 and 1, relu: 0 and 1 (mean and deviation 1 / 2): -1 and 1
    assert outputs.flatten().tolist() == pytest.approx([-1.0, 1.0], abs=5e-3)
    assert len(body.norms) == 2
