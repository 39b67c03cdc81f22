"""Decides where the actions of games are computed: on this machine, by an edge collector, or on the worker's."""

import logging
from importlib.util import find_spec
from typing import Final, Literal

from ludus.protocol.options import COLLECTOR_SERVICE
from ludus.protocol.tls import is_this_machine
from ludus.sdk.errors import CannotConnect
from ludus.sdk.join import JoinClient, Target, client_name

logger = logging.getLogger("ludus.games")

Collect = Literal["here", "there"]
NO_PLACES: Final = {"no_places", "not_a_gateway", "places_unavailable"}
"""Codes with which a gateway says that a run takes no edge collectors, or has never heard of them."""
HERE: Final = "actions are computed on this machine: %s (`--collect there`: by the worker)"
THERE: Final = "actions are computed by the worker: %s"


def can_collect_here() -> bool:
    """Return whether this installation can compute actions: it has the extra `collect`."""
    return find_spec("structlog") is not None


async def collects_here(target: Target, client: str, wanted: Collect | None, *, bridged: bool) -> bool:
    """Return whether an edge collector of this machine computes the actions, and log it with the reason.

    `wanted` decides. None: here, where that pays, and the run and this installation allow it. It pays wherever the
    worker is far, and for games that are `bridged`: a program of this machine passes on each of their messages, and
    as a collector it passes on none. Raises CannotConnect where the run cannot be joined.
    """
    near = is_this_machine(target.server)
    if wanted is not None:
        logger.info(HERE if wanted == "here" else THERE, f"--collect {wanted}")
        return wanted == "here"
    if near and not bridged:
        logger.info(THERE, "the server is on this machine, so its collectors are as near (`--collect here`: apart)")
        return False
    if not can_collect_here():
        logger.info(THERE, "this installation lacks what computing them here needs (the extra `collect`)")
        return False
    async with JoinClient(target, logger.log, client_name(client), COLLECTOR_SERVICE) as join_client:
        try:
            await join_client.ask()
        except CannotConnect as error:
            if not falls_back(error, wanted):
                raise
            return False
    logger.info(HERE, "no step is passed on by a bridge" if near else "no step waits for the network")
    return True


def falls_back(error: object, wanted: Collect | None) -> bool:
    """Return whether games go on without an edge collector after this error, and log it: the run takes none.

    A worker may find out only when it tries to listen for them.
    """
    refused = wanted is None and isinstance(error, CannotConnect) and error.code in NO_PLACES
    if refused:
        logger.info(THERE, error)
    return refused
