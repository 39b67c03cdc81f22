"""One game of Godot: its port, its process where one is started, and its connection.

A build is started for the port on which this module listens; the editor, which a person starts, dials the same port.
"""

import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from ludus.games import diagnostics
from ludus.games.godot.wire import QUIT, GameConnection
from ludus.games.process import ExecutableNotFound, Player, PlayerLog, find_executable
from ludus.sdk.crashes import GameNotMade
from ludus.sdk.errors import GameLost
from ludus.sdk.values import logger

EDITOR: Final = "editor"
"""Stands for the editor in place of a build."""
BASE_PORT: Final = 11008
"""The port that the plug-in dials unless it is told another one."""
LAST_PORT: Final = 65535
HANDSHAKE: Final = {"type": "handshake", "major_version": "0", "minor_version": "7"}
UNSEEN_FPS: Final = 60
"""Frames per second of game time without graphics, as fast as the processor can: physics runs at 60."""
ACCEPT_SECONDS: Final = 0.1
GOODBYE_SECONDS: Final = 2.0
"""Time-out of a game to quit before it is killed."""


@dataclass(frozen=True)
class GodotSettings:
    """How a game is started. The names are those of its options in `ludus godot`."""

    env_args: Sequence[str] = ()
    base_port: int = BASE_PORT
    """Port of a build; the next free one where it is taken. The editor has this one."""
    no_graphics: bool = False
    fixed_fps: int | None = None
    """Frames per second of game time, as fast as the processor can. None: real time; without graphics 60."""
    speedup: float | None = None
    action_repeat: int | None = None
    timeout_wait: float = 60.0
    """Time-out, in seconds, of a build's first call and of each answer."""
    logs: str | None = None
    """Folder of what builds print. None: a temporary one."""
    call: Mapping[str, str] = field(default_factory=dict)
    """Environment parameter -> the method of the agents that is called, its value behind the name, when it changes."""
    game: Mapping[str, object] = field(default_factory=dict)
    """Arguments of the game's own, `--KEY=VALUE`."""

    @classmethod
    def of(cls, arguments: Mapping[str, object]) -> "GodotSettings":
        """Read the arguments of `ludus simulate --env-arg`; those that are not settings are the game's own.

        Raises GameNotMade for a value of another type.
        """
        names = {setting.name for setting in fields(cls)} - {"game"}
        settings: dict[str, Any] = {name: value for name, value in arguments.items() if name in names}
        numbers = {"base_port": int, "fixed_fps": int, "action_repeat": int, "speedup": float, "timeout_wait": float}
        for name, kind in numbers.items():
            value = settings.get(name)
            if value is not None and (not isinstance(value, int | float) or value <= 0 or value != kind(value)):
                raise GameNotMade(f"{name} is {value!r}; give a number above 0")
        if not isinstance(settings.get("call", {}), Mapping):
            raise GameNotMade(f"call is {settings['call']!r}; write call={{PARAMETER: METHOD}}")
        return cls(**settings, game={name: value for name, value in arguments.items() if name not in names})

    def arguments(self, port: int, seed: int) -> list[str]:
        """Return the command line of a build, without the build."""
        fps = self.fixed_fps or (UNSEEN_FPS if self.no_graphics else None)
        optional = {"action_repeat": self.action_repeat, "speedup": self.speedup, **self.game}
        return [
            f"--port={port}",
            f"--env_seed={seed}",
            *(("--disable-render-loop", "--headless") if self.no_graphics else ()),
            *(("--fixed-fps", str(fps)) if fps else ()),  # the engine reads two arguments
            *(f"--{name}={_text(value)}" for name, value in optional.items() if value is not None),
            *self.env_args,
        ]


def find_build(name: str) -> Path:
    """Return the program that starts a build: a file with or without its extension, or an engine on the search path.

    Raises GameNotMade.
    """
    try:
        return find_executable(Path(name))
    except ExecutableNotFound as error:
        found = shutil.which(name)
        if found is None:
            raise GameNotMade(str(error)) from None
        return Path(found)


class GodotGame:
    """A game that has dialled, with its process unless it is the editor's."""

    def __init__(self, build: Path | None, settings: GodotSettings, seed: int | None) -> None:
        """Start a build, or wait until a person presses Play; return when it has dialled. Raises GameLost."""
        self._timeout_seconds = None if build is None else settings.timeout_wait
        self._player: Player | None = None
        self._connection: GameConnection | None = None
        self._end_seconds = 0.0
        """Time-out of its end; a game that is lost has none."""
        self._scratch = tempfile.TemporaryDirectory(prefix="ludus-godot-", ignore_cleanup_errors=True)
        try:
            with _listener(settings.base_port, editor=build is None) as listener:
                self._connect(listener, build, settings, seed)
        except BaseException:
            self.close()
            raise

    def ask(self, message: Mapping[str, object], answer: str = "") -> dict[str, Any]:
        """Send a message and return the answer. Raises GameLost with what the game printed last."""
        assert self._connection is not None
        try:
            return self._connection.ask(message, answer)
        except GameLost as error:
            self._end_seconds = 0.0
            raise self._explained(error) from None

    def close(self) -> None:
        """Ask the game to quit; a build that does not is killed."""
        if self._connection is not None:
            with suppress(GameLost):
                self._connection.send({"type": "close"})
            self._connection.close()
        if self._player is not None:
            self._player.end(self._end_seconds)
            self._player.clear()
        self._scratch.cleanup()

    def _connect(self, listener: socket.socket, build: Path | None, settings: GodotSettings, seed: int | None) -> None:
        port = listener.getsockname()[1]
        if build is None:
            logger.info("press Play in the Godot editor (port %d)", port)
        else:
            # Copies of one build must not play the same episodes.
            arguments = settings.arguments(port, secrets.randbelow(1 << 31) if seed is None else seed)
            try:
                self._player = Player(build, arguments, PlayerLog(Path(settings.logs or self._scratch.name), port))
            except ExecutableNotFound as error:
                raise GameLost("executable_not_found", str(error)) from None
        peer = self._accept(listener, build, port)
        self._connection = GameConnection(peer, self._timeout_seconds)
        self._end_seconds = GOODBYE_SECONDS
        try:
            self._connection.send(HANDSHAKE)
        except GameLost as error:
            raise self._explained(error) from None

    def _accept(self, listener: socket.socket, build: Path | None, port: int) -> socket.socket:
        """Wait for the game's connection. Raises GameLost."""
        listener.settimeout(ACCEPT_SECONDS)
        since = time.monotonic()
        while True:
            try:
                return listener.accept()[0]
            except TimeoutError:
                pass
            if self._player is None or build is None or self._timeout_seconds is None:
                continue
            code = self._player.exit_code()
            if code is not None:
                raise _lost(diagnostics.exited(code, dialled=False, last_lines=self._player.last_lines()))
            if time.monotonic() - since > self._timeout_seconds:
                printed = self._player.last_lines()
                raise GameLost(
                    "never_dialled",
                    f"{build.name} runs, but has not dialled 127.0.0.1:{port} within {self._timeout_seconds:g} s: "
                    "check that its main scene has a Sync node whose control mode is Training, and raise "
                    f"--timeout-wait if it takes longer to load{f'; {printed}' if printed else ''}",
                )

    def _explained(self, error: GameLost) -> GameLost:
        """Return the error with how the process ended, or what it printed last."""
        if self._player is None:
            ended = "the game has ended, or Stop was pressed: press Play to go on"
            return GameLost(error.code, ended) if error.code == QUIT else error
        if error.code == QUIT and (code := self._player.wait(GOODBYE_SECONDS)) is not None:
            return _lost(diagnostics.exited(code, dialled=True, last_lines=self._player.last_lines()))
        printed = self._player.last_lines()
        return GameLost(error.code, f"{error}; {printed}" if printed else str(error))


def _listener(first: int, *, editor: bool) -> socket.socket:
    """Listen on the first free port from `first` on; for the editor on that one alone. Raises GameNotMade."""
    for port in range(first, first + 1 if editor else LAST_PORT + 1):
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            continue
    if editor:
        raise GameNotMade(
            f"port {first}, which the editor dials, is taken, by another trainer perhaps: end that, or use --base-port "
            "here and --port=PORT in the editor's Main Run Args (Project Settings > Editor > Run)"
        )
    raise GameNotMade(f"no port from {first} to {LAST_PORT} is free; choose others with --base-port")


def _lost(problem: Any) -> GameLost:
    return GameLost(problem.code, problem.sentence)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
