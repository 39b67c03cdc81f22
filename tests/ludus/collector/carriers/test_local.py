"""A collector on the learner's host sends what belongs together at once, and hears of the learner's end."""

import asyncio
import socket

from ludus.collector.carriers.local import LocalConnection
from ludus.collector.channel import Channel, Frame
from ludus.collector.messages import Alive, Kind, Listening, read


def test_what_is_sent_later_goes_out_at_the_end_of_the_turn_in_its_order() -> None:
    async def turn() -> list[Frame]:
        here, there = socket.socketpair()
        connection, learner = LocalConnection(Channel(here)), Channel(there)
        connection.send(Kind.EPISODES, b"first", later=True)
        connection.tell(Alive(), later=True)
        assert learner.receive() == [], "the turn has not ended"
        await asyncio.sleep(0)
        frames = learner.receive()
        connection.close()
        learner.close()
        return frames

    episodes, alive = asyncio.run(turn())

    assert (episodes.kind, episodes.payload) == (Kind.EPISODES, b"first")
    assert read(alive) == Alive()


def test_a_message_takes_along_what_waits_and_after_the_learners_end_nothing_is_sent() -> None:
    async def live() -> tuple[list[Frame], list[str]]:
        here, there = socket.socketpair()
        connection, learner = LocalConnection(Channel(here)), Channel(there)
        heard: list[str] = []
        connection.begin(lambda frames: None, lambda: heard.append("lost"))
        connection.send(Kind.SEGMENTS, b"segments", later=True)
        connection.tell(Listening(4))
        frames = learner.receive()
        learner.close()
        connection.receive()
        connection.tell(Alive())
        connection.close()
        return frames, heard

    frames, heard = asyncio.run(live())

    assert [frame.kind for frame in frames] == [Kind.SEGMENTS, Kind.MESSAGE]
    assert heard == ["lost"]
