"""What a checkpoint holds of behaviors that have not come back yet."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from ludus.schemas.states import StopReason
from tests.worker.trainer.supervisor_port import Supervisor
from tests.worker.trainer.test_clone import show
from worker.trainer import checkpoint
from worker.trainer.loop import Trainer
from worker.trainer.messages import CheckpointCommitted, CheckpointWritten, Job, Order, Progress

STATE: dict[str, Any] = {"progress": {"step": 700, "round": 7}, "algorithm": {"weights": torch.arange(3.0)}}
"""Of a behavior that learns from whoever plays it."""


@contextmanager
def resumed(folder: Path, supervisor: Supervisor) -> Iterator[Trainer]:
    """An attempt that goes on with a behavior that nobody plays, beside one that needs nobody."""
    (folder / "old").mkdir()
    checkpoint.save(folder / "old", {"Runner": STATE})
    behaviors = {"Echo": {"trainer_type": "clone", "demo_path": show(folder / "shown.npz")}, "Runner": {}}
    job = Job(
        run_id="run",
        attempt=2,
        config={"behaviors": behaviors},
        seed=1,
        scratch=str(folder / "scratch"),
        resume_from=str(folder / "old"),
    )
    trainer = Trainer(job, supervisor, [])
    yield trainer
    trainer._attempt.pool.close("collector_closing", "the test is over", rejoin=False)


def test_a_behavior_that_nobody_has_announced_again_is_in_the_next_checkpoint_as_it_was(tmp_path: Path) -> None:
    supervisor = Supervisor()
    with resumed(tmp_path, supervisor) as trainer:
        trainer._registry.begin_clones()

        folder = trainer._checkpoints.write("interval")

    assert folder is not None
    saved = checkpoint.load(Path(folder))
    assert set(saved) == {"Echo", "Runner"}
    assert saved["Runner"]["progress"] == STATE["progress"]
    assert torch.equal(saved["Runner"]["algorithm"]["weights"], torch.arange(3.0))
    (written,) = [message for message in supervisor.told if isinstance(message, CheckpointWritten)]
    assert written.steps == {"Runner": 700, "Echo": 0}


def test_a_run_that_goes_on_is_as_far_as_its_checkpoint_before_anybody_plays(tmp_path: Path) -> None:
    """What it reports becomes the run's step: lists, `--require step>=...` and the last word of a stopped run."""
    supervisor = Supervisor(cancels=True)
    with resumed(tmp_path, supervisor) as trainer:
        trainer.run()

    steps = [message.step for message in supervisor.told if isinstance(message, Progress)]
    assert steps
    assert min(steps) >= 700


class Slow(Supervisor):
    """A supervisor that takes ten minutes, on a clock that it winds, to acknowledge a checkpoint."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now = self.begun = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def commands(self) -> list[Order]:
        """Answer the last question."""
        self.now += 60
        folders = [message.folder for message in self.told if isinstance(message, CheckpointWritten)]
        return [CheckpointCommitted(folder=folders[-1])] if folders and self.now > self.begun + 600 else []


def test_a_last_checkpoint_is_waited_for_however_long_it_takes_to_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that gave up would be released, begin where it ended, and give up again, for ever."""
    supervisor = Slow(monkeypatch)
    with resumed(tmp_path, supervisor) as trainer:
        trainer._registry.begin_clones()

        finished = trainer._checkpoints.finish("succeeded", StopReason.COMPLETED, "all is learned")

    assert (finished.outcome, finished.reason) == ("succeeded", "completed")
