"""Advantages and returns against arithmetic, against their definition, and under the symmetries they must have."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.examples import examples
from worker.learning.functional.returns import (
    beyond_termination,
    explained_variance,
    generalized_advantages,
    normalized,
)


def advantages(
    rewards: list[float],
    values: list[float],
    bootstrap: list[float],
    lengths: list[int],
    terminated: list[bool],
    gamma: float = 0.5,
    lambd: float = 0.5,
) -> list[float]:
    """One signal, as plain lists."""
    result = generalized_advantages(
        torch.tensor(rewards).unsqueeze(1),
        torch.tensor(values).unsqueeze(1),
        torch.tensor(bootstrap).unsqueeze(1),
        torch.tensor(lengths),
        torch.tensor(terminated).unsqueeze(1),
        gamma=torch.tensor([gamma]),
        lambd=lambd,
    )
    return result.squeeze(1).tolist()


def test_terminated_segment_has_no_value_behind_it() -> None:
    # delta_1 = 2 + 0.5 * 0 - 3 = -1;  delta_0 = 1 + 0.5 * 3 - 2 = 0.5;  A_0 = 0.5 + 0.5 * 0.5 * -1 = 0.25
    assert advantages([1.0, 2.0], [2.0, 3.0], [100.0], [2], [True]) == [0.25, -1.0]


def test_truncated_segment_bootstraps_from_the_value_behind_it() -> None:
    # delta_1 = 2 + 0.5 * 8 - 3 = 3;  delta_0 = 1 + 0.5 * 3 - 2 = 0.5;  A_0 = 0.5 + 0.25 * 3 = 1.25
    assert advantages([1.0, 2.0], [2.0, 3.0], [8.0], [2], [False]) == [1.25, 3.0]


def test_segments_do_not_see_each_other() -> None:
    # The first ends (1 - 2 = -1), the second is cut (1 + 0.5 * 4 - 2 = 1): no term of one is in the other.
    assert advantages([1.0, 1.0], [2.0, 2.0], [9.0, 4.0], [1, 1], [True, False]) == [-1.0, 1.0]


def test_signals_have_their_own_discount() -> None:
    result = generalized_advantages(
        torch.tensor([[1.0, 1.0]]),
        torch.tensor([[0.0, 0.0]]),
        torch.tensor([[10.0, 10.0]]),
        torch.tensor([1]),
        torch.tensor([[False]]),
        gamma=torch.tensor([0.5, 0.9]),
        lambd=0.95,
    )

    assert result.tolist() == [[6.0, 10.0]]  # 1 + 0.5 * 10 and 1 + 0.9 * 10


def test_a_signal_may_ignore_termination() -> None:
    result = generalized_advantages(
        torch.tensor([[1.0, 1.0]]),
        torch.tensor([[0.0, 0.0]]),
        torch.tensor([[10.0, 10.0]]),
        torch.tensor([1]),
        torch.tensor([[True, False]]),
        gamma=torch.tensor([0.5, 0.5]),
        lambd=0.95,
    )

    assert result.tolist() == [[1.0, 6.0]]  # 1 + 0 and 1 + 0.5 * 10


def test_beyond_termination_another_episode_begins() -> None:
    bootstrap = torch.tensor([[10.0, 10.0], [20.0, 20.0]])
    beginnings = torch.tensor([[1.0, 2.0], [3.0, 6.0]])  # means: 2 and 4

    result = beyond_termination(
        bootstrap, torch.tensor([True, False]), beginnings, ignores_termination=torch.tensor([False, True])
    )

    # Only the second signal goes on, and only the first segment terminated.
    assert result.tolist() == [[10.0, 4.0], [20.0, 20.0]]


def test_beyond_termination_nothing_changes_where_no_episode_began() -> None:
    bootstrap = torch.tensor([[10.0]])

    result = beyond_termination(bootstrap, torch.tensor([True]), torch.zeros(0, 1), torch.tensor([True]))

    assert torch.equal(result, bootstrap)


@st.composite
def ragged(draw: st.DrawFn) -> dict[str, Tensor]:
    """Some segments with two signals, in float64 so that only the mathematics is compared."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    steps, segments = sum(lengths), len(lengths)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, 2, generator=generator, dtype=torch.float64)

    return {
        "rewards": normal(steps),
        "values": normal(steps),
        "bootstrap": normal(segments),
        "lengths": torch.tensor(lengths),
        "terminated": torch.rand(segments, 1, generator=generator) < 0.5,
    }


def gae(data: dict[str, Tensor], gamma: Tensor, lambd: float) -> Tensor:
    return generalized_advantages(
        data["rewards"],
        data["values"],
        data["bootstrap"],
        data["lengths"],
        data["terminated"],
        gamma=gamma,
        lambd=lambd,
    )


def per_segment(data: dict[str, Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rewards, values and the value behind the end (0 where terminated) of each segment."""
    lengths = data["lengths"].tolist()
    rewards, values = data["rewards"].split(lengths), data["values"].split(lengths)
    behind = data["bootstrap"] * ~data["terminated"]
    return list(zip(rewards, values, behind, strict=True))


GAMMA = torch.tensor([0.9, 0.99], dtype=torch.float64)


@given(ragged(), st.floats(0, 1))
def test_equals_the_quadratic_definition(data: dict[str, Tensor], lambd: float) -> None:
    expected = []
    for rewards, values, behind in per_segment(data):
        following = torch.cat([values[1:], behind.unsqueeze(0)])
        deltas = rewards + GAMMA * following - values
        for start in range(len(deltas)):
            powers = (GAMMA * lambd) ** torch.arange(len(deltas) - start, dtype=torch.float64).unsqueeze(1)
            expected.append((powers * deltas[start:]).sum(0))

    torch.testing.assert_close(gae(data, GAMMA, lambd), torch.stack(expected))


@given(ragged(), st.floats(0, 1), st.randoms(use_true_random=False))
def test_importance_makes_returns_those_of_vtraces_definition(
    data: dict[str, Tensor], lambd: float, random: object
) -> None:
    steps, seed = len(data["rewards"]), hash(random) % 2**31
    rho = torch.rand(steps, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected, begin = [], 0
    for rewards, values, behind in per_segment(data):
        own = rho[begin : begin + len(rewards), None]
        deltas = own * (rewards + GAMMA * torch.cat([values[1:], behind.unsqueeze(0)]) - values)
        # Equation 1: the sum over t of gamma^(t-s) (prod of c_i, i = s .. t-1) rho_t delta_t; c_i = lambda * rho_i.
        for start in range(len(deltas)):
            passed = (GAMMA * lambd * own[start:-1]).cumprod(0) if start < len(own) - 1 else GAMMA.new_zeros((0, 2))
            expected.append((torch.cat([GAMMA.new_ones((1, 2)), passed]) * deltas[start:]).sum(0))
        begin += len(rewards)

    result = generalized_advantages(**data, gamma=GAMMA, lambd=lambd, importance=rho)

    torch.testing.assert_close(result, torch.stack(expected))


@settings(max_examples=examples(20))
@given(st.integers(1, 300))
def test_any_length_is_summed_whole(length: int) -> None:
    # Rewards 1, values 0, gamma * lambda = 1, terminated: the advantage of step t is the number of steps from t on.
    result = advantages([1.0] * length, [0.0] * length, [7.0], [length], [True], gamma=1.0, lambd=1.0)

    assert result == [float(length - step) for step in range(length)]


def test_normalized_has_mean_zero_and_deviation_one() -> None:
    # mean 2, deviation sqrt((1 + 0 + 1) / 3)
    deviation = (2 / 3) ** 0.5

    assert normalized(torch.tensor([1.0, 2.0, 3.0])).tolist() == pytest.approx([-1 / deviation, 0.0, 1 / deviation])


def test_weights_say_how_much_a_step_counts_in_mean_and_deviation() -> None:
    whole = normalized(torch.tensor([1.0, 2.0, 2.0]))

    weighted = normalized(torch.tensor([1.0, 2.0, 50.0]), weights=torch.tensor([0.5, 1.0, 0.0]))

    assert weighted[:2].tolist() == pytest.approx(whole[:2].tolist())


def test_normalized_constant_is_zero() -> None:
    assert normalized(torch.full((5,), 3.0)).tolist() == [0.0] * 5


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant_one() -> None:
    targets = torch.tensor([[1.0], [2.0], [3.0]])

    assert float(explained_variance(targets, targets)) == 1.0
    assert float(explained_variance(torch.zeros(3, 1), targets)) == 0.0
    assert float(explained_variance(-targets, targets)) == pytest.approx(-3.0)  # Var(2 t) = 4 Var(t)


def test_explained_variance_of_constant_targets_is_zero() -> None:
    assert float(explained_variance(torch.randn(3, 1), torch.ones(3, 1))) == 0.0
