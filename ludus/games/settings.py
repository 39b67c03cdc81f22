"""Settings of the games that `ludus unity`, `ludus learn` and programs of your own connect to a run.

Also decides where the actions of games are computed: on this machine, by an edge collector, or on the worker's.
"""

import logging
import platform
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from ludus.games.reporter import GameReporter
from ludus.games.unity.bridge import BridgeSession, Exchange
from ludus.games.unity.hook import SideChannelHook, SideChannelTap
from ludus.protocol.options import COLLECTOR_SERVICE
from ludus.protocol.side_channels import EngineOverrides
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
    """Return whether this installation can compute the actions of any game: it has the extras `collect` and `play`.

    Without `play` it can where no behavior sees pictures, entities or goals: known only when the game is here.
    """
    return find_spec("structlog") is not None and find_spec("onnxruntime") is not None


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
        logger.info(THERE, "this installation lacks what computing them here needs (the extras `collect` and `play`)")
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


BASE_PORT: Final = 5005
EDITOR_PORT: Final = 5004
LAST_PORT: Final = 65535


@dataclass(frozen=True)
class GameSettings:
    """The builds to start, and their settings. Names and defaults are those of ML-Agents."""

    target: Target
    """The run. Each process of a game gets its own session id."""
    env: Path | None = None
    """The build; None: wait for the Editor."""
    num_envs: int = 1
    env_args: tuple[str, ...] = ()
    base_port: int = BASE_PORT
    """Port of the first build; each further one takes the next."""
    editor_port: int = EDITOR_PORT
    no_graphics: bool = False
    no_graphics_monitor: bool = False
    """Without graphics, except for the first build."""
    engine: EngineOverrides = field(default_factory=EngineOverrides)
    timeout_wait_seconds: float = 60.0
    """Time-out of a build's first call, of each further call, and of its end."""
    max_lifetime_restarts: int = 10
    """-1: any number. Per build, like the next two."""
    restarts_rate_limit_n: int = 1
    """-1: any number."""
    restarts_rate_limit_period_seconds: float = 60.0
    logs: Path | None = None
    """Folder of the player logs; None: nothing is kept."""
    collect: Collect | None = None
    """Where the games' actions are computed: `here`, by an edge collector in this process (needs `ludus[collect]`), or
    `there`, by the worker. None: here, where the run and this installation allow it.
    """
    side_channels: SideChannelHook | None = None
    """Your own code for raw bytes and float properties; None: they are dropped."""

    exchange: Exchange | None = None
    """Sends calls to the edge collector of this process, to which `target` leads. `play` sets it."""

    @property
    def label(self) -> str:
        """Label in the list of simulators."""
        game = "Unity Editor" if self.env is None else self.env.name
        return self.target.label or f"{game} on {platform.node()}"[:200]

    def session(self, reporter: GameReporter, worker: int, *, no_graphics: bool, parks: bool) -> BridgeSession:
        """Return the session of a game of one worker that has made its first call."""
        tap = None if self.side_channels is None else SideChannelTap(self.side_channels, worker)
        target, engine = reporter.begin_session(), self.engine
        return BridgeSession(
            target,
            reporter.tell,
            reporter.log_of_run,
            engine,
            no_graphics=no_graphics,
            parks=parks,
            tap=tap,
            exchange=self.exchange,
        )
