"""Attempts of one run in the test's own process, with a game that stays while they come and go."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from ludus.sdk import SimulatorError, connect
from tests.ports import free_port
from tests.toys.wanderers import Wanderers
from tests.worker.trainer.supervisor_port import Supervisor
from worker.trainer import checkpoint
from worker.trainer.loop import Trainer
from worker.trainer.messages import CheckpointWritten, Command, Job, Message, Metrics, Order

LOCK_TIMEOUT_SECONDS = 120.0
"""How long a game waits for the next attempt, whose processes take long to start on a busy machine."""
CLOCKED = ("Performance/",)
"""Metrics that depend on the clock."""


class Listener(Supervisor):
    """A supervisor that releases the run after so many checkpoints, or when it is time."""

    def __init__(self, release_after: int | None = None, release_when: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._release_after = release_after
        self._release_when = release_when

    def post(self, message: Message) -> None:
        """Take a report."""
        super().post(message)
        if isinstance(message, CheckpointWritten) and len(self.folders) == self._release_after:
            self.orders.append(Command(action="release"))

    def commands(self) -> list[Order]:
        """Return what the trainer has not heard."""
        if self._release_when():
            self._release_when = lambda: False
            self.orders.append(Command(action="release"))
        return super().commands()

    def measured(self) -> dict[tuple[str, int], float]:
        """Values by metric and step, without what the clock says."""
        points = [point for message in self.of(Metrics) for point in message.points]
        return {(one.key, one.step): one.value for one in points if not one.key.startswith(CLOCKED)}


class Run:
    """One run: a configuration, a port, a folder."""

    def __init__(self, config: Mapping[str, Any], folder: Path, *, seed: int = 5) -> None:
        self.config = dict(config)
        self.folder = folder
        self.seed = seed
        self.number = 0
        self.port = free_port()

    def job(self, resume_from: Path | None = None) -> Job:
        """Return the next attempt."""
        self.number += 1
        return Job(
            run_id="run",
            attempt=self.number,
            config=self.config,
            seed=self.seed,
            resume_from=None if resume_from is None else str(resume_from),
            scratch=str(self.folder / f"attempt-{self.number}"),
            port_range=(self.port, self.port),
        )

    def attempt(
        self,
        resume_from: Path | None = None,
        *,
        release_after: int | None = None,
        release_when: Callable[[], bool] | None = None,
    ) -> Listener:
        """Train to the end, or until the run is released."""
        listener = Listener(release_after, release_when or (lambda: False))
        finished = Trainer(self.job(resume_from), listener, []).run()
        expected = "succeeded" if release_after is None and release_when is None else "released"
        assert finished.outcome == expected, finished
        return listener


@contextmanager
def playing(game: Wanderers, run: Run) -> Iterator[None]:
    """Let a game play in a run, over all of its attempts."""

    def play() -> None:
        with suppress(SimulatorError):
            connect(game, run="run", server=f"127.0.0.1:{run.port}", connect_timeout_seconds=LOCK_TIMEOUT_SECONDS)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive(), "the game was told that the run is over"


def final_state(listener: Listener) -> dict[str, Any]:
    """Return what the last checkpoint holds."""
    return checkpoint.load(listener.folders[-1])


def start_process(run: Run) -> "subprocess.Popen[bytes]":
    """Start an attempt as a process group of its own."""
    job = run.folder / "job.json"
    job.parent.mkdir(parents=True, exist_ok=True)
    job.write_text(run.job().model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-m", "tests.worker.trainer.attempts", str(job)]
    return subprocess.Popen(command, start_new_session=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    Trainer(Job.model_validate_json(Path(sys.argv[1]).read_bytes()), Listener(), []).run()
