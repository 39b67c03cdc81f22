"""A demonstration is checked when it is made; it can be taken apart, put together, and described."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.demonstrations import DemonstrationError, check_fit, inspect, merge, thin
from ludus.schemas import Spread
from tests.ludus.demonstrations.shown import assert_equal, make_demonstration, make_spec, picture, vector


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_every_row_is_followed_by_the_next_one_of_its_piece_or_by_the_final_observation(
    lengths: list[int], data: st.DataObject
) -> None:
    shown = make_demonstration(lengths=lengths)
    rows = data.draw(st.lists(st.integers(0, sum(lengths) - 1), min_size=1, max_size=5))

    (found,) = shown.next_observations(np.array(rows))

    for row, after in zip(rows, found, strict=True):
        piece = int(np.flatnonzero(shown.starts <= row)[-1])
        is_last = row == shown.starts[piece] + lengths[piece] - 1
        expected = shown.final_observations[0][piece] if is_last else shown.observations[0][row + 1]
        np.testing.assert_array_equal(after, expected)


def test_returns_and_lengths_are_those_of_each_piece() -> None:
    shown = make_demonstration(lengths=(3, 2), rewards=np.array([1, 2, 3, 10, 20], np.float32))

    assert shown.returns.tolist() == [6, 30]
    assert shown.lengths.tolist() == [3, 2]


class TestPick:
    def test_pieces_come_in_the_order_that_was_asked_for(self) -> None:
        shown = make_demonstration(lengths=(3, 2, 4), endings="etc")

        picked = shown.pick([2, 0])

        assert picked.lengths.tolist() == [4, 3]
        assert picked.rewards.tolist() == shown.rewards[[5, 6, 7, 8, 0, 1, 2]].tolist()
        np.testing.assert_array_equal(picked.final_observations[0], shown.final_observations[0][[2, 0]])
        assert picked.complete.tolist() == [False, True]

    @pytest.mark.parametrize("pieces", [[], [2], [-1]])
    def test_pieces_that_are_not_there_are_refused(self, pieces: list[int]) -> None:
        with pytest.raises(DemonstrationError, match="there are 2"):
            make_demonstration().pick(pieces)


class TestSubsample:
    def test_each_transition_keeps_what_followed_it(self) -> None:
        shown = make_demonstration(lengths=(30, 20), endings="et")

        few = shown.subsample(10, seed=3)

        (after,) = few.next_observations(np.arange(10))
        (all_after,) = shown.next_observations(np.arange(50))
        for row in range(10):
            source = int(np.flatnonzero((shown.observations[0] == few.observations[0][row]).all(1))[0])
            np.testing.assert_array_equal(after[row], all_after[source])
            assert few.rewards[row] == shown.rewards[source]
            assert few.terminated[row] == shown.terminated[source]
            assert few.discrete[row] == shown.discrete[source]

    def test_equal_seeds_draw_equal_transitions_and_others_draw_others(self) -> None:
        shown = make_demonstration(lengths=(50,))

        assert_equal(shown.subsample(10, seed=3), shown.subsample(10, seed=3))
        assert shown.subsample(10, seed=3).rewards.tolist() != shown.subsample(10, seed=4).rewards.tolist()

    def test_all_of_them_are_each_of_them_once(self) -> None:
        shown = make_demonstration(lengths=(5, 4))

        every = shown.subsample(9, seed=1)

        assert every.rewards.tolist() == shown.rewards.tolist()
        assert not every.complete.any()

    @pytest.mark.parametrize("count", [0, 6])
    def test_more_than_there_are_cannot_be_drawn(self, count: int) -> None:
        with pytest.raises(DemonstrationError, match=f"{count} transitions were asked for; there are 5"):
            make_demonstration(lengths=(3, 2)).subsample(count, seed=1)


class TestMerge:
    def test_pieces_lie_one_behind_the_other(self) -> None:
        one, other = make_demonstration(lengths=(3, 2)), make_demonstration(lengths=(4,), endings="t", seed=1)

        both = merge([one, other])

        assert both.starts.tolist() == [0, 3, 5]
        assert_equal(both.pick([0, 1]), one)
        assert_equal(both.pick([2]), other)

    def test_what_one_lacks_is_filled_in(self) -> None:
        plain = make_demonstration(lengths=(2,))
        rich = make_demonstration(
            lengths=(1,),
            action_masks=np.array([[1, 1, 0]], np.uint8),
            discrete=np.zeros((1, 1), np.int32),
            group_ids=np.array([3], np.int32),
        )

        both = merge([plain, rich])

        assert both.action_masks is not None
        assert both.group_ids is not None
        assert both.action_masks.tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0]]
        assert both.group_ids.tolist() == [0, 0, 3]
        assert both.group_rewards is None

    def test_other_shapes_and_dtypes_are_refused_with_both(self) -> None:
        one = make_demonstration(make_spec(vector(2), branches=(3,)))

        with pytest.raises(DemonstrationError, match=r"\(4,\).*the first demonstration has shape \(2,\)"):
            merge([one, make_demonstration(make_spec(vector(4), branches=(3,)))])
        with pytest.raises(DemonstrationError, match="there is no demonstration"):
            merge([])


class TestFit:
    @pytest.mark.parametrize(
        ("shown", "message"),
        [
            (
                make_spec(vector(3), branches=(2,)),
                r"observation 0 \('vector 3'\) of the demonstration has shape \(3,\), ",
            ),
            (make_spec(vector(3), branches=(2,)), r"\('vector 2'\) of behavior 'Walker' has shape \(2,\)"),
            (make_spec(vector(2), vector(2), branches=(2,)), r"2 observations \(2,\), \(2,\), .* has 1 \(2,\)"),
            (make_spec(vector(2), branches=(3,)), r"branches \[3\], .* branches \[2\]"),
            (make_spec(vector(2), continuous=2), r"2 continuous actions and branches \[\], .* has 0 continuous"),
        ],
    )
    def test_both_shapes_are_named(self, shown: Any, message: str) -> None:
        behavior = make_spec(vector(2), branches=(2,), name="Walker")

        with pytest.raises(DemonstrationError, match=message):
            check_fit(shown, behavior)

    def test_names_and_dtypes_may_differ(self) -> None:
        check_fit(make_spec(picture(), branches=(2,), name="A"), make_spec(picture(), branches=(2,), name="B"))


class TestChecks:
    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"rewards": np.zeros(0, np.float32)}, "no transitions"),
            ({"rewards": np.array([0, 0, np.nan, 0, 0], np.float32)}, "rewards holds .* not finite, in row 2"),
            ({"rewards": np.zeros(4, np.float32)}, r"continuous has shape \(5, 0\), not \(4, 0\)"),
            ({"rewards": np.zeros(5, np.float64)}, "rewards has dtype float64, not float32"),
            ({"observations": ()}, "it has 0 observations, its spec has 1"),
            ({"discrete": np.full((5, 1), 3, np.int32)}, "branch 0 has choice 3 in row 0; it has the choices 0 to 2"),
            ({"starts": np.array([0, 5])}, "starts must begin with 0 and grow"),
            ({"starts": np.array([1, 3])}, "starts must begin with 0 and grow"),
            ({"starts": np.array([0, 0])}, "starts must begin with 0 and grow"),
            ({"terminated": np.array([True, False, True, False, True])}, "row 0 ends an episode, but is not"),
            ({"truncated": np.array([False, False, True, False, True])}, "row 2 .* terminated and truncated at once"),
            ({"action_masks": np.ones((5, 2), np.uint8)}, r"action_masks has shape \(5, 2\), not \(5, 3\)"),
        ],
    )
    def test_what_cannot_be_is_refused(self, wrong: dict[str, Any], message: str) -> None:
        with pytest.raises(DemonstrationError, match=message):
            make_demonstration(**wrong)

    def test_continuous_actions_lie_within_one(self) -> None:
        actions = np.zeros((5, 2), np.float32)
        actions[3, 1] = -1.01

        with pytest.raises(DemonstrationError, match=r"continuous action 1 is -1\.01 in row 3"):
            make_demonstration(make_spec(continuous=2), continuous=actions)


class TestInspect:
    def test_it_counts_whole_episodes_and_describes_their_returns(self) -> None:
        shown = make_demonstration(
            lengths=(3, 1, 2), endings="etc", rewards=np.array([1, 1, 1, 5, 100, 100], np.float32)
        )

        found = inspect(shown)

        assert (found.transitions, found.episodes, found.fragments) == (6, 2, 1)
        assert (found.terminated, found.truncated) == (1, 1)
        assert found.returns == Spread(mean=4, std=1, minimum=3, maximum=5)
        assert found.lengths == Spread(mean=2, std=1, minimum=1, maximum=3)

    def test_histograms_count_every_action(self) -> None:
        continuous = np.array([[-1.0], [-0.95], [0.0], [1.0], [0.999]], np.float32)
        shown = make_demonstration(
            make_spec(continuous=1, branches=(3,)),
            continuous=continuous,
            discrete=np.array([[0], [2], [2], [0], [2]], np.int32),
        )

        found = inspect(shown)

        assert found.continuous == ((2, *[0] * 9, 1, *[0] * 8, 2),)
        assert found.discrete == ((2, 0, 3),)

    def test_without_a_whole_episode_there_are_no_returns(self) -> None:
        found = inspect(make_demonstration(endings="cc"))

        assert (found.returns, found.lengths) == (None, None)


class TestThinning:
    def test_the_first_complete_episodes_are_kept_or_as_many_that_are_drawn(self) -> None:
        shown = make_demonstration(lengths=(3, 2, 4, 5, 6), endings="tcttt")  # the second piece was cut

        assert shown.pick_episodes(3).lengths.tolist() == [3, 4, 5]
        drawn = [shown.pick_episodes(2, seed=seed).lengths.tolist() for seed in range(20)]
        assert drawn == [shown.pick_episodes(2, seed=seed).lengths.tolist() for seed in range(20)]
        assert all(lengths == sorted(lengths) and 2 not in lengths for lengths in drawn), "in order, and complete"
        assert len(set(map(tuple, drawn))) > 3

    def test_more_episodes_than_are_complete_are_refused(self) -> None:
        with pytest.raises(DemonstrationError, match="3 complete episodes were asked for; there are 2"):
            make_demonstration(lengths=(3, 2, 4), endings="tct").pick_episodes(3)

    def test_every_nth_transition_of_each_episode_begins_at_its_first_one(self) -> None:
        shown = make_demonstration(lengths=(7, 2, 3), endings="eee")

        part = shown.every(3)

        rows = [0, 3, 6, 7, 9]
        np.testing.assert_array_equal(part.observations[0], shown.observations[0][rows])
        np.testing.assert_array_equal(part.final_observations[0], shown.next_observations(np.array(rows))[0])
        assert part.from_start.tolist() == [True, False, False, True, True]
        assert part.terminated.tolist() == [False, False, True, False, False]

    @given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 6), st.integers(0, 99))
    def test_with_a_seed_every_episode_begins_at_one_of_its_first_transitions(
        self, lengths: list[int], interval: int, seed: int
    ) -> None:
        shown = make_demonstration(lengths=lengths)
        try:
            part = shown.every(interval, seed)
        except DemonstrationError:
            assert max(lengths) < interval
            return

        rows = [int(np.flatnonzero((shown.observations[0] == one).all(1))[0]) for one in part.observations[0]]
        for start, length in zip(shown.starts.tolist(), lengths, strict=True):
            own = [row - start for row in rows if start <= row < start + length]
            assert not own or own == list(range(own[0], length, interval))
            assert (own and own[0] < interval) or length < interval

    def test_episodes_and_transitions_together_are_transitions_of_these_episodes(self) -> None:
        shown = make_demonstration(lengths=(20, 20, 20))

        assert_equal(thin(shown, episodes=2, every=5, seed=3), shown.pick_episodes(2, 3).every(5, 3))
        assert_equal(thin(shown, episodes=1, count=4), shown.pick([0]).subsample(4, 0))

    def test_an_interval_below_one_is_refused(self) -> None:
        with pytest.raises(DemonstrationError, match="at least"):
            make_demonstration().every(0)
