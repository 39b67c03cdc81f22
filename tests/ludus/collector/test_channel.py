"""The channel between learner and collector."""

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.collector.channel import Channel, ChannelClosedError, Frame


def make_pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


def exchange(sender: Channel, receiver: Channel, count: int) -> list[Frame]:
    """Flush and receive in turns until `count` frames are there."""
    frames: list[Frame] = []
    while len(frames) < count:
        sender.flush()
        frames += receiver.receive()
    return frames


@given(st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=300)), min_size=1, max_size=20))
def test_frames_arrive_whole_and_in_order(frames: list[tuple[int, bytes]]) -> None:
    one, other = make_pair()

    for kind, payload in frames:
        one.send(kind, payload)

    assert [(frame.kind, frame.payload) for frame in exchange(one, other, len(frames))] == frames
    one.close()
    other.close()


def test_what_is_sent_later_arrives_with_the_next_frame_in_order_and_with_its_descriptors() -> None:
    one, other = make_pair()
    file = os.memfd_create("file")

    one.send(1, b"first", later=True)
    one.send(2, b"with a file", (file,), later=True)
    one.send(3, os.urandom(1 << 20), later=True)
    assert one.pending
    assert other.receive() == []
    one.send(4, b"last")

    frames = exchange(one, other, 4)
    assert [frame.kind for frame in frames] == [1, 2, 3, 4]
    assert [len(frame.descriptors) for frame in frames] == [0, 1, 0, 0]
    for fd in (file, *frames[1].descriptors):
        os.close(fd)
    one.close()
    other.close()


def test_sender_does_not_wait_for_a_receiver_that_does_not_read() -> None:
    one, other = make_pair()
    payload = os.urandom(1 << 20)

    for _ in range(8):  # far more than a socket holds
        one.send(1, payload)

    assert one.pending
    assert [frame.payload == payload for frame in exchange(one, other, 8)] == [True] * 8
    assert not one.pending
    one.close()
    other.close()


def test_descriptors_travel_with_their_frame() -> None:
    one, other = make_pair()
    first, second = os.memfd_create("first"), os.memfd_create("second")
    os.write(first, b"first")
    os.write(second, b"second")

    one.send(1, b"none")
    one.send(2, b"both", (first, second))
    frames = exchange(one, other, 2)

    assert [len(frame.descriptors) for frame in frames] == [0, 2]
    assert [os.pread(fd, 10, 0) for fd in frames[1].descriptors] == [b"first", b"second"]
    for fd in (first, second, *frames[1].descriptors):
        os.close(fd)
    one.close()
    other.close()


def test_end_of_file_is_reported_after_the_last_frame() -> None:
    one, other = make_pair()
    one.send(7, b"last words")
    one.close()

    assert [frame.payload for frame in other.receive()] == [b"last words"]
    with pytest.raises(ChannelClosedError):
        other.receive()
    other.close()


def test_sending_to_a_dead_peer_is_reported() -> None:
    one, other = make_pair()
    other.close()

    with pytest.raises(ChannelClosedError):
        one.send(1, b"hello?")

    one.close()
