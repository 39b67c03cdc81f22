"""The player's end of the side channels: keeps what the trainer says, queues what the game wants to say."""

import struct
from uuid import UUID

ENGINE = UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
PARAMETERS = UUID("534c891e-810f-11ea-a9d0-822485860400")
FLOATS = UUID("60ccf7d0-4f7e-11ea-b238-784f4387d1f7")
STATS = UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
ANALYTICS = UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")

AGGREGATIONS = ("Average", "MostRecent", "Sum", "Histogram")
"""By ML-Agents' numbers."""


def frames(data: bytes) -> list[tuple[UUID, bytes]]:
    """Cut a message's bytes. Raises ValueError where they are cut off, as C# throws."""
    found = []
    while data:
        length = int.from_bytes(data[16:20], "little", signed=True)
        if len(data) < 20 or not 0 <= length <= len(data) - 20:
            raise ValueError(f"side channel bytes are cut off: {data[:40].hex()}")
        found.append((UUID(bytes_le=data[:16]), data[20 : 20 + length]))
        data = data[20 + length :]
    return found


class SideChannels:
    """What came and what waits to go."""

    def __init__(self, raw: tuple[UUID, ...] = ()) -> None:
        self.engine: dict[str, int | float] = {}
        """Engine configuration: the last value of each property."""
        self.parameters: dict[str, list[float | str]] = {}
        """Environment parameters: the kind and its numbers (samplers: the seed first)."""
        self.floats: dict[str, float] = {}
        self.raw: list[tuple[UUID, bytes]] = []
        """Of the channels that this game has registered."""
        self.unknown: list[tuple[UUID, bytes]] = []
        self.analytics: list[str] = []
        """Type URLs of training analytics."""
        self._registered = raw
        self._waiting: list[bytes] = []

    def hear(self, data: bytes) -> None:
        """Take in what a reply carries."""
        for channel, payload in frames(data):
            if channel == ENGINE:
                self._hear_engine(payload)
            elif channel == PARAMETERS:
                self._hear_parameter(payload)
            elif channel == FLOATS:
                key, rest = _string(payload)
                (self.floats[key],) = struct.unpack("<f", rest)
            elif channel == ANALYTICS:
                self.analytics.append(payload[2 : 2 + payload[1]].decode())  # google.protobuf.Any, field 1: the type
            elif channel in self._registered:
                self.raw.append((channel, payload))
            else:
                self.unknown.append((channel, payload))

    def say(self, channel: UUID, payload: bytes) -> None:
        """Queue a frame for the next message."""
        self._waiting.append(channel.bytes_le + struct.pack("<i", len(payload)) + payload)

    def say_stat(self, key: str, value: float, aggregation: int) -> None:
        """Queue a number for the run's metrics."""
        self.say(STATS, struct.pack("<i", len(key)) + key.encode("ascii") + struct.pack("<fi", value, aggregation))

    def say_float(self, key: str, value: float) -> None:
        """Queue a float property."""
        self.say(FLOATS, struct.pack("<i", len(key)) + key.encode("ascii") + struct.pack("<f", value))

    def flush(self) -> bytes:
        """Return what waits, and forget it."""
        data, self._waiting = b"".join(self._waiting), []
        return data

    def _hear_engine(self, payload: bytes) -> None:
        (kind,) = struct.unpack_from("<i", payload)
        if kind == 0:
            self.engine["width"], self.engine["height"] = struct.unpack_from("<ii", payload, 4)
            return
        name, layout = {
            1: ("quality_level", "<i"),
            2: ("time_scale", "<f"),
            3: ("target_frame_rate", "<i"),
            4: ("capture_frame_rate", "<i"),
        }[kind]
        (self.engine[name],) = struct.unpack_from(layout, payload, 4)

    def _hear_parameter(self, payload: bytes) -> None:
        key, rest = _string(payload)
        (kind,) = struct.unpack_from("<i", rest)
        if kind == 0:
            self.parameters[key] = ["constant", *struct.unpack_from("<f", rest, 4)]
            return
        seed, sampler = struct.unpack_from("<ii", rest, 4)
        if sampler == 2:
            (count,) = struct.unpack_from("<i", rest, 12)
            self.parameters[key] = ["multirangeuniform", seed, *struct.unpack_from(f"<{count}f", rest, 16)]
        else:
            self.parameters[key] = [("uniform", "gaussian")[sampler], seed, *struct.unpack_from("<ff", rest, 12)]


def _string(payload: bytes) -> tuple[str, bytes]:
    (length,) = struct.unpack_from("<i", payload)
    return payload[4 : 4 + length].decode("ascii"), payload[4 + length :]
