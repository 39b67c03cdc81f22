"""Frames on the stream between an edge collector and its attempt (`proto/ludus/v1/collector.proto`)."""

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError

from ludus.collector.channel import Frame
from ludus.protocol import collector_pb2 as pb

PART_BYTES = 1 << 20
"""Longer frames travel in parts of this size: no relay on the way holds more of one."""
MAX_FRAME_BYTES = 256 << 20
"""Longer frames are refused."""


class BadFrame(ValueError):
    """The bytes are not a frame, or the frame is too long."""


def pack(kind: int, payload: bytes, contents: Sequence[bytes] = ()) -> Iterator[bytes]:
    """Yield the messages of a frame. Raises BadFrame if it is too long."""
    data = pb.CollectorFrame(kind=kind, payload=payload, contents=contents).SerializeToString()
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
        return Frame(frame.kind, frame.payload, contents=tuple(frame.contents))
