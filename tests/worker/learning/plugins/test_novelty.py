"""Novelty pays for what was seldom seen, and by exact counts."""

from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.config.plugins.novelty import NoveltyConfig
from tests.worker.learning.rewards.steps import CPU, single_steps
from tests.worker.rollouts import make_spec
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.training_state import TrainingState
from worker.learning.plugins.novelty import NoveltyReward

SPEC = make_spec(observations=(2,), branches=(2,))


def make_novelty(*, seed: int = 1, **config: float) -> NoveltyReward:
    return NoveltyReward(NoveltyConfig.model_validate(config), SPEC, CPU, torch.Generator().manual_seed(seed))


def test_reward_is_one_over_the_root_of_one_and_the_count() -> None:
    novelty = make_novelty()
    cells = single_steps(torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    assert novelty.evaluate(cells).tolist() == [1.0, 1.0, 1.0]

    novelty.update(single_steps(torch.tensor([[0.0, 0.0]] * 3 + [[0.0, 1.0]])))

    # Seen three times, once, never.
    assert novelty.evaluate(cells).tolist() == pytest.approx([0.5, 2**-0.5, 1.0])


def test_evaluating_counts_nothing() -> None:
    novelty, cells = make_novelty(), single_steps(torch.zeros(4, 2))

    first, second = novelty.evaluate(cells), novelty.evaluate(cells)

    assert torch.equal(first, second)


def test_resolution_says_which_observations_are_the_same() -> None:
    fine, coarse = make_novelty(resolution=0.1), make_novelty(resolution=1.0)
    for novelty in (fine, coarse):
        novelty.update(single_steps(torch.tensor([[0.0, 2.2]])))

    near = single_steps(torch.tensor([[0.3, 2.2]]))

    assert float(fine.evaluate(near)) == 1.0
    assert float(coarse.evaluate(near)) == pytest.approx(2**-0.5)


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_a_board_of_neighbouring_cells_hardly_collides(seed: int) -> None:
    novelty = make_novelty(seed=seed)
    board = torch.cartesian_prod(torch.arange(20.0), torch.arange(20.0))

    places = novelty.update(single_steps(board))["Policy/Novelty Places"]

    assert float(places) >= 390  # of 400 cells in 65,536 places 1.2 share one on average


def test_a_snapshot_and_a_saved_state_bring_counts_and_hash_back() -> None:
    novelty, cells = make_novelty(), single_steps(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    novelty.update(cells)
    before, state = novelty.evaluate(cells), novelty.state_dict()

    with suppress(Diverged), TrainingState({}, novelty.changed).undone_if_diverged():
        novelty.update(cells)
        assert not torch.equal(novelty.evaluate(cells), before)
        raise Diverged("gradient")
    other = make_novelty(seed=2)
    other.load_state_dict(state)

    assert torch.equal(novelty.evaluate(cells), before)
    assert torch.equal(other.evaluate(cells), before)
