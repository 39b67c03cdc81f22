"""Recordings as files: what is written is read, whatever is cut off or spoiled, and no file does harm."""

import io
import json
import zlib
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.play.recordings.file import (
    MAGIC,
    TORN,
    BadRecording,
    ChunkKind,
    End,
    Frame,
    Header,
    Recording,
    finish,
    pack_chunk,
    pack_end,
    pack_frames,
    pack_header,
    summarize,
)
from tests.examples import examples

HEADER = Header("run_1", 2, "session-1", 3, "native", 1_700_000_000.0, 7)
END = End("error", "not_finite", "an observation is NaN", ("Walker?team=0",))
FRAMES = st.lists(st.builds(Frame, st.floats(-100, 1e6), st.integers(0, 3), st.binary(max_size=200)), max_size=8)


def content(*parts: list[Frame], end: End | None = END) -> bytes:
    """Return a file with a chunk for each part."""
    chunks = [pack_frames(part, 0.0) for part in parts if part]
    return pack_header(HEADER) + b"".join(chunks) + (b"" if end is None else pack_end(end))


def refused_or_read(data: bytes) -> list[Frame]:
    """Return the frames of a file; none where it is refused, which is the only error."""
    with suppress(BadRecording):
        return read(data)[0]
    return []


def read(data: bytes) -> tuple[list[Frame], Recording]:
    recording = Recording(io.BytesIO(data))
    return list(recording.frames()), recording


@settings(max_examples=examples(50))
@given(st.lists(FRAMES, max_size=4))
def test_what_is_written_is_read(parts: list[list[Frame]]) -> None:
    frames, recording = read(content(*parts))

    assert frames == [frame for part in parts for frame in part]
    assert (recording.header, recording.summary.end) == (HEADER, END)
    assert (recording.summary.frames, recording.summary.torn_bytes) == (len(frames), 0)


@settings(max_examples=examples(60))
@given(FRAMES.filter(bool), FRAMES.filter(bool), st.data())
def test_a_file_that_is_cut_anywhere_has_its_whole_chunks(
    first: list[Frame], second: list[Frame], data: st.DataObject
) -> None:
    head, whole = pack_header(HEADER), content(first, second, end=None)
    cut = data.draw(st.integers(len(head), len(whole)))

    frames, recording = read(whole[:cut])

    after_first = len(head) + len(pack_frames(first, 0.0))
    expected = first * (cut >= after_first) + second * (cut >= len(whole))
    assert frames == expected
    assert recording.summary.end is TORN
    assert recording.summary.size + recording.summary.torn_bytes == cut


@settings(max_examples=examples(150))
@given(FRAMES.filter(bool), st.data())
def test_a_spoiled_byte_is_named_or_ends_the_file_and_raises_nothing_else(
    frames: list[Frame], data: st.DataObject
) -> None:
    whole = bytearray(content(frames, frames))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))

    assert refused_or_read(bytes(whole)) in ([], frames, frames + frames)


@settings(max_examples=examples(200))
@given(st.binary(max_size=300), st.sampled_from([b"", MAGIC, pack_header(HEADER)]))
def test_no_bytes_do_harm(tail: bytes, head: bytes) -> None:
    assert refused_or_read(head + tail) == []


@settings(max_examples=examples(100))
@given(st.sampled_from(list(ChunkKind)), st.binary(max_size=120))
def test_no_chunk_of_strange_content_does_harm(kind: ChunkKind, payload: bytes) -> None:
    assert refused_or_read(pack_header(HEADER) + pack_chunk(kind, payload)) == []


def spoiled(name: str, value: object) -> bytes:
    """Return a header with another value."""
    return json.dumps({**asdict(HEADER), name: value}).encode()


BOMB = pack_chunk(ChunkKind.FRAMES, pack_frames([Frame(0, 1, b"")], 0)[9:33] + zlib.compress(bytes(64 << 20)))
STRANGE = {
    "another file": b"GIF89a" + bytes(100),
    "an empty file": b"",
    "the magic alone": MAGIC,
    "frames without a header": MAGIC + pack_frames([Frame(0, 1, b"x")], 0),
    "a header that is no JSON": MAGIC + pack_chunk(ChunkKind.HEADER, b"\xff\xfe{"),
    "a header that is a list": MAGIC + pack_chunk(ChunkKind.HEADER, b"[1]"),
    "a header without fields": MAGIC + pack_chunk(ChunkKind.HEADER, b"{}"),
    "a header of a newer version": MAGIC + pack_chunk(ChunkKind.HEADER, spoiled("version", 2)),
    "a header with a text for a number": MAGIC + pack_chunk(ChunkKind.HEADER, spoiled("attempt", "2")),
    "a header with a number beyond all columns": MAGIC + pack_chunk(ChunkKind.HEADER, spoiled("number", 2**70)),
    "a header that began in another age": MAGIC + pack_chunk(ChunkKind.HEADER, spoiled("started_at", 10**400)),
    "nested deeper than a stack": MAGIC + pack_chunk(ChunkKind.HEADER, b"[" * 100_000),
    "frames that unpack to more than they say": pack_header(HEADER) + BOMB,
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_strange_file_is_refused_with_a_sentence(what: str) -> None:
    with pytest.raises(BadRecording, match=r"\w+ \w+ \w+"):
        read(STRANGE[what])


def test_a_chunk_of_an_unknown_kind_is_left_out() -> None:
    newer = content([Frame(0, 1, b"a")], end=None)[len(pack_header(HEADER)) :]
    strange = bytes([99]) + pack_chunk(ChunkKind.END, b"what comes")[1:]

    frames, recording = read(pack_header(HEADER) + strange + newer + pack_end(END))

    assert ([frame.data for frame in frames], recording.summary.end) == ([b"a"], END)


@pytest.mark.parametrize("torn", [0, 1, 9, 30])
def test_finishing_cuts_the_torn_tail_and_appends_the_configuration(tmp_path: Path, torn: int) -> None:
    file = tmp_path / "a.ludusrec"
    second = pack_frames([Frame(2.0, 0, b"b")], 0)
    file.write_bytes(content([Frame(1.0, 1, b"a")], end=None) + second[: len(second) - torn])

    summary = finish(file, {"behaviors": {"Walker": {}}})

    again = summarize(file)
    assert (summary.frames, again.frames) == (1 + (torn == 0),) * 2
    assert (again.end, again.torn_bytes, again.run) == (TORN, 0, {"behaviors": {"Walker": {}}})
    assert again.size == summary.size == file.stat().st_size


def test_a_summary_has_the_seconds_of_what_was_recorded_and_not_of_what_came_before() -> None:
    frames = [Frame(-100.0, 3, b"hello"), Frame(1.0, 1, b"a"), Frame(4.0, 0, b"b")]

    _, recording = read(content(frames))

    assert recording.summary.seconds == 4.0  # from the beginning, at 0, to the last one
