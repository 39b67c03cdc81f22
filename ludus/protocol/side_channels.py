"""The trainer's end of ML-Agents' side channels: messages to a Unity player and from it.

Beside agents and actions every message of the Unity protocol carries bytes: frames `[channel's UUID, 16 bytes as in
.NET][int32 length][payload]`, one behind the other, the same in both directions. All numbers are little-endian; a
string is its int32 length and ASCII. A reader that stands at the end of a payload takes zero or the empty string, and
what stands behind the last field is not read, as in ML-Agents.
"""

import math
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, assert_never
from uuid import UUID

from ludus.protocol.batches import Aggregation, StatValue
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, ParameterValue, Uniform
from ludus.protocol.specs import MAX_NAME_BYTES, is_name

ENGINE_CONFIGURATION: Final = UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
"""Trainer to player: the window, the speed."""
ENVIRONMENT_PARAMETERS: Final = UUID("534c891e-810f-11ea-a9d0-822485860400")
"""Trainer to player: numbers that the game looks up by name."""
FLOAT_PROPERTIES: Final = UUID("60ccf7d0-4f7e-11ea-b238-784f4387d1f7")
"""Both ways: named numbers, for the game's own use."""
STATS: Final = UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
"""Player to trainer: numbers for the run's metrics."""
TRAINING_ANALYTICS: Final = UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")
"""Trainer to player: ML-Agents' analytics of a training for Unity. Ludus sends none."""

RUNS_CHANNELS: Final = frozenset({ENGINE_CONFIGURATION, ENVIRONMENT_PARAMETERS, STATS, TRAINING_ANALYTICS})
"""Channels of the training. Float properties and the raw bytes of all other channels belong to the game."""

MAX_FRAMES: Final = 1 << 17
"""Frames of one message: more than a message of 4 MiB, ML-Agents' longest, holds stats. ML-Agents has no such limit;
without it, a message of empty frames would block all other sessions.
"""

_TRAINERS: Final = {
    ENGINE_CONFIGURATION: "the engine configuration",
    ENVIRONMENT_PARAMETERS: "the environment parameters",
}
"""Channels that only the trainer writes, and their contents."""
_AGGREGATIONS: Final = (Aggregation.AVERAGE, Aggregation.MOST_RECENT, Aggregation.SUM, Aggregation.HISTOGRAM)
"""By ML-Agents' numbers, which begin at 0."""

_ID_BYTES: Final = 16
_INT32: Final = struct.Struct("<i")
_FLOAT32: Final = struct.Struct("<f")


class Frame(NamedTuple):
    """One message of one channel."""

    channel: UUID
    payload: bytes


@dataclass(frozen=True)
class EngineConfiguration:
    """Settings of the player's engine. The defaults are those of `mlagents-learn`."""

    width: int = 84
    """Pixels."""
    height: int = 84
    """Pixels."""
    quality_level: int = 5
    """Index of one of the player's quality levels."""
    time_scale: float = 20.0
    """Game seconds a second; the player raises it to 1, an Editor lowers it to 100."""
    target_frame_rate: int = -1
    """Frames per second; -1: no limit."""
    capture_frame_rate: int = 60
    """Frames a second of game time; 0: game time follows the clock."""


@dataclass(frozen=True)
class Received:
    """The contents of a player's message, channel by channel, in its order."""

    stats: list[StatValue] = field(default_factory=list)
    float_properties: dict[str, float] = field(default_factory=dict)
    """By key; of several numbers the last."""
    raw: list[Frame] = field(default_factory=list)
    """Frames of channels that only the game and its caller know: raw bytes."""
    refused: list[str] = field(default_factory=list)
    """Stats that cannot become metrics and fields that cannot be read, in a sentence each: they end no session."""


def join(frames: Iterable[Frame]) -> bytes:
    """Return the bytes of a message's `side_channel`."""
    return b"".join(
        part
        for channel, payload in frames
        for part in (channel.bytes_le, _int32(len(payload), "a payload's length"), payload)
    )


def split(data: bytes) -> list[Frame]:
    """Return the frames of a message's `side_channel`. Raises ProtocolError(bad_side_channel)."""
    frames: list[Frame] = []
    channels: dict[bytes, UUID] = {}
    offset = 0
    while offset < len(data):
        if len(frames) == MAX_FRAMES:
            raise _bad(f"a message has more than {MAX_FRAMES} frames")
        start = offset + _ID_BYTES + _INT32.size
        if start > len(data):
            raise _bad(f"frame {len(frames)} is cut off in its head, at byte {len(data)} of the message")
        guid = data[offset : offset + _ID_BYTES]
        channel = channels.get(guid) or channels.setdefault(guid, UUID(bytes_le=guid))
        (length,) = _INT32.unpack_from(data, offset + _ID_BYTES)
        if not 0 <= length <= len(data) - start:
            raise _bad(
                f"frame {len(frames)}, of channel {channel}, announces {length} bytes; {len(data) - start} are left"
            )
        offset = start + length
        frames.append(Frame(channel, data[start:offset]))
    return frames


def read(data: bytes) -> Received:
    """Decode `side_channel` of a player's message.

    Raises ProtocolError(bad_side_channel) for frames that cannot be told apart and for channels that only the trainer
    writes. Training analytics are not looked at.
    """
    received = Received()
    for frame in split(data):
        if frame.channel in {STATS, FLOAT_PROPERTIES}:
            try:
                _read_number(frame, received)
            except ProtocolError as error:
                received.refused.append(error.message)
        elif (content := _TRAINERS.get(frame.channel)) is not None:
            raise _bad(f"the player wrote on the channel of {content} ({frame.channel}), which only the trainer writes")
        elif frame.channel != TRAINING_ANALYTICS:
            received.raw.append(frame)
    return received


def engine_configuration(configuration: EngineConfiguration) -> list[Frame]:
    """Return one frame per property, in ML-Agents' order. Raises ValueError for numbers that the player cannot hold."""
    payloads = (
        _int32(0, "") + _int32(configuration.width, "width") + _int32(configuration.height, "height"),
        _int32(1, "") + _int32(configuration.quality_level, "quality_level"),
        _int32(2, "") + _float32(configuration.time_scale, "time_scale"),
        _int32(3, "") + _int32(configuration.target_frame_rate, "target_frame_rate"),
        _int32(4, "") + _int32(configuration.capture_frame_rate, "capture_frame_rate"),
    )
    return [Frame(ENGINE_CONFIGURATION, payload) for payload in payloads]


def environment_parameter(key: str, value: ParameterValue) -> Frame:
    """Set one parameter. Raises ValueError for a key that is not ASCII and for numbers that the player cannot hold."""
    owner = f"environment parameter {key!r}"
    return Frame(ENVIRONMENT_PARAMETERS, _string(key, owner) + _parameter(value, owner))


def float_property(key: str, value: float) -> Frame:
    """Set one float property. Raises ValueError as `environment_parameter` does."""
    owner = f"float property {key!r}"
    return Frame(FLOAT_PROPERTIES, _string(key, owner) + _float32(value, owner))


def _parameter(value: ParameterValue, owner: str) -> bytes:
    match value:
        case Constant():
            return _int32(0, owner) + _float32(value.value, owner)
        case Uniform():
            return _sampler(value.seed, 0, owner) + _float32(value.minimum, owner) + _float32(value.maximum, owner)
        case Gaussian():
            return _sampler(value.seed, 1, owner) + _float32(value.mean, owner) + _float32(value.st_dev, owner)
        case MultiRangeUniform():
            bounds = [_float32(bound, owner) for interval in value.intervals for bound in interval]
            return _sampler(value.seed, 2, owner) + _int32(len(bounds), owner) + b"".join(bounds)
        case _:
            assert_never(value)


def _sampler(seed: int, kind: int, owner: str) -> bytes:
    return _int32(1, owner) + _int32(seed, f"{owner}, seed") + _int32(kind, owner)


def _int32(number: int, owner: str) -> bytes:
    try:
        return _INT32.pack(number)
    except struct.error:
        raise ValueError(
            f"{owner}: {number} is not an integer of 32 bits, which is what a Unity player reads"
        ) from None


def _float32(number: float, owner: str) -> bytes:
    try:
        return _FLOAT32.pack(number)
    except OverflowError:
        raise ValueError(f"{owner}: {number} is not a float of 32 bits, which is what a Unity player reads") from None


def _string(text: str, owner: str) -> bytes:
    if not text.isascii():
        raise ValueError(f"{owner}: the name is not ASCII, which is what a Unity player reads")
    return _int32(len(text), owner) + text.encode("ascii")


def _read_number(frame: Frame, received: Received) -> None:
    if frame.channel == FLOAT_PROPERTIES:
        reader = _Reader(frame.payload, "the channel of float properties")
        key = reader.string("key")
        received.float_properties[key] = reader.float32("value")
        return
    reader = _Reader(frame.payload, "the channel of stats")
    key, value, aggregation = reader.string("key"), reader.float32("value"), reader.int32("aggregation")
    if not is_name(key):
        received.refused.append(f"a stat's key must have 1 to {MAX_NAME_BYTES} printable bytes")
    elif not 0 <= aggregation < len(_AGGREGATIONS):
        received.refused.append(f"stat {key!r} has no aggregation {aggregation}")
    elif not math.isfinite(value):
        received.refused.append(f"stat {key!r} is {value}")
    else:
        received.stats.append(StatValue(key, value, _AGGREGATIONS[aggregation]))


class _Reader:
    """Takes one field after the other from a payload."""

    def __init__(self, payload: bytes, channel: str) -> None:
        self._payload = payload
        self._channel = channel
        self._offset = 0

    def int32(self, what: str) -> int:
        return int(_INT32.unpack(self._take(_INT32.size, what))[0]) if self._left() else 0

    def float32(self, what: str) -> float:
        return float(_FLOAT32.unpack(self._take(_FLOAT32.size, what))[0]) if self._left() else 0.0

    def string(self, what: str) -> str:
        length = self.int32(what)
        if length < 0:
            raise _bad(f"{self._channel}: {what} has a length of {length}")
        try:
            return self._take(length, what).decode("ascii")
        except UnicodeDecodeError:
            raise _bad(f"{self._channel}: {what} is not ASCII") from None

    def _take(self, size: int, what: str) -> bytes:
        if size > self._left():
            raise _bad(f"{self._channel}: {what} needs {size} bytes; {self._left()} are left of {len(self._payload)}")
        self._offset += size
        return self._payload[self._offset - size : self._offset]

    def _left(self) -> int:
        return len(self._payload) - self._offset


def _bad(problem: str) -> ProtocolError:
    return ProtocolError(CloseCode.BAD_SIDE_CHANNEL, problem)


_RESOLUTION: Final = struct.Struct("<iii")
"""Kind of property 0, width, height."""
_FRAME_OF: Final = {
    "width": 0,
    "height": 0,
    "quality_level": 1,
    "time_scale": 2,
    "target_frame_rate": 3,
    "capture_frame_rate": 4,
}
"""Property -> its frame, of the five frames of an engine configuration."""


@dataclass(frozen=True)
class EngineOverrides:
    """Engine settings that were typed on the game machine: they override those of the run. None: as the run says."""

    width: int | None = None
    height: int | None = None
    quality_level: int | None = None
    time_scale: float | None = None
    target_frame_rate: int | None = None
    capture_frame_rate: int | None = None

    def __bool__(self) -> bool:
        """Whether anything was typed."""
        return bool(self._typed())

    def frames(self, run_frames: bytes) -> bytes:
        """Return frames to append to those of the run: one for each property that was typed.

        Width and height share a frame, so that one that was not typed is taken from the run.
        """
        typed = self._typed()
        all_frames = engine_configuration(replace(_resolution(run_frames), **typed))
        return join(all_frames[index] for index in sorted({_FRAME_OF[name] for name in typed}))

    def _typed(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def _resolution(run_frames: bytes) -> EngineConfiguration:
    """Return a configuration whose width and height are those in the frames, or else the defaults."""
    configuration = EngineConfiguration()
    try:
        frames = split(run_frames)
    except ProtocolError:
        return configuration
    for channel, payload in frames:
        if channel == ENGINE_CONFIGURATION and len(payload) == _RESOLUTION.size:
            kind, width, height = _RESOLUTION.unpack(payload)
            if kind == 0:
                configuration = EngineConfiguration(width=width, height=height)
    return configuration
