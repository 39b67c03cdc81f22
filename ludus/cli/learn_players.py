"""The games of `ludus learn`: builds that it launches, or the Editor, connected to the run by a thread."""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Final, Self

from ludus.cli.learn_options import LearnError, LearnSettings
from ludus.event_loop import run
from ludus.games.builds import play
from ludus.games.process import ExecutableNotFound, find_executable
from ludus.games.settings import EDITOR_PORT, GameSettings
from ludus.mlagents.results.console import info
from ludus.protocol.codes import CloseCode
from ludus.protocol.side_channels import EngineOverrides
from ludus.sdk.errors import SimulatorError
from ludus.sdk.join import Target

LISTENING: Final = f"Listening on port {EDITOR_PORT}. Start training by pressing the Play button in the Unity Editor."
REFUSALS: Final = {CloseCode.BEHAVIOR_NOT_CONFIGURED, CloseCode.BAD_SPEC}
"""Codes of behaviors that a run refuses to train, or its collector to read."""
_INVITATION: Final = "press Play in the Editor"
"""The same in the words of the bridge."""


class Players:
    """Games that play during the block; they quit at its end, and at the run's end."""

    def __init__(self, settings: GameSettings, say: Callable[[str], None]) -> None:
        self.failure: str | None = None
        """The reason, once all games are given up."""
        self.refusal: str | None = None
        """The code of the reason, where it is that the game's behaviors are refused."""
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
            run(self._play())
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
            self.failure, self.refusal = str(error), error.code if error.code in REFUSALS else None


class _Lines(logging.Handler):
    """Prints the log records of the bridge as `mlagents-learn` would."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._say(info(LISTENING) if text.startswith(_INVITATION) else f"[{record.levelname}] {text}")


def check_build(settings: LearnSettings) -> None:
    """Raise LearnError if the build does not exist, before anything is started."""
    if settings.environment.env_path is None:
        return
    try:
        find_executable(Path(settings.environment.env_path))
    except ExecutableNotFound as error:
        raise LearnError(
            f"Couldn't launch the {settings.environment.env_path} environment. Provided filename does not match any "
            f"environments: {error}."
        ) from error


def players_of(settings: LearnSettings, target: Target, logs: Path, say: Callable[[str], None]) -> Players:
    """Return the games of the settings."""
    environment, engine = settings.environment, settings.engine
    # The configuration of a new run has the engine settings; a resumed run may have others.
    names = [each.name for each in fields(EngineOverrides)] if settings.checkpoints.resume else []
    unity = GameSettings(
        target,
        env=None if environment.env_path is None else Path(environment.env_path),
        num_envs=environment.num_envs,
        env_args=tuple(environment.env_args or ()),
        base_port=environment.base_port,
        no_graphics=engine.no_graphics,
        no_graphics_monitor=engine.no_graphics_monitor,
        engine=EngineOverrides(**{name: getattr(engine, name) for name in names}),
        timeout_wait_seconds=environment.timeout_wait,
        max_lifetime_restarts=environment.max_lifetime_restarts,
        restarts_rate_limit_n=environment.restarts_rate_limit_n,
        restarts_rate_limit_period_seconds=environment.restarts_rate_limit_period_s,
        logs=logs,
    )
    return Players(unity, say)
