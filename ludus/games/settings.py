"""Settings of the games that `ludus unity`, `ludus learn` and programs of your own connect to a run."""

import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ludus.games.collecting import Collect
from ludus.games.reporter import GameReporter
from ludus.games.unity.bridge import BridgeSession, Exchange
from ludus.games.unity.hook import SideChannelHook, SideChannelTap
from ludus.protocol.side_channels import EngineOverrides
from ludus.sdk.join import Target

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
