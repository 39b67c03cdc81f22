"""Built-in players do what is allowed, and nothing else."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.play.players import RandomPlayer, answer
from ludus.protocol.batches import BehaviorBatch, DecisionBatch
from ludus.protocol.spec import ActionSpec
from tests.examples import examples


def asking(count: int, masks: np.ndarray | None = None) -> DecisionBatch:
    return DecisionBatch(
        np.arange(count, dtype=np.int32), np.zeros(count, np.float32), (np.zeros((count, 1), np.float32),), masks
    )


@given(branches=st.lists(st.integers(1, 5), min_size=1, max_size=3), count=st.integers(1, 8), seed=st.integers(0, 1000))
@settings(max_examples=examples(50), deadline=None)
def test_a_random_player_never_does_what_is_masked(branches: list[int], count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    starts = np.cumsum([0, *branches[:-1]])
    masks = random.integers(0, 2, (count, sum(branches))).astype(np.uint8)
    always = starts + random.integers(0, branches, (count, len(branches)))
    masks[np.arange(count)[:, None], always] = 1

    continuous, discrete = RandomPlayer(ActionSpec(0, tuple(branches))).act(asking(count, masks))

    assert continuous.shape == (count, 0)
    assert discrete.dtype == np.int32
    assert masks[np.arange(count)[:, None], starts + discrete].all()


def test_a_random_player_chooses_evenly_among_what_is_allowed() -> None:
    masks = np.tile(np.array([1, 0, 1, 1, 1, 1], np.uint8), (12_000, 1))

    _, discrete = RandomPlayer(ActionSpec(0, (4, 2)), seed=1).act(asking(12_000, masks))

    counts = np.bincount(discrete[:, 0], minlength=4)
    assert counts[1] == 0
    # Three standard deviations of a binomial count with p = 1/3 are 155.
    assert np.abs(counts[[0, 2, 3]] - 4000).max() < 200
    assert abs(discrete[:, 1].mean() - 0.5) < 0.02


def test_a_random_player_fills_the_range_of_continuous_actions() -> None:
    continuous, discrete = RandomPlayer(ActionSpec(2), seed=1).act(asking(5_000))

    assert continuous.shape == (5_000, 2)
    assert discrete.shape == (5_000, 0)
    assert continuous.min() < -0.99
    assert continuous.max() > 0.99
    assert abs(continuous.mean()) < 0.03


def test_a_random_player_repeats_itself_from_a_seed_on_and_goes_on_without_one() -> None:
    player = RandomPlayer(ActionSpec(0, (100,)), seed=3)

    first = player.act(asking(20))[1].tolist()
    player.begin(None)
    second = player.act(asking(20))[1].tolist()
    player.begin(3)

    assert player.act(asking(20))[1].tolist() == first != second


def test_players_answer_for_their_own_behaviors_only() -> None:
    batches = [BehaviorBatch(name, asking(2), None) for name in ("A?team=0", "A?team=1")]

    (batch,) = answer({"A?team=1": RandomPlayer(ActionSpec(0, (3,)))}, batches)

    assert batch.behavior == "A?team=1"
    assert batch.agent_ids is not None
    assert batch.agent_ids.tolist() == [0, 1]
