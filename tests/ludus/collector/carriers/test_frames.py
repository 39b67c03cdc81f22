"""Frames between edge collector and attempt: whole, in parts, compressed, and what is none."""

import zlib
from collections.abc import Sequence

import pytest

from ludus.collector.carriers import frames
from ludus.collector.carriers.frames import BadFrame, FrameAssembler, pack
from ludus.collector.channel import Frame
from ludus.protocol import collector_pb2 as pb


def carried(contents: Sequence[bytes], compressed: Sequence[int] = ()) -> Frame:
    assembler = FrameAssembler()
    (*before, frame) = [assembler.take(part) for part in pack(2, b"payload", contents, compressed)]
    assert before == [None] * len(before)
    assert frame is not None
    return frame


def test_a_frame_comes_out_as_it_went_in() -> None:
    contents = (b"", b"abc", bytes(3 * frames.PART_BYTES))

    frame = carried(contents)

    assert (frame.kind, frame.payload, frame.contents) == (2, b"payload", contents)


def test_compressed_contents_come_out_as_they_were() -> None:
    contents = (b"", b"abc" * 1000, bytes(3 * frames.PART_BYTES))

    sent = [contents[0], zlib.compress(contents[1]), zlib.compress(contents[2])]

    assert carried(sent, [1, 2]).contents == contents


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        pytest.param(b"nothing of the kind", "cannot be decompressed", id="not-compressed"),
        pytest.param(zlib.compress(b"abc" * 1000)[:-6], "not one whole zlib stream", id="cut-off"),
        pytest.param(zlib.compress(b"abc") + b"more", "not one whole zlib stream", id="with-something-behind"),
    ],
)
def test_what_is_no_zlib_stream_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(BadFrame, match=sentence):
        carried([data], [0])


def test_a_stream_that_would_become_larger_than_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100_000)

    assert len(carried([zlib.compress(bytes(50_000))] * 2, [0, 1]).contents) == 2
    with pytest.raises(BadFrame, match="more than 100,000 bytes"):
        carried([zlib.compress(bytes(50_001))] * 2, [0, 1])


def test_a_message_that_is_no_part_is_refused() -> None:
    with pytest.raises(BadFrame, match="no part of a frame"):
        FrameAssembler().take(b"\xff\xff\xff")
    with pytest.raises(BadFrame, match="no part of a frame"):
        FrameAssembler().take(pb.CollectorPart(data=b"\xff\xff\xff").SerializeToString())
