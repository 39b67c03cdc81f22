"""An attempt that resumes where everything is learned ends without a simulator: the one before died at its end."""

from pathlib import Path
from typing import Any

import pytest

from ludus.protocol.spec import BehaviorSpec
from tests.worker.rollouts import make_spec
from tests.worker.trainer.attempts import Listener
from tests.worker.trainer.differences import differences
from tests.worker.trainer.supervisor_port import Supervisor
from worker.trainer.checkpoint import load, save
from worker.trainer.loop import Trainer
from worker.trainer.messages import CheckpointWritten, Finished, Job

MAX_STEPS = 64
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"trainer_type": "ppo"},
    "sac": {"trainer_type": "sac", "hyperparameters": {"batch_size": 8, "buffer_size": 64}},
    "poca": {"trainer_type": "poca"},
    "self-play": {"trainer_type": "ppo", "self_play": {"save_steps": 16, "team_change": 32, "swap_steps": 16}},
}


def section(kind: str = "ppo", **changed: Any) -> dict[str, Any]:
    network = {"hidden_units": 8, "num_layers": 1}
    return {"network_settings": network, "max_steps": MAX_STEPS, **ALGORITHMS[kind], **changed}


def make_job(folder: Path, behaviors: dict[str, Any], resume_from: Path | None = None, **sections: Any) -> Job:
    config = {
        "behaviors": behaviors,
        "torch_settings": {"device": "cpu"},
        "simulators": {"startup_grace_seconds": 2.0},
        **sections,
    }
    attempt, source = (1, None) if resume_from is None else (2, str(resume_from))
    return Job(run_id="run", attempt=attempt, config=config, seed=1, scratch=str(folder), resume_from=source)


def spec_of(name: str) -> BehaviorSpec:
    spec = make_spec(branches=(3,))
    return BehaviorSpec(name, spec.observations, spec.actions)


def learned(folder: Path, sections: dict[str, dict[str, Any]], steps: dict[str, int]) -> Path:
    """Write a checkpoint of behaviors that have learned so many steps; return its folder."""
    trainer = Trainer(make_job(folder / "first", sections), Supervisor(), [])
    for name, step in steps.items():
        trainer._registry.register(spec_of(f"{name}?team=1"))
        trainer._attempt.learners[name].progress.step = step  # type: ignore[attr-defined]  # of a BehaviorLearner
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    save(checkpoint, trainer._checkpoints.state())
    trainer._attempt.pool.close("collector_closing", "the test is over", rejoin=False)
    return checkpoint


def end_of(job: Job) -> tuple[Finished, Listener]:
    """Run an attempt to which no simulator comes. It pauses if it waits for one."""
    listener = Listener()
    return Trainer(job, listener, []).run(), listener


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_run_that_has_learned_everything_ends_without_a_simulator_and_with_its_model(
    tmp_path: Path, kind: str
) -> None:
    sections = {"Walker": section(kind)}
    checkpoint = learned(tmp_path, sections, {"Walker": MAX_STEPS})

    finished, listener = end_of(make_job(tmp_path / "second", sections, checkpoint))

    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished
    (written,) = [message for message in listener.told if isinstance(message, CheckpointWritten)]
    assert (written.reason, written.steps, list(written.models)) == ("final", {"Walker": MAX_STEPS}, ["Walker.onnx"])
    assert differences(load(checkpoint), load(Path(written.folder))) == []


def test_a_run_with_two_behaviors_ends_without_a_simulator_and_with_both_models(tmp_path: Path) -> None:
    sections = {"Walker": section(), "Runner": section("sac")}
    checkpoint = learned(tmp_path, sections, {"Walker": MAX_STEPS, "Runner": MAX_STEPS + 3})

    finished, listener = end_of(make_job(tmp_path / "second", sections, checkpoint))

    assert finished.outcome == "succeeded", finished
    (written,) = [message for message in listener.told if isinstance(message, CheckpointWritten)]
    assert sorted(written.models) == ["Runner.onnx", "Walker.onnx"]


@pytest.mark.parametrize(
    ("steps", "sections"),
    [
        ({"Walker": MAX_STEPS, "Runner": 32}, {"Walker": section(), "Runner": section()}),
        ({"Walker": MAX_STEPS}, {"Walker": section(), "Runner": section()}),
    ],
    ids=["one is half way", "one has not begun"],
)
def test_a_run_with_a_behavior_that_is_not_done_waits_for_simulators(
    tmp_path: Path, steps: dict[str, int], sections: dict[str, dict[str, Any]]
) -> None:
    finished, _ = end_of(make_job(tmp_path / "second", sections, learned(tmp_path, sections, steps)))

    assert (finished.outcome, finished.reason) == ("paused", "simulators_lost")


def test_a_behavior_of_default_settings_that_is_half_way_is_waited_for_too(tmp_path: Path) -> None:
    sections = {"Walker": section(), "Runner": section()}
    checkpoint = learned(tmp_path, sections, {"Walker": MAX_STEPS, "Runner": 32})
    job = make_job(tmp_path / "second", {"Walker": section()}, checkpoint, default_settings=section())

    finished, _ = end_of(job)

    assert (finished.outcome, finished.reason) == ("paused", "simulators_lost")


def test_a_behavior_that_the_configuration_has_no_more_is_not_waited_for(tmp_path: Path) -> None:
    sections = {"Walker": section(), "Runner": section()}
    checkpoint = learned(tmp_path, sections, {"Walker": MAX_STEPS, "Runner": 32})

    finished, _ = end_of(make_job(tmp_path / "second", {"Walker": section()}, checkpoint))

    assert finished.outcome == "succeeded", finished


def test_a_run_goes_on_when_its_max_steps_was_raised(tmp_path: Path) -> None:
    checkpoint = learned(tmp_path, {"Walker": section()}, {"Walker": MAX_STEPS})

    finished, _ = end_of(make_job(tmp_path / "second", {"Walker": section(max_steps=2 * MAX_STEPS)}, checkpoint))

    assert (finished.outcome, finished.reason) == ("paused", "simulators_lost")


def test_a_run_that_plays_without_learning_waits_for_simulators_though_all_is_learned(tmp_path: Path) -> None:
    checkpoint = learned(tmp_path, {"Walker": section()}, {"Walker": MAX_STEPS})
    job = make_job(tmp_path / "second", {"Walker": section()}, checkpoint, checkpoint_settings={"inference": True})

    finished, _ = end_of(job)

    assert (finished.outcome, finished.reason) == ("paused", "simulators_lost")
