"""Trainers as processes: one that cannot live is reported, and nothing of it is left."""

from pathlib import Path

import psutil
import pytest

from worker.host.process import WarmTrainer
from worker.trainer.link import Job, LinkClosed


def test_an_interpreter_that_cannot_start_is_an_error_and_leaves_no_process(tmp_path: Path) -> None:
    """The job is larger than the socket's buffer, so that it is not taken for granted that somebody reads it."""
    job = Job(run_id="run", epoch=1, config={"padding": "x" * (1 << 22)}, seed=1, scratch=str(tmp_path))
    broken = WarmTrainer({"PYTHONHOME": str(tmp_path)})
    before = {child.pid for child in psutil.Process().children()}

    with pytest.raises(LinkClosed):
        broken.take(job)

    broken.close()
    assert {child.pid for child in psutil.Process().children()} == before
