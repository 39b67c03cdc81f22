"""A whole trainer in the test's process, with real collectors, and simulations that dial in from threads."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ludus.sdk import Simulation, SimulatorError, connect
from server.ladders.refs import PlayedMatch
from worker.trainer.loop import Trainer
from worker.trainer.messages import (
    CheckpointCommitted,
    CheckpointRefused,
    CheckpointWritten,
    Command,
    EventRecord,
    Finished,
    Job,
    Listening,
    MatchesPlayed,
    Message,
    Metrics,
)


class Recorder:
    """The trainer's supervisor: lets games play, commits checkpoints, remembers what it is told."""

    def __init__(self, games: Sequence[Simulation]) -> None:
        self.told: list[Message] = []
        self.trainer: Trainer | None = None
        self._games = list(games)
        self._players: list[threading.Thread] = []
        self._commands: list[Command | CheckpointCommitted | CheckpointRefused] = []

    def post(self, message: Message) -> None:
        self.told.append(message)
        match message:
            case Listening() if not self._players:
                for place, game in enumerate(self._games):
                    address = message.endpoints[place % len(message.endpoints)].address
                    self._players.append(threading.Thread(target=self._play, args=(game, address), daemon=True))
                    self._players[-1].start()
            case CheckpointWritten():
                self._commands.append(CheckpointCommitted(folder=message.folder))

    def commands(self) -> list[Command | CheckpointCommitted | CheckpointRefused]:
        taken, self._commands = self._commands, []
        return taken

    def join(self) -> None:
        """Wait for the games to end."""
        for player in self._players:
            player.join(10)

    def _play(self, game: Simulation, address: str) -> None:
        with suppress(SimulatorError):
            connect(game, run="alone", server=address, connect_timeout_seconds=1.0)

    @property
    def matches(self) -> list[PlayedMatch]:
        return [match for message in self.told if isinstance(message, MatchesPlayed) for match in message.matches]

    @property
    def events(self) -> dict[str, EventRecord]:
        return {message.name: message for message in self.told if isinstance(message, EventRecord)}

    @property
    def checkpoints(self) -> list[CheckpointWritten]:
        return [message for message in self.told if isinstance(message, CheckpointWritten)]

    def points(self, key: str, behavior: str) -> list[float]:
        """Return the points of a metric, in order."""
        metrics = [message for message in self.told if isinstance(message, Metrics)]
        points = [point for message in metrics for point in message.points]
        return [point.value for point in points if (point.key, point.behavior) == (key, behavior)]


def train(
    behaviors: dict[str, dict[str, Any]],
    games: Sequence[Simulation],
    folder: Path,
    *,
    seed: int = 1,
    collectors: int = 1,
    resume_from: str | None = None,
    checkpoints: Mapping[str, str] | None = None,
    simulators: dict[str, Any] | None = None,
    attempt: int = 1,
) -> tuple[Finished, Recorder]:
    """Train until every behavior is done. `checkpoints`: the folders of those that the configuration names."""
    match_recorder = Recorder(games)
    job = Job(
        run_id="alone",
        attempt=attempt,
        config={"behaviors": behaviors, "simulators": simulators or {}},
        seed=seed,
        scratch=str(folder / "scratch"),
        collectors=collectors,
        resume_from=resume_from,
        checkpoints=dict(checkpoints or {}),
    )
    finished = Trainer(job, match_recorder, []).run()
    match_recorder.join()
    return finished, match_recorder
