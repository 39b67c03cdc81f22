"""Weight buffers: never torn, never waiting."""

import numpy as np
import pytest

from ludus.collector.weights import TornReadError, WeightBuffers


def weights_of(version: int, size: int = 5) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.full(size, version, np.float32)


def test_published_weights_are_read_as_they_were_written() -> None:
    buffers = WeightBuffers.create(5, collectors=1)

    index = buffers.write(3, weights_of(3))

    assert buffers.read(index, 3).tolist() == [3.0] * 5
    buffers.close()


def test_a_buffer_that_is_being_read_is_not_overwritten_however_many_versions_follow() -> None:
    buffers = WeightBuffers.create(5, collectors=2)
    slow = buffers.write(1, weights_of(1))
    buffers.hold(slow)
    slower = buffers.write(2, weights_of(2))
    buffers.hold(slower)

    for version in range(3, 50):
        assert buffers.write(version, weights_of(version)) not in {slow, slower}

    assert buffers.read(slow, 1).tolist() == [1.0] * 5
    assert buffers.read(slower, 2).tolist() == [2.0] * 5
    buffers.close()


def test_a_released_buffer_is_written_again() -> None:
    buffers = WeightBuffers.create(5, collectors=1)
    first = buffers.write(1, weights_of(1))
    buffers.hold(first)
    buffers.write(2, weights_of(2))
    buffers.release(first)

    used = {buffers.write(version, weights_of(version)) for version in range(3, 9)}

    assert first in used
    buffers.close()


def test_there_are_at_least_three_buffers() -> None:
    buffers = WeightBuffers.create(5, collectors=1)

    assert buffers.layout.buffers == 3
    buffers.close()


def test_reading_another_version_than_the_one_announced_is_noticed() -> None:
    buffers = WeightBuffers.create(5, collectors=1)
    index = buffers.write(3, weights_of(3))

    with pytest.raises(TornReadError):
        buffers.read(index, 2)

    buffers.close()


def test_weights_of_the_wrong_size_are_refused() -> None:
    buffers = WeightBuffers.create(5, collectors=1)

    with pytest.raises(ValueError, match=r"takes \(5,\)"):
        buffers.write(1, weights_of(1, size=6))

    buffers.close()
