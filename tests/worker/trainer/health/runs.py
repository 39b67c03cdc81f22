"""Real runs of a trainer with games of Gymnasium, and the findings about them."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ludus.sdk import Simulation, SimulatorError, connect
from tests.worker.trainer.conftest import StartTrainer

SECTION: dict[str, Any] = {
    "hyperparameters": {"batch_size": 128, "buffer_size": 1024, "learning_rate": 1e-3, "num_epoch": 4},
    "network_settings": {"hidden_units": 32, "num_layers": 2},
    "max_steps": 10_240,
    "summary_freq": 512,
}


@dataclass
class Ended:
    """A run that has ended."""

    lists: list[list[dict[str, Any]]] = field(default_factory=list)
    """Every list of findings that the trainer sent, in order."""
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def findings(self) -> dict[str, dict[str, Any]]:
        """The findings that held at the end, by code."""
        return {finding["code"]: finding for finding in self.lists[-1]} if self.lists else {}

    @property
    def ever(self) -> set[str]:
        """The codes of all findings that ever held."""
        return {finding["code"] for findings in self.lists for finding in findings}


def merged(section: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section with some keys, at any depth, changed."""
    known = dict(section)
    for key, value in changes.items():
        known[key] = merged(known.get(key, {}), value) if isinstance(value, Mapping) else value
    return known


def play_through(start: StartTrainer, simulation: Simulation, document: Mapping[str, Any]) -> Ended:
    """Play a run to its end."""
    ended = Ended()
    for message in _played(start, simulation, document):
        ended.messages.append(message)
        if message["type"] == "findings":
            ended.lists.append(message["findings"])
    assert ended.messages[-1]["outcome"] == "succeeded", ended.messages[-1]
    return ended


def _played(start: StartTrainer, simulation: Simulation, document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    players: list[threading.Thread] = []

    def play(address: str) -> None:
        with suppress(SimulatorError):
            connect(simulation, run="alone", server=address, connect_timeout_seconds=5.0)

    for message in start({"seed": 1, "torch_settings": {"device": "cpu"}, **document}).reports():
        yield message
        if message["type"] == "listening" and not players:
            players.append(threading.Thread(target=play, args=(message["endpoints"][0]["address"],), daemon=True))
            players[0].start()
    players[0].join(30)
