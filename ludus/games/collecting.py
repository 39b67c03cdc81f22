"""Decides where the actions of games are computed: on this machine, by an edge collector, or on the worker's."""

import logging
from importlib.util import find_spec
from typing import Final, Literal

from ludus.protocol.options import COLLECTOR_SERVICE
from ludus.sdk.errors import CannotConnect
from ludus.sdk.join import JoinClient, Target, client_name

logger = logging.getLogger("ludus.games")

Collect = Literal["here", "there"]
NO_PLACES: Final = {"no_places", "not_a_gateway"}
"""Codes with which a gateway says that a run takes no edge collectors, or has never heard of them."""


def can_collect_here() -> bool:
    """Return whether this installation can compute actions: it has the extra `collect`."""
    return find_spec("structlog") is not None


async def collects_here(target: Target, client: str, wanted: Collect | None) -> bool:
    """Return whether an edge collector of this machine computes the actions, and log it with the reason.

    `wanted` decides; None: here, where the run and this installation allow it. Raises CannotConnect where the run
    cannot be joined.
    """
    if wanted is not None:
        return wanted == "here"
    if not can_collect_here():
        why = "this installation lacks what computing them here needs (the extra `collect`)"
    else:
        async with JoinClient(target, logger.log, client_name(client), COLLECTOR_SERVICE) as join_client:
            try:
                await join_client.ask()
            except CannotConnect as error:
                if error.code not in NO_PLACES:
                    raise
                why = str(error)
            else:
                logger.info("actions are computed on this machine (`--collect there`: on the worker's)")
                return True
    logger.info("actions are computed on the worker's machine: %s", why)
    return False
