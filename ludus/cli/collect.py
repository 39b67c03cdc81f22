"""`ludus collect`: an edge collector, which acts beside the games and sends a run what they lived."""

import logging
import sys
from pathlib import Path
from typing import Final

import click

from ludus.cli.exits import GAMES_HELP
from ludus.cli.options import ca_file_option, connect_timeout_option, gateway_option, option, token_option
from ludus.cli.until_end import run_until_end
from ludus.games.settings import LAST_PORT
from ludus.sdk.errors import SimulatorError
from ludus.sdk.join import RunEnd, Target

DEFAULT_PORT: Final = 7071
logger = logging.getLogger("ludus.games")


@click.command(epilog=GAMES_HELP)
@click.argument("run")
@option(
    "--port",
    type=click.IntRange(0, LAST_PORT),
    default=DEFAULT_PORT,
    help="Port of this machine that simulators dial; 0: any free one.",
)
@option("--host", default="127.0.0.1", help="Address to listen on. Simulators need no token here.")
@gateway_option
@token_option
@ca_file_option
@connect_timeout_option
def collect(
    *, run: str, port: int, host: str, server: str, token: str | None, ca_file: Path | None, connect_timeout: float
) -> None:
    """Collect experience for RUN (an id or a name) beside the games, until it ends.

    The games of this machine connect here, as in `ludus simulate gymnasium:CartPole-v1 --run RUN --server
    127.0.0.1:7071`. Their actions are computed here, too, so they do not wait for the network. Every run takes 16 of
    them unless its configuration says otherwise (`simulators.collectors.edge`). When the run pauses or its server
    restarts, the games wait.
    """
    target = Target(server, run, token, "", ca_file, connect_timeout)
    sys.exit(run_until_end(_collect(target, host, port), "ending; the games are told to wait for another collector"))


async def _collect(target: Target, host: str, port: int) -> RunEnd:
    # What it needs, a light installation lacks; `ludus --help` works there.
    from ludus.collector.edge.process import edge_collector  # noqa: PLC0415

    try:
        async with edge_collector(target, logger.log, host=host, port=port) as edge:
            logger.info("simulators connect to %s", edge.address)
            return await edge.run()
    except SimulatorError as error:
        logger.log(logging.ERROR, error)
        raise
