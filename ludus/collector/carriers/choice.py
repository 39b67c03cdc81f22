"""Chooses the carrier of an edge collector."""

import logging
from collections.abc import Callable, Sequence

from ludus.collector.carriers.connection import LearnerConnection
from ludus.collector.carriers.local import LocalConnection
from ludus.collector.carriers.neighbor import TAKE_SECONDS, take_channel


async def choose_carrier(
    stream: LearnerConnection, offers: Sequence[bytes], report: Callable[[int, str], None]
) -> LearnerConnection:
    """Return a connection in the memory of a worker of this machine, or else `stream`.

    `offers` are the names of the channels that the worker offers (`ChannelOffer`); `report` takes a level of `logging`
    and a sentence for people.
    """
    for name in offers:
        try:
            channel = await take_channel(name)
        except TimeoutError:
            silent = f"the worker is on this machine, but did not share its memory within {TAKE_SECONDS:.0f} s"
            report(logging.WARNING, f"{silent}: steps go to it over the network stream")
        else:
            if channel is not None:
                return LocalConnection(channel)
    return stream
