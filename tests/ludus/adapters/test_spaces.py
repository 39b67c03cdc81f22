"""Spaces become specs, and values of them columns, without a number out of place."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ludus.adapters.spaces import ActionDecoder, ObservationEncoder, UnsupportedSpace
from ludus.protocol.spec import ActionSpec
from ludus.sdk.errors import GameMistake


def encoded(space: Any, *values: Any) -> Any:
    """Encode values of a space, as an adapter does."""
    encoder = ObservationEncoder(space)
    return encoder.stack([encoder.read(value) for value in values])


def test_a_box_becomes_a_flat_float_vector() -> None:
    space = spaces.Box(-1, 1, (2, 3), np.float64)
    encoder = ObservationEncoder(space)

    (column,) = encoded(space, np.arange(6.0).reshape(2, 3))

    assert encoder.specs[0].shape == (6,)
    assert encoder.specs[0].dtype == "float32"
    np.testing.assert_array_equal(column, np.arange(6, dtype=np.float32)[None])
    assert column.dtype == np.float32


@pytest.mark.parametrize(
    ("shape", "announced"),
    [
        ((4, 5, 3), (3, 4, 5)),
        ((4, 5), (1, 4, 5)),
        ((6, 84, 84), (6, 84, 84)),
        ((84, 80, 12), (12, 84, 80)),
        ((4, 20, 24, 3), (12, 20, 24)),
        ((4, 3, 20, 24), (12, 20, 24)),
        ((4, 20, 24, 1), (4, 20, 24)),
    ],
)
def test_an_image_stays_bytes_with_its_channels_first(shape: tuple[int, ...], announced: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    encoder = ObservationEncoder(space)

    (column,) = encoded(space, space.sample(), space.sample())

    assert encoder.specs[0].shape == announced
    assert encoder.specs[0].dtype == "uint8"
    assert column.dtype == np.uint8
    assert column.shape == (2, *announced)


def test_a_pixel_keeps_its_place_when_channels_move() -> None:
    image = np.zeros((4, 5, 3), np.uint8)
    image[1, 2, 0] = 9

    (column,) = encoded(spaces.Box(0, 255, (4, 5, 3), np.uint8), image)

    assert column[0, 0, 1, 2] == 9
    assert column.sum() == 9


def test_stacked_images_keep_their_order_and_their_channels_together() -> None:
    frames = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)

    (column,) = encoded(spaces.Box(0, 255, (2, 4, 5, 3), np.uint8), frames, frames + 100)

    for row, values in enumerate((frames, frames + 100)):
        for frame in range(2):
            for channel in range(3):
                np.testing.assert_array_equal(column[row, 3 * frame + channel], values[frame, :, :, channel])


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Discrete(3), 1, [0, 1, 0]),
        (spaces.Discrete(3, start=-1), 1, [0, 0, 1]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (spaces.Box(0, 255, (3,), np.uint8), np.array([1, 2, 3], np.uint8), [1, 2, 3]),
        (spaces.Box(-1, 1, (), np.float32), np.float32(0.5), [0.5]),
    ],
)
def test_a_value_becomes_a_row(space: Any, value: Any, expected: list[float]) -> None:
    encoder = ObservationEncoder(space)

    (column,) = encoded(space, value)

    assert encoder.specs[0].shape == (len(expected),)
    np.testing.assert_array_equal(column, np.array([expected], np.float32))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_a_stack_of_discrete_values_is_one_hot(values: list[int]) -> None:
    (column,) = encoded(spaces.Discrete(5), *values)

    assert column.argmax(axis=1).tolist() == values
    assert (column.sum(axis=1) == 1).all()


def test_nested_spaces_give_one_observation_per_leaf() -> None:
    space = spaces.Dict(
        {"where": spaces.Box(-1, 1, (2,)), "bag": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3)))}
    )
    encoder = ObservationEncoder(space)

    columns = encoded(space, space.sample(), space.sample())

    assert [spec.name for spec in encoder.specs] == ["bag/0", "bag/1", "where"]
    assert [column.shape for column in columns] == [(2, 2), (2, 3), (2, 2)]


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Dict({"a": spaces.Text(2)})]
)
def test_an_unsupported_observation_is_refused_with_a_way_out(space: Any) -> None:
    with pytest.raises(UnsupportedSpace, match=r"the observation space.* wrap the environment"):
        ObservationEncoder(space)


@pytest.mark.parametrize("use", ["observation", "action"])
@pytest.mark.parametrize(
    "space", [spaces.Box(0, 1, (0,)), spaces.Dict({}), spaces.Tuple(()), spaces.Dict(a=spaces.Box(0, 1, (2, 0)))]
)
def test_a_space_of_no_numbers_is_refused(space: Any, use: str) -> None:
    make = ObservationEncoder if use == "observation" else ActionDecoder
    with pytest.raises(UnsupportedSpace, match=rf"the {use} space.* has no (numbers|entries): wrap"):
        make(space)


@pytest.mark.parametrize(
    ("space", "value", "problem"),
    [
        (spaces.MultiDiscrete([3, 4]), [3, 1], r"has 3 at \[0\]; MultiDiscrete\(\[3 4\]\) has 0 to 2 there"),
        (spaces.MultiDiscrete([[2], [3]]), [[1], [-1]], r"has -1 at \[1, 0\]"),
        (spaces.MultiDiscrete([2, 11], start=[0, 25]), [0, 36], r"has 36 at \[1\]; .* has 25 to 35 there"),
        (spaces.Discrete(3), 3, "has 3;"),
        (spaces.Discrete(3), -1, "has -1;"),
        (spaces.MultiBinary((2, 2)), [[0, 1], [2, 0]], r"has 2 at \[1, 0\]; MultiBinary.* has 0 to 1 there"),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), np.full((4, 4, 3), 0.5), "whole numbers from 0 to 255"),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), np.full((4, 4, 3), 256), "whole numbers from 0 to 255"),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), np.zeros((3, 4, 4), np.uint8), r"\(3, 4, 4\), its spec says"),
    ],
)
def test_a_value_outside_of_its_space_is_refused_in_words(space: Any, value: Any, problem: str) -> None:
    with pytest.raises(GameMistake, match=problem):
        encoded(space, value)


def test_a_value_outside_of_a_box_is_one_warning_with_the_value(caplog: pytest.LogCaptureFixture) -> None:
    space = spaces.Dict(speed=spaces.Box(-1, 1, (2,), np.float32))
    encoder = ObservationEncoder(space)

    for value in ([0.5, 1.0000001], [0.5, 7.5], [9, 9]):
        (column,) = encoder.stack([encoder.read({"speed": value})])

    assert column.tolist() == [[9, 9]]
    (record,) = caplog.records
    assert "the observation['speed'] has 7.5 at [1]; outside of Box(-1.0, 1.0, (2,), float32)" in record.message


def test_numbers_that_float32_cannot_tell_apart_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    space = spaces.Dict(number_of_the_player=spaces.Box(0, 2**40, (1,), np.int64))

    encoded(space, {"number_of_the_player": [2**24]})
    assert not caplog.records
    encoded(space, {"number_of_the_player": [2**24 + 1]})

    (record,) = caplog.records
    assert "has 16777217; float32, its type on the way to the run, has 16777216" in record.message


def test_bounds_that_mean_none_leave_the_action_as_it_is() -> None:
    largest = float(np.finfo(np.float32).max)
    decoder = ActionDecoder(spaces.Box(-largest, largest, (1,), np.float32))

    assert decoder.batch(np.array([[0.5]], np.float32), np.zeros((1, 0), np.int32)).tolist() == [[0.5]]


def test_an_integer_box_of_actions_is_refused() -> None:
    with pytest.raises(UnsupportedSpace, match="the action space"):
        ActionDecoder(spaces.Box(0, 10, (2,), np.int64))


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def one(decoder: ActionDecoder, continuous: np.ndarray, discrete: np.ndarray) -> Any:
    (value,) = decoder.rows(continuous[None], discrete[None])
    return value


def test_continuous_actions_are_rescaled_to_the_bounds() -> None:
    decoder = ActionDecoder(spaces.Box(np.array([-2, 0]), np.array([2, 10]), dtype=np.float32))

    assert decoder.spec == ActionSpec(2)
    np.testing.assert_allclose(one(decoder, floats(-1, -1), ints()), [-2, 0])
    np.testing.assert_allclose(one(decoder, floats(0, 0.5), ints()), [0, 7.5])
    np.testing.assert_allclose(one(decoder, floats(1, 1), ints()), [2, 10])


def test_an_unbounded_dimension_gets_the_action_as_it_is() -> None:
    decoder = ActionDecoder(spaces.Box(floats(-np.inf, 0), floats(np.inf, 4)))

    np.testing.assert_allclose(one(decoder, floats(0.25, 0.5), ints()), [0.25, 3])


@given(hnp.arrays(np.float32, (3, 4), elements=st.floats(-1, 1, width=32)))
def test_rescaled_actions_lie_in_their_space(actions: np.ndarray) -> None:
    space = spaces.Box(floats(-3, 0, 1e-3, -1e6).reshape(2, 2), floats(3, 1, 2e-3, 1e6).reshape(2, 2))
    decoder = ActionDecoder(space)

    for action in decoder.batch(actions, np.zeros((3, 0), np.int32)):
        assert space.contains(action)


@pytest.mark.parametrize(
    ("space", "branches"),
    [
        (spaces.Discrete(4, start=2), (4,)),
        (spaces.MultiDiscrete([2, 3]), (2, 3)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), (2, 3, 4, 5)),
        (spaces.MultiBinary(3), (2, 2, 2)),
        (spaces.MultiBinary([2, 2]), (2, 2, 2, 2)),
    ],
)
def test_discrete_actions_become_values_of_their_space(space: Any, branches: tuple[int, ...]) -> None:
    decoder = ActionDecoder(space)

    assert decoder.spec == ActionSpec(0, branches)
    for choice in (np.zeros(len(branches), np.int32), np.array(branches, np.int32) - 1):
        assert space.contains(one(decoder, floats(), choice))


def test_hybrid_actions_take_their_columns_in_the_order_of_the_leaves() -> None:
    space = spaces.Dict(
        {"move": spaces.Box(-1, 1, (2,)), "use": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3)))}
    )
    decoder = ActionDecoder(space)

    action = one(decoder, floats(0.5, -0.5), ints(1, 2))

    assert decoder.spec == ActionSpec(2, (2, 3))
    np.testing.assert_allclose(action["move"], [0.5, -0.5])
    assert action["use"] == (1, 2)
    batch = decoder.batch(np.zeros((4, 2), np.float32), np.ones((4, 2), np.int32))
    assert batch["move"].shape == (4, 2)
    assert batch["use"][0].tolist() == [1, 1, 1, 1]
