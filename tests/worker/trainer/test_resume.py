"""What a checkpoint holds of behaviors that have not come back yet."""

from pathlib import Path
from typing import Any

import torch

from tests.worker.trainer.superior import Superior
from tests.worker.trainer.test_clone import show
from worker import checkpoint
from worker.link import CheckpointWritten, Job
from worker.trainer.loop import Trainer


def test_a_behavior_that_nobody_has_announced_again_is_in_the_next_checkpoint_as_it_was(tmp_path: Path) -> None:
    state: dict[str, Any] = {"progress": {"step": 700, "round": 7}, "algorithm": {"weights": torch.arange(3.0)}}
    (tmp_path / "old").mkdir()
    checkpoint.save(tmp_path / "old", {"Runner": state})
    behaviors = {"Echo": {"trainer_type": "clone", "demo_path": show(tmp_path / "shown.npz")}, "Runner": {}}
    superior = Superior()
    job = Job(
        run_id="run",
        epoch=2,
        config={"behaviors": behaviors},
        seed=1,
        scratch=str(tmp_path / "scratch"),
        resume_from=str(tmp_path / "old"),
    )
    trainer = Trainer(job, superior, [])
    trainer._admission.begin_clones()

    folder = trainer._checkpoints.write("interval")

    assert folder is not None
    saved = checkpoint.load(Path(folder))
    assert set(saved) == {"Echo", "Runner"}
    assert saved["Runner"]["progress"] == state["progress"]
    assert torch.equal(saved["Runner"]["algorithm"]["weights"], torch.arange(3.0))
    (written,) = [message for message in superior.told if isinstance(message, CheckpointWritten)]
    assert written.steps == {"Runner": 700, "Echo": 0}
    trainer._pool.close("collector_closing", "the test is over", rejoin=False)
