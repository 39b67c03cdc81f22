"""A whole trainer in the test's process, with real collectors, and simulations that dial in from threads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.sdk import Simulation
from server.ladders.refs import PlayedMatch
from tests.worker.trainer.supervisor_port import Supervisor
from worker.trainer.loop import Trainer
from worker.trainer.messages import CheckpointWritten, Finished, Job, MatchesPlayed, Metrics


class Recorder(Supervisor):
    """Remembers matches."""

    @property
    def matches(self) -> list[PlayedMatch]:
        return [match for message in self.of(MatchesPlayed) for match in message.matches]

    @property
    def checkpoints(self) -> list[CheckpointWritten]:
        return self.of(CheckpointWritten)

    def points(self, key: str, behavior: str) -> list[float]:
        """Return the points of a metric, in order."""
        points = [point for message in self.of(Metrics) for point in message.points]
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
    match_recorder = Recorder(*games)
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
