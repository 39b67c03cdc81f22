"""The channel of a place is given to one process of the same host and user, and to nothing else."""

import asyncio
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ludus.collector.carriers.local import LocalConnection
from ludus.collector.carriers.neighbor import ChannelOffer, choose_carrier, take_channel
from ludus.collector.channel import Channel


def test_an_offered_channel_is_taken_once_and_leads_to_the_other_end() -> None:
    async def take_twice() -> tuple[Channel | None, Channel | None, int]:
        times = 0

        def taken() -> None:
            nonlocal times
            times += 1

        offer = ChannelOffer(Channel(theirs), taken)
        return await take_channel(offer.name), await take_channel(offer.name), times

    ours, theirs = socket.socketpair()
    first, second, times = asyncio.run(take_twice())

    assert first is not None
    first.send(7, b"payload")
    assert [frame.payload for frame in Channel(ours).receive()] == [b"payload"]
    assert second is None
    assert times == 1
    for each in (ours, theirs, first):
        each.close()


def test_an_offer_of_another_user_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take() -> Channel | None:
        offer = ChannelOffer(Channel(theirs), lambda: pytest.fail("it was given away"))
        try:
            return await take_channel(offer.name)
        finally:
            offer.close()

    ours, theirs = socket.socketpair()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    assert asyncio.run(take()) is None
    for each in (ours, theirs):
        each.close()


@pytest.fixture
def silent() -> Iterator[tuple[bytes, "queue.SimpleQueue[socket.socket]"]]:
    """A reader that accepts connections and says nothing: its name, and the connections."""
    accepted: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    name = f"ludus-silent-{secrets.token_hex(8)}".encode()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(b"\0" + name)
        listener.listen(1)
        thread = threading.Thread(target=lambda: accepted.put(listener.accept()[0]))
        thread.start()
        yield name, accepted
        thread.join()


def test_a_reader_that_accepts_and_says_nothing_is_left_after_a_while_and_can_give_nothing_away_any_more(
    silent: tuple[bytes, "queue.SimpleQueue[socket.socket]"],
) -> None:
    name, accepted = silent
    began = time.monotonic()

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(take_channel(name, 0.3), 30))

    assert 0.3 <= time.monotonic() - began < 20
    ours, theirs = socket.socketpair()
    with accepted.get(timeout=10) as peer, pytest.raises(OSError):  # noqa: PT011  the name of the error is the system's
        socket.send_fds(peer, [b"\0"], [theirs.fileno()])
    for each in (ours, theirs):
        each.close()


def test_an_edge_collector_whose_worker_says_nothing_uses_the_stream_and_says_so(
    silent: tuple[bytes, "queue.SimpleQueue[socket.socket]"],
) -> None:
    name, accepted = silent
    said: list[str] = []

    async def chooses_the_stream() -> bool:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            stream = LocalConnection(Channel(ours))
            carrier = await choose_carrier(stream, [name], lambda _, sentence: said.append(str(sentence)))
            return carrier is stream

    assert asyncio.run(asyncio.wait_for(chooses_the_stream(), 30))
    assert len(said) == 1
    assert "did not share its memory within 2 s: steps go to it over the network stream" in said[0]
    accepted.get(timeout=10).close()


def test_a_name_that_leads_nowhere_leaves_the_stream() -> None:
    assert asyncio.run(take_channel(b"ludus-of-another-host")) is None
