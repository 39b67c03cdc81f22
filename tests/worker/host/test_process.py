"""Trainers as processes: one that cannot live is reported, and nothing of it is left."""

from pathlib import Path

import psutil
import pytest

from ludus.config.run import RunConfig
from worker.host.process import WarmTrainer
from worker.trainer.connection import ConnectionClosed
from worker.trainer.messages import Job

CONFIG = RunConfig.model_validate({"behaviors": {"A": {"trainer_type": "ppo"}}})


def test_an_interpreter_that_cannot_start_is_an_error_and_leaves_no_process(tmp_path: Path) -> None:
    """The job is larger than the socket's buffer, so that it is not taken for granted that somebody reads it."""
    job = Job(run_id="run", attempt=1, config=CONFIG, seed=1, scratch="x" * (1 << 22))
    broken = WarmTrainer({"PYTHONHOME": str(tmp_path)})
    before = {child.pid for child in psutil.Process().children()}

    with pytest.raises(ConnectionClosed):
        broken.take(job)

    broken.close()
    assert {child.pid for child in psutil.Process().children()} == before
