"""Soft values against their definition."""

import pytest
import torch
from torch import Tensor

from worker.learning.functional.distributions import Branch, masked_logits
from worker.learning.functional.soft_values import chosen_q, expected_q


def branch_of(logits: Tensor, masks: Tensor | None = None) -> Branch:
    log_p = masked_logits(logits, masks).log_softmax(1)
    return Branch(log_p, log_p.exp(), -(log_p.exp() * log_p).sum(1))


def test_two_branches_count_as_the_mean_of_their_sums() -> None:
    # Even odds over 2 and over 3 choices: ((1 + 3) / 2 + (10 + 20 + 60) / 3) / 2 = (2 + 30) / 2
    branches = [branch_of(torch.zeros(1, 2)), branch_of(torch.zeros(1, 3))]

    expected = expected_q(torch.tensor([1.0, 3.0, 10.0, 20.0, 60.0]).view(1, 1, 1, 5), branches)

    assert expected.item() == pytest.approx(16.0)


def test_without_branches_the_only_output_is_the_value() -> None:
    q = torch.randn(2, 4, 3, 1)

    torch.testing.assert_close(expected_q(q, []), q[..., 0])
    torch.testing.assert_close(chosen_q(q, torch.empty(4, 0, dtype=torch.int64)), q[..., 0])


def test_chosen_value_is_the_mean_over_branches_of_what_was_chosen() -> None:
    q = torch.tensor([1.0, 3.0, 10.0, 20.0, 60.0]).view(1, 1, 1, 5)

    # Choice 1 of the first branch, choice 2 of the second, which is number 4 of all: (3 + 60) / 2
    assert chosen_q(q, torch.tensor([[1, 4]])).item() == pytest.approx(31.5)
