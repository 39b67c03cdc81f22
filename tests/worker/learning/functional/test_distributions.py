"""Distributions against torch's own, and what is forbidden in them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Normal

from worker.learning.functional.distributions import branch_bounds, gaussian_entropy, joint_distribution, masked_logits


@st.composite
def actions(draw: st.DrawFn) -> dict[str, object]:
    """A head, actions and masks of any mixture of columns and branches, in float64. The action taken is allowed."""
    columns = draw(st.integers(0, 3))
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=0 if columns else 1, max_size=3)))
    rows = draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    discrete = [torch.randint(0, size, (rows,), generator=generator) for size in sizes]
    masks = None
    if sizes and draw(st.booleans()):
        masks = torch.rand(rows, sum(sizes), generator=generator) < 0.5
        for branch, choice in enumerate(discrete):
            masks[torch.arange(rows), sum(sizes[:branch]) + choice] = True
    return {
        "head": normal(rows, columns + sum(sizes)),
        "log_sigma": normal(columns) * 0.5,
        "continuous": normal(rows, columns),
        "discrete": torch.stack(discrete, 1) if discrete else torch.zeros(rows, 0, dtype=torch.int64),
        "masks": masks,
        "sizes": sizes,
    }


@given(actions())
def test_log_prob_and_entropy_are_sums_over_columns_and_branches(data: dict) -> None:
    columns = data["continuous"].shape[1]
    gaussian = Normal(data["head"][:, :columns], data["log_sigma"].exp())
    log_prob, entropy = gaussian.log_prob(data["continuous"]).sum(1), gaussian.entropy().sum(1)
    logits = masked_logits(data["head"][:, columns:], data["masks"])
    for branch, (start, stop) in enumerate(branch_bounds(data["sizes"])):
        categorical = Categorical(logits=logits[:, start:stop])
        log_prob = log_prob + categorical.log_prob(data["discrete"][:, branch])
        entropy = entropy + categorical.entropy()

    joint = joint_distribution(**data)

    torch.testing.assert_close(joint.log_prob, log_prob)
    torch.testing.assert_close(joint.entropy, entropy)


def test_forbidden_choices_have_no_probability_and_no_gradient() -> None:
    head = torch.tensor([[0.0, 5.0, 0.0]], requires_grad=True)
    masks = torch.tensor([[True, False, True]])

    joint = joint_distribution(head, torch.zeros(0), torch.zeros(1, 0), torch.tensor([[2]]), masks, (3,))
    (by_head,) = torch.autograd.grad(joint.log_prob.sum() + 0.3 * joint.entropy.sum(), [head])

    assert joint.branches[0].p.tolist() == [[0.5, 0.0, 0.5]]
    assert float(joint.log_prob.detach()) == pytest.approx(-math.log(2))
    assert float(joint.entropy.detach()) == pytest.approx(math.log(2))
    assert by_head.tolist() == [[-0.5, 0.0, 0.5]]  # onehot - p; the entropy of equal choices is at its top


def test_all_choices_forbidden_counts_as_none() -> None:
    head = torch.tensor([[1.0, 2.0]], requires_grad=True)
    masks = torch.tensor([[False, False]])

    joint = joint_distribution(head, torch.zeros(0), torch.zeros(1, 0), torch.tensor([[0]]), masks, (2,))
    (by_head,) = torch.autograd.grad(joint.log_prob.sum(), [head])

    assert joint.branches[0].p.tolist() == [[0.5, 0.5]]
    assert by_head.tolist() == [[0.0, 0.0]]


def test_gaussian_entropy_of_unit_deviation() -> None:
    assert gaussian_entropy(torch.zeros(1)).tolist() == pytest.approx([0.5 * math.log(2 * math.pi * math.e)])
