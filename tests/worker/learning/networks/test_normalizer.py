"""Running statistics against arithmetic, and as a property."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.learning.networks.normalizer import Normalizer


def test_starts_as_one_imagined_observation() -> None:
    normalizer = Normalizer(2)

    assert normalizer(torch.tensor([[1.5, -7.0]])).tolist() == [[1.5, -5.0]]  # mean 0, variance 1, clipped at 5


def test_merge_counts_the_imagined_observation() -> None:
    normalizer = Normalizer(1)

    normalizer.merge(torch.tensor([[2.0], [4.0]]))

    # count 3, mean (0 + 2 + 4) / 3 = 2, squares 1 + (0 - 2)^2 + 0 + (4 - 2)^2 = 9
    assert (float(normalizer.count), normalizer.mean.tolist(), normalizer.squares.tolist()) == (3.0, [2.0], [9.0])
    assert normalizer.std().tolist() == pytest.approx([3**0.5])


@given(st.integers(0, 2**31), st.lists(st.integers(1, 20), min_size=2, max_size=5))
def test_merging_in_parts_or_at_once_is_the_same(seed: int, parts: list[int]) -> None:
    rows = torch.randn(sum(parts), 3, generator=torch.Generator().manual_seed(seed)) * 100 + 1000
    one_by_one, backwards, at_once = Normalizer(3), Normalizer(3), Normalizer(3)

    for part in rows.split(parts):
        one_by_one.merge(part)
    for part in reversed(rows.split(parts)):
        backwards.merge(part)
    at_once.merge(rows)

    for other in (backwards, at_once):
        torch.testing.assert_close(one_by_one.mean, other.mean)
        torch.testing.assert_close(one_by_one.squares, other.squares)
        assert one_by_one.count == other.count


def test_constant_observation_stays_finite() -> None:
    normalizer = Normalizer(1)

    for _ in range(100):
        normalizer.merge(torch.full((1000, 1), 7.0))

    assert abs(float(normalizer(torch.full((1, 1), 7.0)))) < 0.01


def test_large_counts_still_grow() -> None:
    normalizer = Normalizer(1)
    normalizer.count.fill_(2.0**24)  # where float32 would stop counting

    normalizer.merge(torch.zeros(1, 1))

    assert float(normalizer.count) == 2.0**24 + 1
