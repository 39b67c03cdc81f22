"""The other end of a trainer that runs in the test's own process."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ludus.sdk import Simulation, SimulatorError, connect
from worker.trainer.messages import (
    CheckpointCommitted,
    CheckpointWritten,
    Command,
    EventRecord,
    Listening,
    Message,
    Metrics,
    Order,
)


class Supervisor:
    """Acknowledges checkpoints, lets games play where the trainer listens, and remembers what it is told."""

    def __init__(self, *games: Simulation, cancels: bool = False) -> None:
        self.told: list[Message] = []
        self.orders: list[Order] = [Command(action="cancel")] if cancels else []
        """What the trainer has not heard."""
        self._games = games
        self._players: list[threading.Thread] = []

    def post(self, message: Message) -> None:
        """Take a report."""
        self.told.append(message)
        match message:
            case Listening() if not self._players:
                for place, game in enumerate(self._games):
                    address = message.endpoints[place % len(message.endpoints)].address
                    self._players.append(threading.Thread(target=self._play, args=(game, address), daemon=True))
                    self._players[-1].start()
            case CheckpointWritten():
                self.orders.append(CheckpointCommitted(folder=message.folder))

    def commands(self) -> list[Order]:
        """Return what the trainer should do."""
        taken, self.orders = self.orders, []
        return taken

    def join(self) -> None:
        """Wait for the games to end."""
        for player in self._players:
            player.join(20)
            assert not player.is_alive()

    def _play(self, game: Simulation, address: str) -> None:
        with suppress(SimulatorError):
            connect(game, run="alone", server=address, connect_timeout_seconds=1.0)

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the messages of one kind."""
        return [message for message in self.told if isinstance(message, kind)]

    def named(self, name: str) -> list[EventRecord]:
        """Return the events of one name."""
        return [event for event in self.of(EventRecord) if event.name == name]

    @property
    def events(self) -> dict[str, EventRecord]:
        """The last event of each name."""
        return {event.name: event for event in self.of(EventRecord)}

    @property
    def folders(self) -> list[Path]:
        """The checkpoints, in order."""
        return [Path(message.folder) for message in self.of(CheckpointWritten)]

    def series(self, key: str) -> list[tuple[int, float]]:
        """Return steps and values of one metric, in order."""
        return [(one.step, one.value) for metrics in self.of(Metrics) for one in metrics.points if one.key == key]
