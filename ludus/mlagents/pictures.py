"""Pictures in ML-Agents' messages: one or more PNG files, one behind the other, and which channel is which.

The numbers stay as in the files, uint8 from 0 to 255; ML-Agents divides by 255 at once, a Ludus network does
so on the device. Where several decoded channels are averaged into one the mean is rounded to a whole number.
Sensors of a game's own may send JPEG, or PNG with an alpha channel: ML-Agents decodes both, and counts alpha.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ludus.protocol.batches import Bytes

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = 3
"""Of each file, without alpha."""
_WITH_ALPHA = ("RGBA", "LA")
"""Pillow's modes whose last channel is alpha."""


class PictureError(ValueError):
    """Pictures cannot be decoded. The message is a phrase that begins with "its" or "it"."""


def decode_pictures(content: bytes, shape: tuple[int, int, int], mapping: Sequence[int]) -> Bytes:
    """Return an image of this shape, (channels, height, width). Raises `PictureError`.

    `mapping` names the output channel of each decoded one, negative: none. Without it an image of one channel is the
    mean of the first file's, and any other takes the decoded channels in their order.
    """
    files = [_decode(part, shape[1:]) for part in _parts(content)]
    if shape[0] == 1 or len(mapping) == _CHANNELS * len(files):
        files = [channels[:_CHANNELS] for channels in files]
    channels = np.concatenate(files)  # (decoded, height, width)
    if mapping:
        if len(mapping) != len(channels):
            raise PictureError(f"its channel mapping names {len(mapping)} channels, its pictures have {len(channels)}")
        used = sorted({output for output in mapping if output >= 0})
        if used != list(range(shape[0])):
            raise PictureError(f"its channel mapping fills the channels {used}, its shape is {shape}")
        return np.stack([_mean(channels[np.array(mapping) == output]) for output in used])
    if shape[0] == 1:
        return _mean(files[0])[None]
    if len(channels) < shape[0]:
        raise PictureError(f"its pictures have {len(channels)} channels, its shape {shape} needs {shape[0]}")
    return channels[: shape[0]]


def encode_pictures(image: Bytes) -> bytes:
    """Return the PNG files of an image, (channels, height, width): three channels each, the last one padded."""
    picture = _pillow()
    if len(image) == 1:
        image = np.repeat(image, _CHANNELS, 0)
    padding = -len(image) % _CHANNELS
    padded = np.concatenate([image, np.zeros((padding, *image.shape[1:]), np.uint8)])
    content = io.BytesIO()
    for start in range(0, len(padded), _CHANNELS):
        layers = np.ascontiguousarray(padded[start : start + _CHANNELS].transpose(1, 2, 0))
        picture.fromarray(layers).save(content, "PNG")
    return content.getvalue()


def _pillow() -> Any:
    try:
        from PIL import Image  # noqa: PLC0415  an optional package
    except ModuleNotFoundError:
        raise PictureError("it holds pictures (PNG), and pillow is not installed here; pip install pillow") from None
    return Image


def _parts(content: bytes) -> Iterator[bytes]:
    """Cut at every PNG signature after the first file's."""
    starts = [0]
    while (following := content.find(_SIGNATURE, starts[-1] + 1)) >= 0:
        starts.append(following)
    for start, stop in zip(starts, [*starts[1:], len(content)], strict=True):
        yield content[start:stop]


def _decode(part: bytes, size: tuple[int, int]) -> Bytes:
    """Return (channels, height, width). The size is compared before the pixels are decoded."""
    picture = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", picture.DecompressionBombWarning)
            with picture.open(io.BytesIO(part), formats=["PNG", "JPEG"]) as image:
                if (image.height, image.width) != size:
                    raise PictureError(f"its picture has {image.height} x {image.width} pixels, not {size}")
                pixels = np.asarray(image if image.mode in _WITH_ALPHA else image.convert("RGB"), np.uint8)
    except picture.UnidentifiedImageError:
        raise PictureError("its compressed data hold neither a PNG nor a JPEG file") from None
    except (
        OSError,
        SyntaxError,
        ValueError,
        picture.DecompressionBombError,
        picture.DecompressionBombWarning,
    ) as error:
        if isinstance(error, PictureError):
            raise
        raise PictureError(f"its picture is damaged ({error})") from None
    return pixels.transpose(2, 0, 1)


def _mean(channels: Bytes) -> Bytes:
    mean: Bytes = np.rint(channels.mean(0, dtype=np.float32)).astype(np.uint8)
    return mean
