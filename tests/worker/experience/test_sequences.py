"""Sequences: segments in pieces of equal length."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.experience.sequences import sequences_of


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


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 9))
def test_every_step_is_real_in_exactly_one_sequence(lengths: list[int], length: int) -> None:
    sequences = sequences_of(torch.tensor(lengths), length)

    assert sequences.rows[sequences.mask].tolist() == list(range(sum(lengths)))


def test_padding_repeats_the_last_step_of_its_own_segment() -> None:
    sequences = sequences_of(torch.tensor([5, 1]), 3)

    assert sequences.rows.tolist() == [[0, 1, 2], [3, 4, 4], [5, 5, 5]]
    assert sequences.mask.tolist() == [[True] * 3, [True, True, False], [True, False, False]]


def test_a_minibatch_of_sequences_keeps_their_order() -> None:
    sequences = sequences_of(torch.tensor([5, 1]), 3)

    part = sequences.select(torch.tensor([2, 0]))

    assert part.rows.tolist() == [[5, 5, 5], [0, 1, 2]]
    assert part.segments.tolist() == [1, 0]
