"""Frames on the stream between an edge collector and its attempt (`proto/ludus/v1/collector.proto`)."""

import zlib
from collections.abc import Container, Iterator, Sequence

from google.protobuf.message import DecodeError

from ludus.collector.channel import Frame
from ludus.protocol import collector_pb2 as pb

PART_BYTES = 1 << 20
"""Longer frames travel in parts of this size: no relay on the way holds more of one."""
MAX_FRAME_BYTES = 256 << 20
"""Longer frames are refused."""


class BadFrame(ValueError):
    """The bytes are not a frame, or the frame is too long."""


def pack(kind: int, payload: bytes, contents: Sequence[bytes] = (), compressed: Sequence[int] = ()) -> Iterator[bytes]:
    """Yield the messages of a frame. Raises BadFrame if it is too long.

    `compressed` are the numbers of those contents that are zlib streams.
    """
    frame = pb.CollectorFrame(kind=kind, payload=payload, contents=contents, compressed=compressed)
    data = frame.SerializeToString()
    if len(data) > MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of kind {kind} has {len(data):,} bytes, at most {MAX_FRAME_BYTES:,} are possible")
    for begin in range(0, len(data), PART_BYTES):
        end = begin + PART_BYTES
        yield pb.CollectorPart(data=data[begin:end], more=end < len(data)).SerializeToString()


class FrameAssembler:
    """Joins the messages of one direction of a stream."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def take(self, message: bytes) -> Frame | None:
        """Return the frame that a message completes, if it does. Raises BadFrame."""
        try:
            part = pb.CollectorPart.FromString(message)
            self._size += len(part.data)
            if self._size > MAX_FRAME_BYTES:
                raise BadFrame(f"a frame has more than {MAX_FRAME_BYTES:,} bytes")
            if part.more:
                self._parts.append(part.data)
                return None
            data = b"".join((*self._parts, part.data)) if self._parts else part.data
            self._parts.clear()
            self._size = 0
            frame = pb.CollectorFrame.FromString(data)
        except DecodeError:
            raise BadFrame(f"a message of {len(message):,} bytes is no part of a frame") from None
        return Frame(frame.kind, frame.payload, contents=tuple(_decompress(frame.contents, set(frame.compressed))))


def _decompress(contents: Sequence[bytes], compressed: Container[int]) -> Iterator[bytes]:
    """Yield the contents of a frame. Raises BadFrame, and never makes more bytes of it than a frame may have."""
    left = MAX_FRAME_BYTES
    for number, data in enumerate(contents):
        if number not in compressed:
            yield data
            continue
        stream = zlib.decompressobj()
        try:
            content = stream.decompress(data, left + 1)
        except zlib.error as error:
            raise BadFrame(f"a content of {len(data):,} bytes cannot be decompressed: {error}") from None
        left -= len(content)
        if left < 0:
            raise BadFrame(f"the contents of a frame have more than {MAX_FRAME_BYTES:,} bytes")
        if not stream.eof or stream.unused_data:
            raise BadFrame(f"a content of {len(data):,} bytes is not one whole zlib stream")
        yield content
