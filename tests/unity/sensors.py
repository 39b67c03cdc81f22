"""What an agent's sensors show, and how it is said: plain numbers or PNG files, channels first or last."""

import struct
import zlib
from collections.abc import Container

import numpy as np
import numpy.typing as npt

from ludus.protocol.mlagents import agent_pb2
from tests.unity.descriptions import Package, Sensor

Floats = npt.NDArray[np.float32]

CHANNELS = 3
"""Of each PNG file."""


def render(sensor: Sensor, signal: Floats, rng: np.random.Generator) -> Floats:
    """Return what the sensor sees, in its shape: the signal over and over, or noise. Images are multiples of 1/255."""
    if sensor.kind == "buffer":
        entities = np.zeros(sensor.shape, np.float32)
        seen = rng.integers(1, sensor.shape[0] + 1)
        entities[:seen] = (
            np.resize(signal, sensor.shape[1]) if sensor.shows_cue else rng.uniform(-1, 1, sensor.shape[1])
        )
        return entities
    values = np.resize(signal, sensor.shape) if sensor.shows_cue else rng.uniform(-1, 1, sensor.shape)
    if sensor.kind == "vector":
        return values.astype(np.float32)
    if sensor.black:
        return np.zeros(sensor.shape, np.float32)
    return (np.rint((values + 1) / 2 * 255) / 255).astype(np.float32)


def encode(sensor: Sensor, values: Floats, package: Package, trainer: Container[str]) -> agent_pb2.ObservationProto:
    """Say what a sensor sees, as this package does to a trainer with these capabilities."""
    observation = agent_pb2.ObservationProto()
    image = len(sensor.shape) == CHANNELS
    if package.has("variableLengthObservation"):  # of API 1.5, as everything that describes a sensor
        observation.name = sensor.name
        observation.observation_type = agent_pb2.GOAL_SIGNAL if sensor.goal else agent_pb2.DEFAULT
        observation.dimension_properties.extend(_properties(sensor, package))
    elif sensor.kind == "buffer":
        raise ValueError(f"package {package.version} has no observations of variable length")
    if sensor.kind == "buffer" and "variableLengthObservation" not in trainer:
        raise ValueError("the trainer has no observations of variable length; Unity throws here")
    ordered = values if not image or package.channels_first else values.transpose(1, 2, 0)
    observation.shape.extend(ordered.shape)
    if sensor.kind == "png" and _can_compress(sensor, package, trainer):
        observation.compression_type = agent_pb2.PNG
        observation.compressed_data = compress(values, sensor.mapping)
        observation.compressed_channel_mapping.extend(sensor.mapping)
    else:
        observation.compression_type = agent_pb2.NONE
        observation.float_data.data.extend(ordered.ravel().tolist())
    return observation


def compress(values: Floats, mapping: tuple[int, ...]) -> bytes:
    """Return the PNG files of an image, (channels, height, width) in [0, 1]: three channels each, one behind the other.

    Without a mapping one channel is repeated three times, and several are padded with black.
    """
    if not mapping:
        mapping = (0, 0, 0) if len(values) == 1 else tuple(range(len(values)))
        mapping += (-1,) * (-len(mapping) % CHANNELS)
    pixels = np.rint(values * 255).astype(np.uint8)
    layers = [pixels[channel] if channel >= 0 else np.zeros_like(pixels[0]) for channel in mapping]
    return b"".join(
        png(np.stack(layers[start : start + CHANNELS], axis=-1)) for start in range(0, len(layers), CHANNELS)
    )


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return a PNG file of (height, width, 3): 8 bits, RGB, no filters."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\x00" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _properties(sensor: Sensor, package: Package) -> tuple[int, ...]:
    if sensor.kind == "vector":
        return (1,)
    if sensor.kind == "buffer":
        return (4, 1)
    return (1, 2, 2) if package.channels_first else (2, 2, 1)


def _can_compress(sensor: Sensor, package: Package, trainer: Container[str]) -> bool:
    def both(capability: str) -> bool:
        return package.has(capability) and capability in trainer

    trivial = not sensor.mapping or sensor.mapping == tuple(range(len(sensor.mapping)))
    return (sensor.shape[0] <= CHANNELS or both("concatenatedPngObservations")) and (
        trivial or both("compressedChannelMapping")
    )
