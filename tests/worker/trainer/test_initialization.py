"""A trainer that begins with a checkpoint of ML-Agents: it learns on, or says what does not fit."""

import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ludus.protocol.spec import BehaviorSpec
from ludus.sdk import Actions, ResetInfo, Simulation, SimulatorError, StepBuilder, connect
from server.config.resolution import resolve
from tests.worker.mlagents.results import Result
from tests.worker.trainer.conftest import StartTrainer, reports
from tests.worker.trainer.supervisor_port import Supervisor
from worker.trainer import checkpoint
from worker.trainer.loop import Trainer
from worker.trainer.messages import Job

RESULT = Result("ppo-lstm-curiosity-rnd-curriculum")


class Game(Simulation):
    """One agent that sees four random numbers and does something; episodes last eight steps."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self.behaviors = (spec,)
        self._rng = np.random.default_rng(1)
        self._tick = 0

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        del start
        self._ask(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        assert len(list(actions)) == 1
        self._tick += 1
        if self._tick % 8 == 0:
            builder.end_episode(agent=0, observation=self._see(), reward=1.0)
        self._ask(builder)

    def _ask(self, builder: StepBuilder) -> None:
        builder.request_decision(agent=0, observation=self._see(), reward=0.1)

    def _see(self) -> list[float]:
        return [float(number) for number in self._rng.normal(size=4)]


def train(start: StartTrainer, spec: BehaviorSpec, **changes: Any) -> list[dict[str, Any]]:
    """Train with a simulator to the end; return what was reported."""
    section = {**RESULT.section(), "init_path": str(RESULT.checkpoint), "max_steps": 256, **changes}
    messages: list[dict[str, Any]] = []
    player: list[threading.Thread] = []

    def play(address: str) -> None:
        with suppress(SimulatorError):
            connect(Game(spec), run="alone", server=address, connect_timeout_seconds=5.0)

    for message in reports(start({"seed": 1, "behaviors": {"A": section}})):
        messages.append(message)
        if message["type"] == "listening":
            player.append(threading.Thread(target=play, args=(message["endpoints"][0]["address"],)))
            player[-1].start()
    for thread in player:
        thread.join(20)
    return messages


def test_it_learns_on_from_step_0_with_the_statistics_and_moments_of_the_checkpoint(
    start: StartTrainer, tmp_path: Path
) -> None:
    messages = train(start, RESULT.spec)

    assert messages[-1]["outcome"] == "succeeded", messages[-1]
    (began,) = [message for message in messages if message.get("name") == "behavior_initialized"]
    assert began["message"] == (
        f"Behavior A begins with checkpoint {RESULT.checkpoint}, which had learned for 720 steps; new are the "
        "optimizer of curiosity, the optimizer of rnd"
    )
    assert began["data"]["fresh"] == ["the optimizer of curiosity", "the optimizer of rnd"]
    written = [message for message in messages if message["type"] == "checkpoint_written"][-1]
    assert written["steps"] == {"A": 256}, "counted from 0"
    state = checkpoint.load(Path(written["folder"]))["A"]["algorithm"]
    assert float(state["model"]["actor.body.normalizer.count"]) == 721 + 256
    assert float(state["optimizer"]["steps"]) == 35 + 2 * 128 / 32
    model = onnxruntime.InferenceSession(Path(written["folder"]) / "A.onnx")
    assert [entry.name for entry in model.get_inputs()] == ["obs_0", "action_masks", "recurrent_in"]


@pytest.mark.long
def test_a_checkpoint_of_other_networks_fails_the_run_with_the_names(start: StartTrainer) -> None:
    spec = replace(RESULT.spec, actions=replace(RESULT.spec.actions, discrete_branches=(3, 4)))

    messages = train(start, spec)

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "invalid_config")
    detail = messages[-1]["detail"]
    assert detail.startswith(f"the checkpoint {RESULT.checkpoint} does not fit behavior 'A'")
    assert "Policy/action_model._discrete_distribution.branches.1.weight is 2x4, needed is 4x4" in detail
    assert "Module:Curiosity/discrete_action_prediction.bias is 5, needed is 7" in detail
    (refused,) = [message for message in messages if message.get("name") == "behavior_refused"]
    assert refused["message"] in detail


def test_a_run_that_goes_on_from_its_own_checkpoint_does_not_begin_again(tmp_path: Path) -> None:
    clone = {
        "trainer_type": "clone",
        "demo_path": str(tmp_path / "shown.npz"),
        "network_settings": {"hidden_units": 16},
        "init_path": str(Result("selfplay-gail-vail-bc").checkpoint),
    }
    Result("selfplay-gail-vail-bc").built(tmp_path)  # writes the demonstration
    config = resolve({"behaviors": {"A": clone}}, local=True).model_dump(mode="json")
    first, again = Supervisor(), Supervisor()

    weights = []
    for supervisor, resume in ((first, None), (again, tmp_path / "old")):
        job = Job(
            run_id="run",
            attempt=1,
            config=config,
            seed=1,
            scratch=str(tmp_path / f"scratch-{len(weights)}"),
            resume_from=None if resume is None else str(resume),
        )
        trainer = Trainer(job, supervisor, [])
        trainer._registry.begin_clones()
        learner = trainer._attempt.learners["A"]
        learner.learn()
        weights.append(learner.algorithm.flat_weights())  # type: ignore[attr-defined]  # a clone's
        if resume is None:
            (tmp_path / "old").mkdir()
            checkpoint.save(tmp_path / "old", {"A": learner.state()})
        trainer._attempt.pool.close("collector_closing", "the test is over", rejoin=False)

    assert "behavior_initialized" in first.events()
    assert "behavior_initialized" not in again.events()
    assert (weights[0] != weights[1]).any(), "it learned on from the first one's weights"
    assert learner.step == 100
