"""The channel of a place is given to one process of the same host and user, and to nothing else."""

import asyncio
import os
import socket

import pytest

from ludus.collector.channel import Channel
from ludus.collector.edge.neighbor import ChannelOffer, take_channel


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


def test_a_name_that_leads_nowhere_leaves_the_stream() -> None:
    assert asyncio.run(take_channel(b"ludus-of-another-host")) is None
