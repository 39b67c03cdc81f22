"""Trainers that run alone, in threads of the test's process, and end with their test.

An interpreter of their own would first import torch, which takes longer than most of them train. What is said of the
process itself is tested with one (`tests.worker.trainer.test___main__`).
"""

import copy
import json
import logging
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch

from ludus.sdk import ConnectionSummary, Simulation, SimulatorError, connect
from server.config.resolution import review
from worker.trainer.__main__ import _execute, main
from worker.trainer.messages import (
    CheckpointCommitted,
    CheckpointWritten,
    Command,
    Finished,
    Job,
    Message,
    Order,
    describe,
)


class Alone:
    """A trainer in a thread. It has nobody but this to tell, and a checkpoint counts as stored."""

    def __init__(self, document: dict[str, Any], scratch: Path) -> None:
        config, _ = review(document, local=True)
        seed = config.seed or 0
        self._job = Job(
            run_id="alone",
            attempt=1,
            config=config.with_seed(seed).model_dump(mode="json"),
            seed=seed,
            scratch=str(scratch),
        )
        self._told: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._inbox: list[Order] = []
        self.endings: list[ConnectionSummary] = []
        scratch.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def _train(self) -> None:
        self._told.put(_execute(self._job, self, []))

    def post(self, message: Message) -> None:
        """Take a report."""
        self._told.put(message)
        if isinstance(message, CheckpointWritten):
            self._inbox.append(CheckpointCommitted(folder=message.folder))

    def commands(self) -> list[Order]:
        """Return what the trainer has not heard."""
        taken, self._inbox = self._inbox, []
        return taken

    def reports(self) -> Iterator[dict[str, Any]]:
        """Yield what the trainer tells, to its last word."""
        while True:
            message = self._told.get()
            yield json.loads(describe(message))
            if isinstance(message, Finished):
                return

    def played_by(
        self, game: Simulation, note: Callable[[dict[str, Any]], None] = lambda message: None
    ) -> list[dict[str, Any]]:
        """Let a game play with the first collector, and copies of it with others; return all messages."""

        def play(game: Simulation, address: str) -> None:
            with suppress(SimulatorError):
                self.endings.append(connect(game, run="alone", server=address, connect_timeout_seconds=5.0))

        messages: list[dict[str, Any]] = []
        players: list[threading.Thread] = []
        for message in self.reports():
            messages.append(message)
            if message["type"] == "listening" and not players:
                games = [game, *(copy.deepcopy(game) for _ in message["endpoints"][1:])]
                for own, endpoint in zip(games, message["endpoints"], strict=True):
                    players.append(threading.Thread(target=play, args=(own, endpoint["address"]), daemon=True))
                    players[-1].start()
            note(message)
        for player in players:
            player.join(30)
        return messages

    def stop(self) -> None:
        """Ask the trainer to finish with a checkpoint."""
        self._inbox.append(Command(action="stop"))

    def end(self) -> None:
        """End the trainer, if the test did not wait for its end."""
        self._inbox.append(Command(action="cancel"))
        self._thread.join(60)
        assert not self._thread.is_alive()


StartTrainer = Callable[[dict[str, Any]], Alone]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartTrainer]:
    """Start trainers from documents; they end with the test."""
    started: list[Alone] = []

    def run(document: dict[str, Any]) -> Alone:
        started.append(Alone(document, tmp_path / "scratch"))
        return started[-1]

    yield run
    for trainer in started:
        trainer.end()
    torch.set_num_threads(1)


TrainAlone = Callable[..., int]


@pytest.fixture
def alone() -> Iterator[TrainAlone]:
    """Do what `python -m worker.trainer` does with these words, in this process; return the exit code."""
    handler = signal.getsignal(signal.SIGINT)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hooks = sys.excepthook, threading.excepthook

    def train(*words: str) -> int:
        try:
            return main(list(words))
        except SystemExit as error:
            return int(error.code or 0)

    yield train
    # A process does this once, and for good.
    signal.signal(signal.SIGINT, handler)
    torch.set_num_threads(1)
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.excepthook, threading.excepthook = hooks
    logging.captureWarnings(capture=False)
    lazy = type(structlog.get_logger())
    for value in [value for module in list(sys.modules.values()) for value in vars(module).values()]:
        if type(value) is lazy:
            vars(value).pop("bind", None)  # it keeps the logger that it made first


def points_of(messages: list[dict[str, Any]], key: str) -> dict[int, float]:
    """Return the points of one metric by step."""
    metrics = [message for message in messages if message["type"] == "metrics"]
    return {point["step"]: point["value"] for message in metrics for point in message["points"] if point["key"] == key}
