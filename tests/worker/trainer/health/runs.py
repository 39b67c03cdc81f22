"""Real runs of a trainer with games of Gymnasium, and the findings about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ludus.sdk import Simulation
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
    ended = Ended(messages=start({"seed": 1, "torch_settings": {"device": "cpu"}, **document}).played_by(simulation))
    ended.lists = [message["findings"] for message in ended.messages if message["type"] == "findings"]
    assert ended.messages[-1]["outcome"] == "succeeded", ended.messages[-1]
    return ended
