"""Recordings as files (`.ludusrec`): the messages of one session as they were on the wire.

A file is `MAGIC` and chunks. A chunk is its kind (1 byte), the length of its payload and the payload's CRC-32 (4 bytes
each, little-endian), and the payload. HEADER (JSON) comes first; FRAMES are packed messages, compressed by zlib, behind
an uncompressed `_FRAMES_HEAD`, so that a reader sums up a file without unpacking it; END (JSON) says why the recording
ends; RUN (JSON) is the run's configuration, which the worker appends. Kinds that a reader does not know are left out.

Files only grow. What a process that was killed has not finished, a *torn tail*, ends at the last whole chunk.
"""

import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from ludus.reading import read_record

MAGIC: Final = b"LUDUSREC"
VERSION: Final = 1
SUFFIX: Final = ".ludusrec"
PART: Final = ".part"
"""Follows the name of a file that is still written."""
MOST_BYTES: Final = 256 << 20
"""Largest payload of a chunk, and most bytes that it unpacks to."""
LATEST: Final = 2.0**32
"""Of times in seconds."""
LEVEL: Final = 1
"""Of zlib: the fastest."""
_CHUNK: Final = struct.Struct("<BII")
_FRAMES_HEAD: Final = struct.Struct("<IIdd")
"""Number of frames, their bytes unpacked, times of the first and the last."""
_FRAME: Final = struct.Struct("<dBI")


class BadRecording(ValueError):
    """A file is no recording, or of a newer format. The text is a sentence for people."""


class ChunkKind(IntEnum):
    """Kinds of chunks."""

    HEADER = 1
    FRAMES = 2
    END = 3
    RUN = 4


class Direction(IntFlag):
    """Where a message went, seen from the collector."""

    SENT = 0
    RECEIVED = 1
    BEFORE = 2
    """Flag: the message introduces the session, or one of its behaviors, and came before the recording's other frames;
    messages between are missing."""


class Frame(NamedTuple):
    """One message."""

    seconds: float
    """Since the recording began, monotonic; below 0 for one that came before."""
    direction: int
    """A `Direction`."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """What is known when a recording begins."""

    run_id: str
    attempt: int
    session_id: str
    number: int
    """Of the simulator."""
    carrier: str
    """`native` or `unity`: the protocol of the messages."""
    started_at: float
    """Seconds since 1970."""
    seed: int = 0
    """The run's."""
    version: int = VERSION
    """Of the format."""


@dataclass(frozen=True, slots=True)
class End:
    """Why a recording ends."""

    cause: str
    """`error`: the last seconds before the session ended in one; `session`: it ended otherwise; `limit`: the recording
    is as long as it may be; `stopped`: it was switched off, or the collector ends; `behind`: the disk, or the network
    of an edge collector, is too slow; `torn`: the collector was killed."""
    code: str = ""
    """That of the session's end (`CloseCode`, `left`, `disconnected`); empty where it goes on."""
    reason: str = ""
    behaviors: tuple[str, ...] = ()
    """Names that the simulator has announced."""


TORN: Final = End("torn", reason="the collector was killed while it recorded")


@dataclass(frozen=True, slots=True)
class Summary:
    """A recording in numbers, known without unpacking it."""

    header: Header
    end: End
    frames: int
    seconds: float
    """From the first frame to the last; without those from before."""
    size: int
    """Bytes up to the end of the last whole chunk."""
    torn_bytes: int = 0
    """Bytes behind it, which cannot be read."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """The run's configuration; empty if nothing was appended."""


def pack_chunk(kind: ChunkKind, payload: bytes) -> bytes:
    """Return a chunk."""
    return _CHUNK.pack(kind, len(payload), zlib.crc32(payload)) + payload


def pack_header(header: Header) -> bytes:
    """Return the beginning of a file."""
    return MAGIC + pack_chunk(ChunkKind.HEADER, _json(asdict(header)))


def pack_frames(frames: Iterable[Frame | tuple[float, int, bytes]], began: float) -> bytes:
    """Return frames as a chunk; `began` is the time, on the frames' clock, that becomes 0. There is at least one."""
    listed = list(frames)
    parts: list[bytes] = []
    for seconds, direction, data in listed:
        parts += _FRAME.pack(seconds - began, direction, len(data)), data
    raw = b"".join(parts)
    head = _FRAMES_HEAD.pack(len(listed), len(raw), listed[0][0] - began, listed[-1][0] - began)
    return pack_chunk(ChunkKind.FRAMES, head + zlib.compress(raw, LEVEL))


def pack_end(end: End) -> bytes:
    """Return the end of a recording as a chunk."""
    return pack_chunk(ChunkKind.END, _json(asdict(end)))


def finish(path: Path, run: Mapping[str, Any]) -> Summary:
    """Cut a torn tail off a file, append the run's configuration, and return the summary. Raises BadRecording, OSError.

    Everything that reads the file is to see the same end: a file that lacks one gets it.
    """
    summary = summarize(path)
    if summary.run:  # it is finished
        return summary
    with path.open("r+b") as file:
        file.truncate(summary.size)
        file.seek(summary.size)
        if summary.end is TORN:
            file.write(pack_end(TORN))
        file.write(pack_chunk(ChunkKind.RUN, _json(dict(run))))
        size = file.tell()
    return Summary(summary.header, summary.end, summary.frames, summary.seconds, size, run=run)


def summarize(path: Path) -> Summary:
    """Return the summary of a file. Raises BadRecording, OSError."""
    with path.open("rb") as file:
        recording = Recording(file)
        for _ in recording.chunks(unpack=False):
            pass
        return recording.summary


class Recording:
    """Reads a recording from a file, which stays open and belongs to the caller."""

    def __init__(self, file: BinaryIO) -> None:
        """Read the header. Raises BadRecording."""
        self._file = file
        self._begin = file.tell()
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            raise BadRecording(f"this is no recording: it begins with {magic!r}, a recording with {MAGIC!r}")
        chunk = self._chunk()
        if chunk is None or chunk[0] != ChunkKind.HEADER:
            raise BadRecording("the recording has no whole header: its collector was killed when it began")
        self.header = _record(Header, chunk[1])
        if self.header.version != VERSION:
            raise BadRecording(
                f"the recording has version {self.header.version} of the format, and this release of Ludus reads "
                f"{VERSION}: read it with the release that wrote it"
            )
        self._first = file.tell()
        self._end = TORN
        self._run: Mapping[str, Any] = {}
        self._frames = 0
        self._times = math.inf, -math.inf
        self._size = self._first
        self._torn_bytes = 0

    @property
    def summary(self) -> Summary:
        """The summary of what was read so far: after `chunks`, of everything."""
        first, last = self._times
        seconds = max(last - first, 0.0) if self._frames else 0.0
        size = self._size - self._begin
        return Summary(self.header, self._end, self._frames, seconds, size, self._torn_bytes, self._run)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames in their order, from the first one. A torn tail ends them. Raises BadRecording."""
        for frames in self.chunks():
            yield from frames

    def chunks(self, *, unpack: bool = True) -> Iterator[list[Frame]]:
        """Yield the frames of one chunk after the other, from the first one; empty lists if they are not unpacked.

        Raises BadRecording.
        """
        self._file.seek(self._first)
        self._end, self._run, self._frames, self._times = TORN, {}, 0, (math.inf, -math.inf)
        while (chunk := self._chunk()) is not None:
            kind, payload = chunk
            if kind == ChunkKind.FRAMES:
                count, size, first, last = _frames_head(payload)
                self._frames += count
                self._times = min(self._times[0], max(first, 0.0)), max(self._times[1], last)
                yield _unpack(payload[_FRAMES_HEAD.size :], count, size) if unpack else []
            elif kind == ChunkKind.END:
                self._end = _record(End, payload)
            elif kind == ChunkKind.RUN:
                self._run = _object(payload)
            self._size = self._file.tell()
        self._torn_bytes = self._rest()

    def _chunk(self) -> tuple[int, bytes] | None:
        """Return kind and payload of the next chunk; None at the end, and where the rest cannot be read."""
        head = self._file.read(_CHUNK.size)
        if len(head) < _CHUNK.size:
            return None
        kind, length, crc = _CHUNK.unpack(head)
        if length > MOST_BYTES:
            return None
        payload = self._file.read(length)
        return (kind, payload) if len(payload) == length and zlib.crc32(payload) == crc else None

    def _rest(self) -> int:
        self._file.seek(0, 2)
        return self._file.tell() - self._size


def _json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


def _object(payload: bytes) -> Mapping[str, Any]:
    with suppress(ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        values = json.loads(payload)
        if isinstance(values, dict):
            return values
    raise BadRecording("a chunk is no JSON object: the file is damaged, or was not written by Ludus")


def _record(kind: type[Any], payload: bytes) -> Any:
    values = _object(payload)
    try:
        record = read_record(kind, values)
    except (ValueError, TypeError, KeyError) as error:
        raise BadRecording(f"the recording's {kind.__name__.lower()} cannot be read: {error}") from None
    for name, example in asdict(_EXAMPLES[kind]).items():
        value = getattr(record, name)
        if not _is_like(value, example):
            raise BadRecording(f"the recording's {kind.__name__.lower()} has {name} {str(value)[:80]!r}")
    return record


def _is_like(value: object, example: object) -> bool:
    """Whether a value is of the kind of an example, and in a range that every reader can store and show."""
    if isinstance(example, tuple):
        return isinstance(value, tuple) and all(isinstance(text, str) for text in value)
    if isinstance(example, str) or isinstance(value, bool):
        return isinstance(value, str)
    if isinstance(example, float):
        return isinstance(value, int | float) and 0 <= value <= LATEST
    return isinstance(value, int) and -1 <= value < 2**63


_EXAMPLES: Final[dict[type, Any]] = {Header: Header("", 0, "", 0, "", 0.0), End: TORN}


def _frames_head(payload: bytes) -> tuple[int, int, float, float]:
    if len(payload) < _FRAMES_HEAD.size:
        raise BadRecording("a chunk of frames has no head")
    count, size, first, last = _FRAMES_HEAD.unpack_from(payload)
    if not (abs(first) <= LATEST and abs(last) <= LATEST) or size > MOST_BYTES or count * _FRAME.size > size:
        raise BadRecording(f"a chunk of frames says that it has {count} in {size} bytes")
    return count, size, first, last


def _unpack(packed: bytes, count: int, size: int) -> list[Frame]:
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise BadRecording(f"a chunk of frames cannot be unpacked: {error}") from None
    if len(raw) != size:
        raise BadRecording(f"a chunk of frames has not the {size} bytes that it says")
    frames, at = [], 0
    for _ in range(count):
        if at + _FRAME.size > size:
            break
        seconds, direction, length = _FRAME.unpack_from(raw, at)
        at += _FRAME.size
        frames.append(Frame(seconds, direction, raw[at : at + length]))
        at += length
    if at != size or len(frames) != count:
        raise BadRecording(f"the frames of a chunk have not the lengths that they say; it should have {count}")
    return frames
