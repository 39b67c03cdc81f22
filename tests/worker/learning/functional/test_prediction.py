"""How wrong a prediction was, with the arithmetic shown."""

import math

import pytest
import torch

from worker.learning.functional.prediction import action_error, flat_actions, squared_distance


def test_distance_is_a_sum_over_features() -> None:
    # (1 - 0)^2 + (2 - 4)^2 = 5; equal rows: 0.
    predicted, actual = torch.tensor([[1.0, 2.0], [3.0, 3.0]]), torch.tensor([[0.0, 4.0], [3.0, 3.0]])

    assert squared_distance(predicted, actual).tolist() == [5.0, 0.0]


def test_action_error_adds_columns_and_branches() -> None:
    # Column: (0.5 - 1)^2 = 0.25. Branch of 2, equal logits: ln 2. Branch of 3, logits 0, 0, ln 2 (p = 1/4, 1/4, 1/2),
    # choice 2: ln 2.
    predicted = torch.tensor([[0.5, 7.0, 7.0, 0.0, 0.0, math.log(2.0)]])

    error = action_error(predicted, torch.tensor([[1.0]]), torch.tensor([[1, 2]]), (2, 3))

    assert error.tolist() == pytest.approx([0.25 + 2 * math.log(2.0)])


def test_flat_actions_are_columns_then_choices() -> None:
    flat = flat_actions(torch.tensor([[0.5]]), torch.tensor([[1, 0]]), (2, 3))

    assert flat.tolist() == [[0.5, 0.0, 1.0, 1.0, 0.0, 0.0]]


def test_flat_actions_of_continuous_agents_are_their_columns() -> None:
    continuous = torch.randn(4, 2)

    assert torch.equal(flat_actions(continuous, torch.zeros(4, 0, dtype=torch.int64), ()), continuous)
