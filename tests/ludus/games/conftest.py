"""Bridges on an event loop beside the test."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, Self

import pytest

from ludus.games.builds import play
from ludus.games.settings import GameSettings
from ludus.sdk.errors import SimulatorError
from ludus.sdk.join import RunEnd, Target
from tests.ludus.games.unity.fakes import RUN_ID, SECONDS, FakeRun, Game
from tests.ports import free_port
from tests.waiting import eventually

LUDUS_LOGGER = "ludus.games"


class Playing:
    """`ludus.games.builds.play` in a thread of its own."""

    def __init__(self, settings: GameSettings) -> None:
        self.outcome: RunEnd | Exception | None = None
        self._settings = settings
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupt()
        self._thread.join(3 * SECONDS)
        assert not self._thread.is_alive()

    def interrupt(self) -> None:
        """Cancel, as Ctrl-C does."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)

    def result(self) -> Any:
        """Wait for the end, and return or raise what came of it."""
        self._thread.join(3 * SECONDS)
        assert not self._thread.is_alive(), "still playing"
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def _run(self) -> None:
        async def main() -> None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            self.outcome = await play(self._settings)

        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            pass
        except SimulatorError as error:
            self.outcome = error


class EditorWorld:
    """A run, a bridge that waits for the Editor, and games that are played there."""

    def __init__(self, run: FakeRun, playing: Playing, port: int) -> None:
        self.run = run
        self.playing = playing
        self.port = port
        self._games: list[Game] = []

    def press_play(self, host: str = "localhost") -> Game:
        self._games.append(Game(self.port, host))
        return self._games[-1]

    def close(self) -> None:
        for game in self._games:
            game.vanish()


@pytest.fixture
def run(caplog: pytest.LogCaptureFixture) -> Iterator[FakeRun]:
    with FakeRun() as run:
        yield run
        assert run.violations == []
    # Whatever is told to the run, is told here in the same words.
    log = "\n".join(record.getMessage() for record in caplog.get_records("call"))
    assert [word for word in run.run_reporter if word.sentence not in log or word.run != RUN_ID] == []


@pytest.fixture
def editor(request: pytest.FixtureRequest, run: FakeRun, caplog: pytest.LogCaptureFixture) -> Iterator[EditorWorld]:
    """Return a bridge in Editor mode; parametrize indirectly with changes of its settings."""
    caplog.set_level("INFO", LUDUS_LOGGER)
    port = free_port()
    changes = {"timeout_wait_seconds": 10.0, **getattr(request, "param", {})}
    settings = GameSettings(Target(run.address, "balls", connect_timeout_seconds=5), editor_port=port, **changes)
    with Playing(settings) as playing:
        world = EditorWorld(run, playing, port)
        eventually(lambda: "press Play in the Editor" in caplog.text)
        yield world
        world.close()
