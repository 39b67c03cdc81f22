"""Attempts that evaluate: frozen policies play, and their episodes are counted."""

from pathlib import Path
from typing import Any

import torch

from ludus.config.assessment import TrainedPolicy
from ludus.config.network import NetworkSettings
from server.config.resolution import resolve
from tests.worker.trainer.supervisor_port import Supervisor
from tests.worker.trainer.test_demonstrated import SPEC, STEPS, Echo
from worker.learning.build import Demonstrations, build_algorithm
from worker.trainer import checkpoint
from worker.trainer.loop import Trainer
from worker.trainer.messages import Assessed, Finished, Job

CKPT = "ckpt_" + "0" * 26
NETWORK: dict[str, Any] = {"hidden_units": 4, "num_layers": 1}


def evaluated(folder: Path, supervisor: Supervisor, checkpoints: dict[str, str], **settings: Any) -> Finished:
    """Evaluate a policy of `Echo` to the verdict."""
    document = {
        "behaviors": {"Echo": {}},
        "torch_settings": {"device": "cpu"},
        "evaluate": {"checkpoint": CKPT, "behavior": "Echo", "episodes": 8, **settings},
    }
    job = Job(
        run_id="alone",
        attempt=1,
        config=document,
        seed=1,
        scratch=str(folder),
        checkpoints=checkpoints,
        policies={CKPT: TrainedPolicy(trainer_type="ppo", network_settings=NetworkSettings.model_validate(NETWORK))},
    )
    finished = Trainer(job, supervisor, []).run()
    supervisor.join()
    return finished


def test_episodes_are_counted_to_the_verdict_and_all_is_told(tmp_path: Path) -> None:
    config = resolve({"behaviors": {"Echo": {"network_settings": NETWORK}}}).behaviors["Echo"]
    algorithm = build_algorithm(config, SPEC, torch.device("cpu"), 1, Demonstrations({}))  # type: ignore[arg-type]
    (tmp_path / "old").mkdir()
    state = {"progress": {"step": 700}, "algorithm": algorithm.state_dict()}
    checkpoint.save(tmp_path / "old", {"Echo": state})
    supervisor = Supervisor(Echo())

    finished = evaluated(tmp_path, supervisor, {CKPT: str(tmp_path / "old")}, threshold=-1.0)

    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished.detail
    assert supervisor.events["behavior_admitted"].message == f"Behavior Echo is played by {CKPT} (step 700)"
    told = supervisor.of(Assessed)[-1]
    assert (told.games, told.result["verdict"]) == (8, "pass")
    assert 0.0 <= told.result["mean"] <= STEPS
    assert supervisor.events["assessment_decided"].data == told.result


def test_a_checkpoint_that_was_not_handed_over_fails_the_run(tmp_path: Path) -> None:
    finished = evaluated(tmp_path, Supervisor(Echo()), {})

    assert (finished.outcome, finished.reason) == ("failed", "invalid_config")
    assert finished.detail == (
        f"evaluate.checkpoint: checkpoint {CKPT} was not handed to this trainer; create the run again"
    )
