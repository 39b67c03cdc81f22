"""The games of `ludus learn`: builds that it launches, or the Editor, connected to the run by a thread."""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from ludus.cli.learn_options import LearnError, LearnSettings
from ludus.games.builds import EDITOR_PORT, GameSettings, play
from ludus.games.engine import EngineOverrides
from ludus.games.executable import ExecutableNotFound, find_executable
from ludus.mlagents.results.console import info
from ludus.sdk.errors import SimulatorError
from ludus.sdk.join import Target

LISTENING: Final = f"Listening on port {EDITOR_PORT}. Start training by pressing the Play button in the Unity Editor."
_INVITATION: Final = "press Play in the Editor"
"""How the bridge says the same."""


@dataclass(frozen=True)
class PlayerSlot:
    """Where games are to play."""

    gateway: str
    """`host:port`."""
    run: str
    token: str | None = None
    ca_file: Path | None = None


class Players:
    """Games that play while the block lasts; they are told to quit at its end, and by the run's."""

    def __init__(self, settings: GameSettings, say: Callable[[str], None]) -> None:
        self.failure: str | None = None
        """Why no game plays any more, once all are given up."""
        self._settings = settings
        self._handler = _Lines(say)
        self._thread = threading.Thread(target=self._run, name="games", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun = threading.Event()

    def __enter__(self) -> Self:
        logger = logging.getLogger("ludus.games")
        logger.addHandler(self._handler)
        logger.setLevel(logging.INFO)
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._interrupt()
            self._thread.join()
        except KeyboardInterrupt:
            self._interrupt()  # the second one cuts the games' time to quit short
            self._thread.join()
            raise
        finally:
            logging.getLogger("ludus.games").removeHandler(self._handler)

    def _interrupt(self) -> None:
        if self._thread.is_alive() and self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except asyncio.CancelledError:
            pass
        finally:
            self._begun.set()

    async def _play(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        try:
            await play(self._settings)
        except SimulatorError as error:
            self.failure = str(error)


class _Lines(logging.Handler):
    """Prints what the bridge logs as `mlagents-learn` would."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._say(info(LISTENING) if text.startswith(_INVITATION) else f"[{record.levelname}] {text}")


def check_build(settings: LearnSettings) -> None:
    """Raise LearnError where there is no such build, before anything is started."""
    if settings.environment.env_path is None:
        return
    try:
        find_executable(Path(settings.environment.env_path))
    except ExecutableNotFound as error:
        raise LearnError(
            f"Couldn't launch the {settings.environment.env_path} environment. Provided filename does not match any "
            f"environments: {error}."
        ) from error


def players_of(settings: LearnSettings, endpoint: PlayerSlot, logs: Path, say: Callable[[str], None]) -> Players:
    """Return the games that the settings ask for."""
    environment, engine = settings.environment, settings.engine
    typed = settings.checkpoints.resume  # the engine settings of a new run are in its configuration
    unity = GameSettings(
        Target(endpoint.gateway, endpoint.run, endpoint.token, ca_file=endpoint.ca_file),
        env=None if environment.env_path is None else Path(environment.env_path),
        num_envs=environment.num_envs,
        env_args=tuple(environment.env_args or ()),
        base_port=environment.base_port,
        no_graphics=engine.no_graphics,
        no_graphics_monitor=engine.no_graphics_monitor,
        engine=EngineOverrides(
            engine.width,
            engine.height,
            engine.quality_level,
            engine.time_scale,
            engine.target_frame_rate,
            engine.capture_frame_rate,
        )
        if typed
        else EngineOverrides(),
        timeout_wait_seconds=environment.timeout_wait,
        max_lifetime_restarts=environment.max_lifetime_restarts,
        restarts_rate_limit_n=environment.restarts_rate_limit_n,
        restarts_rate_limit_period_seconds=environment.restarts_rate_limit_period_s,
        logs=logs,
    )
    return Players(unity, say)
