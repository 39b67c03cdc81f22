"""A client that remembers everything it was told, and holds the server to it."""

import hashlib
import threading
from pathlib import Path

from ludus.client import ApiError, Client
from ludus.schemas import Attempt, Event

METRIC = "Environment/Cumulative Reward"
POLL_SECONDS = 0.3


class Witness:
    """Reads a run's events, metrics and checkpoints over and over, from a thread of its own."""

    def __init__(self, server: str, run: str) -> None:
        self._server = server
        self._run = run
        self.events: dict[int, Event] = {}
        self.points: dict[int, tuple[int, float | None]] = {}
        """Step -> the newest attempt that had begun when it was read, value."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness")
        self._thread.start()

    def _watch(self) -> None:
        with Client(self._server) as client:
            while not self._over.wait(POLL_SECONDS):
                try:
                    self._look(client)
                except ApiError:
                    continue  # nothing was acknowledged

    def _look(self, client: Client) -> None:
        number = client.runs.get(self._run).attempt
        for event in client.events.list(self._run, max(self.events, default=0)):
            self.events[event.seq] = event
        for series in client.metrics.series(self._run, METRIC, points=5000, after_step=0):
            for step, value in zip(series.steps, series.values, strict=True):
                self.points[step] = (number, value)

    def stop(self) -> None:
        """Stop reading."""
        self._over.set()
        self._thread.join()

    def hold_to_account(self, client: Client, folder: Path) -> None:
        """Assert what must be true of a run that has ended, whatever happened to it. `folder` is for downloads."""
        events = list(client.events.list(self._run))
        attempts = sorted(client.runs.attempts(self._run), key=lambda each: each.number)
        assert [event.seq for event in events] == list(range(1, len(events) + 1)), "no event is missing"
        by_number = {event.seq: event for event in events}
        assert {seq: by_number.get(seq) for seq in self.events} == self.events, "no event that was told is lost"
        self._one_writer_per_epoch(events, attempts)
        self._steps_counted_once(client, events, attempts)
        self._checkpoints_whole(client, folder)

    def _one_writer_per_epoch(self, events: list[Event], attempts: list[Attempt]) -> None:
        assert [attempt.number for attempt in attempts] == list(range(1, len(attempts) + 1))
        assert all(attempt.ended_at is not None for attempt in attempts)
        writers = [event.attempt for event in events if event.attempt is not None]
        assert writers == sorted(writers), "nobody wrote after a newer attempt number had begun"
        claims = [event.attempt for event in events if event.type == "run_claimed"]
        assert claims == [attempt.number for attempt in attempts]

    def _steps_counted_once(self, client: Client, events: list[Event], attempts: list[Attempt]) -> None:
        resumed: dict[int, int] = {1: 0}
        saved = 0
        for event in events:
            if event.type == "checkpoint_saved":
                saved = event.data["step"]
            if event.type == "run_claimed" and event.attempt is not None:
                resumed[event.attempt] = saved  # "from the newest good checkpoint": not a step further back
        found = {attempt.number: attempt for attempt in attempts}
        for number, step in resumed.items():
            metrics = [event for event in events if event.type == "run_claimed" and event.attempt == number]
            said = f"resumes it at step {step}" if step else "took the run."
            assert said in metrics[0].message, f"attempt {number}: {metrics[0].message}, newest checkpoint {step}"
            assert found[number].step >= step
        (series,) = client.metrics.series(self._run, METRIC, points=5000, after_step=0)
        assert list(series.steps) == sorted(set(series.steps)), "one curve"
        kept = dict(zip(series.steps, series.values, strict=True))
        for step, (number, value) in self.points.items():
            superseded = any(later > number and step > begin for later, begin in resumed.items())
            assert superseded or kept.get(step) == value, f"the point at step {step} of attempt {number} is lost"

    def _checkpoints_whole(self, client: Client, folder: Path) -> None:
        """Every checkpoint that was told has its row, and the newest one its files, each as its checksum says."""
        checkpoints = {each.id: each for each in client.checkpoints.list(self._run)}
        told = {event.data["checkpoint_id"] for event in self.events.values() if event.type == "checkpoint_saved"}
        assert told <= checkpoints.keys() | {each for each in told if self._removed(client, each)}
        newest = client.checkpoints.get(self._run, "latest")
        assert newest.files
        for file in newest.files:
            content = client.checkpoints.download(self._run, newest.id, file.name, folder / "download").read_bytes()
            assert hashlib.sha256(content).hexdigest() == file.sha256

    def _removed(self, client: Client, checkpoint: str) -> bool:
        """Tell whether retention has removed the files of a checkpoint; its row says so."""
        return client.checkpoints.get(self._run, checkpoint).deleted_at is not None
