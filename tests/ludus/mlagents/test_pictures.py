"""Pictures in recordings become the channels that the sensor had."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from ludus.mlagents.pictures import PictureError, decode_pictures, encode_pictures


def png(pixels: np.ndarray, form: str = "PNG") -> bytes:
    """Of (height, width, 3), (height, width, 4) with alpha, or (height, width) for shades of grey."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, form)
    return content.getvalue()


def noise(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def test_three_channels_come_first() -> None:
    pixels = noise(4, 5, 3)

    np.testing.assert_array_equal(decode_pictures(png(pixels), (3, 4, 5), ()), pixels.transpose(2, 0, 1))


def test_several_pictures_are_one_image_whose_surplus_channels_are_dropped() -> None:
    first, second = noise(4, 5, 3), noise(4, 5, 3, seed=2)

    image = decode_pictures(png(first) + png(second), (5, 4, 5), ())

    np.testing.assert_array_equal(image, np.concatenate([first, second], 2).transpose(2, 0, 1)[:5])


def test_one_channel_is_the_mean_of_the_picture() -> None:
    pixels = np.full((2, 2, 3), [10, 20, 60], np.uint8)

    assert decode_pictures(png(pixels), (1, 2, 2), ()).tolist() == [[[30, 30], [30, 30]]]


def test_a_grey_picture_counts_as_three_equal_channels() -> None:
    pixels = noise(4, 5)

    np.testing.assert_array_equal(decode_pictures(png(pixels), (1, 4, 5), ())[0], pixels)


@pytest.mark.parametrize("mapping", [(), (0, 1, 2, 3)])
def test_alpha_is_a_channel_where_the_sensor_has_four(mapping: tuple[int, ...]) -> None:
    pixels = noise(4, 5, 4)

    np.testing.assert_array_equal(decode_pictures(png(pixels), (4, 4, 5), mapping), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("mapping", [(), (0, 1, 2)])
def test_alpha_is_left_out_where_the_sensor_has_three(mapping: tuple[int, ...]) -> None:
    pixels = noise(4, 5, 4)

    np.testing.assert_array_equal(decode_pictures(png(pixels), (3, 4, 5), mapping), pixels[:, :, :3].transpose(2, 0, 1))


def test_alpha_does_not_count_for_a_shade_of_grey() -> None:
    pixels = np.full((2, 2, 4), [10, 20, 60, 255], np.uint8)

    assert decode_pictures(png(pixels), (1, 2, 2), ()).tolist() == [[[30, 30], [30, 30]]]


def test_a_sensor_of_the_games_own_may_send_jpeg() -> None:
    pixels = np.full((8, 8, 3), 77, np.uint8)

    image = decode_pictures(png(pixels, "JPEG"), (3, 8, 8), ())

    np.testing.assert_allclose(image, 77, atol=2)


def test_a_mapping_averages_and_leaves_out() -> None:
    pixels = np.full((2, 2, 3), [10, 20, 60], np.uint8)

    image = decode_pictures(png(pixels) * 2, (2, 2, 2), [0, 0, -1, 1, -1, -1])

    assert image[:, 0, 0].tolist() == [15, 10]


@pytest.mark.parametrize(
    ("content", "shape", "mapping", "message"),
    [
        (b"JPEG", (3, 4, 5), (), "hold neither a PNG nor a JPEG file"),
        (png(noise(4, 5, 3), "BMP"), (3, 4, 5), (), "hold neither a PNG nor a JPEG file"),
        (png(noise(4, 5, 3))[:60], (3, 4, 5), (), "its picture is damaged"),
        (png(noise(4, 6, 3)), (3, 4, 5), (), r"4 x 6 pixels, not \(4, 5\)"),
        (png(noise(4, 5, 3)), (6, 4, 5), (), "have 3 channels, its shape .* needs 6"),
        (png(noise(4, 5, 3)), (3, 4, 5), (0, 1), "names 2 channels, its pictures have 3"),
        (png(noise(4, 5, 3)), (2, 4, 5), (0, 2, 2), r"fills the channels \[0, 2\]"),
    ],
)
def test_what_is_wrong_with_a_picture_is_said(
    content: bytes, shape: tuple[int, int, int], mapping: tuple[int, ...], message: str
) -> None:
    with pytest.raises(PictureError, match=message):
        decode_pictures(content, shape, mapping)


def test_a_picture_of_another_size_is_not_decoded() -> None:
    """A few kilobytes that would be 300 megabytes: the size in the head is compared first."""
    bomb = png(np.zeros((10_000, 10_000), np.uint8))

    with pytest.raises(PictureError):
        decode_pictures(bomb, (3, 84, 84), ())


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode_pictures(noise(3, 4, 5))
    monkeypatch.setitem(sys.modules, "PIL", None)

    with pytest.raises(PictureError, match=r"pip install pillow"):
        decode_pictures(content, (3, 4, 5), ())
