"""Transitions: every step with the observation that followed it; sequences: segments in pieces of equal length."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.collector.heads import HEADS
from ludus.collector.segments import SegmentEnd
from tests.worker.rollouts import make_rollout, make_spec, random_rollout
from worker.experience.transitions import sequences_of, transitions_of

CPU = torch.device("cpu")
SPEC = make_spec(observations=(3, (1, 4, 4), (5, 2)), continuous=2, branches=(3, 2))


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(SegmentEnd)), min_size=1, max_size=12))
def test_what_followed_and_how_it_ended_is_as_in_a_plain_loop(segments: list[tuple[int, SegmentEnd]]) -> None:
    lengths = [length for length, _ in segments]
    rollout = random_rollout(SPEC, lengths, np.random.default_rng(1), ending=[ending for _, ending in segments])
    expected = []
    first = 0
    for number, (length, ending) in enumerate(segments):
        for step in range(first, first + length):
            last = step == first + length - 1
            following = [
                rollout.next_observations[item][number] if last else rollout.observations[item][step + 1]
                for item in range(3)
            ]
            expected.append(
                (following, last and ending is SegmentEnd.TERMINATED, last and ending is not SegmentEnd.CUT)
            )
        first += length

    transitions = transitions_of(rollout, CPU, HEADS["gaussian"])

    assert transitions.steps == len(expected)
    for step, (following, terminated, ended) in enumerate(expected):
        for part, before, after in zip(transitions.observations, rollout.observations, following, strict=True):
            assert torch.equal(part[transitions.index[step]], before[step])
            assert torch.equal(part[transitions.next_index[step]], after)
        assert bool(transitions.terminated[step]) == terminated
        assert bool(transitions.ended[step]) == ended


def test_pictures_stay_bytes() -> None:
    rollout = random_rollout(SPEC, [2, 3], np.random.default_rng(1))

    transitions = transitions_of(rollout, CPU, HEADS["gaussian"])

    assert [part.dtype for part in transitions.observations] == [torch.float32, torch.uint8, torch.float32]
    assert [len(part) for part in transitions.observations] == [7, 7, 7]


@pytest.mark.parametrize(
    ("head", "expected"), [("gaussian", [-1.0, -0.5, 0.0, 1.0]), ("squashed", [-6.0, -1.5, 0.0, 3.0])]
)
def test_samples_become_actions_as_they_did_for_the_environment_and_squashed_ones_are_actions(
    head: str, expected: list[float]
) -> None:
    samples = np.array([[-6.0], [-1.5], [0.0], [3.0]])
    rollout = make_rollout(
        observations=[np.zeros((4, 1))], rewards=np.zeros(4), continuous=samples, log_probs=np.zeros((4, 1))
    )

    transitions = transitions_of(rollout, CPU, HEADS[head])

    assert transitions.continuous[:, 0].tolist() == pytest.approx(list(expected))


def test_a_minibatch_points_into_the_same_pool() -> None:
    rollout = random_rollout(SPEC, [4, 2, 5], np.random.default_rng(1))
    transitions = transitions_of(rollout, CPU, HEADS["gaussian"])
    rows = torch.tensor([10, 3, 0])

    part = transitions.select(rows)

    assert part.observations is transitions.observations
    assert part.index.tolist() == [10, 3, 0]
    assert part.next_index.tolist() == [13, 11, 1]  # the successors of segments 2 and 0 are rows 11 + 2 and 11 + 0
    assert torch.equal(part.discrete, rollout.discrete[rows])
    assert torch.equal(part.rewards, rollout.rewards[rows])
    assert part.ended.tolist() == transitions.ended[rows].tolist()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 9))
def test_sequences_are_those_of_a_plain_loop(lengths: list[int], length: int) -> None:
    rows, mask, segments, first = [], [], [], 0
    for number, steps in enumerate(lengths):
        for begin in range(0, steps, length):
            real = min(length, steps - begin)
            rows.append([first + begin + min(step, real - 1) for step in range(length)])
            mask.append([step < real for step in range(length)])
            segments.append(number)
        first += steps

    sequences = sequences_of(torch.tensor(lengths), length)

    assert sequences.rows.tolist() == rows
    assert sequences.mask.tolist() == mask
    assert sequences.segments.tolist() == segments
    assert sequences.first.tolist() == [row[0] for row in rows]


def test_a_minibatch_of_sequences_keeps_their_order() -> None:
    sequences = sequences_of(torch.tensor([5, 1]), 3)

    part = sequences.select(torch.tensor([2, 0]))

    assert part.rows.tolist() == [[5, 5, 5], [0, 1, 2]]
    assert part.segments.tolist() == [1, 0]
