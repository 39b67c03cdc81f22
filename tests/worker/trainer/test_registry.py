"""Learners are built from checkpoints: to play without learning, and to go on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from ludus.protocol.spec import BehaviorSpec
from ludus.schemas import STEPS_PER_SECOND
from ludus.schemas.states import StopReason
from ludus.sdk import Actions, ResetInfo, Simulation, SimulatorError, StepBuilder
from server.config.resolution import resolve
from tests.worker.rollouts import make_spec
from tests.worker.trainer.conftest import StartTrainer, points_of
from tests.worker.trainer.supervisor_port import Supervisor
from tests.worker.trainer.test_demonstrated import show
from worker.trainer import checkpoint
from worker.trainer.loop import Trainer
from worker.trainer.messages import CheckpointCommitted, CheckpointWritten, Job, Order, Progress

SECTION = {
    "hyperparameters": {"batch_size": 16, "buffer_size": 32},
    "network_settings": {"hidden_units": 16},
    "max_steps": 64,
    "summary_freq": 16,
    "time_horizon": 8,
}


class Game(Simulation):
    """Agents with episodes of eight steps that end together; their player leaves after some of them."""

    def __init__(self, spec: BehaviorSpec, episodes: int, agents: int) -> None:
        self.behaviors = (spec,)
        seen = [[0.5] * part.size for part in spec.observations]
        self._seen = seen[0] if len(seen) == 1 else seen
        self._agents = range(agents)
        self._left = episodes
        self._tick = 0

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        del start
        for agent in self._agents:
            builder.request_decision(agent=agent, observation=self._seen)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        assert len(list(actions)) == len(self._agents)
        self._tick += 1
        if self._tick % 8 == 0 and not self._left:
            raise SimulatorError("gone", "the game was closed")
        self._left -= self._tick % 8 == 0
        for agent in self._agents:
            if self._tick % 8 == 0:
                builder.end_episode(agent=agent, observation=self._seen, reward=1.0)
            builder.request_decision(agent=agent, observation=self._seen, reward=0.0)


@pytest.fixture
def spec() -> BehaviorSpec:
    return replace(make_spec(observations=(3,), continuous=1), name="A")


def run(start: StartTrainer, spec: BehaviorSpec, agents: int = 1, **settings: Any) -> list[dict[str, Any]]:
    """Run a trainer with a game that leaves after ten episodes of each agent; return what it reported."""
    document = {
        "seed": 1,
        "behaviors": {"A": SECTION},
        "simulators": {"grace_seconds": 0.2},
        "checkpoint_settings": settings,
    }
    return start(document).played_by(Game(spec, 10, agents))


def test_nothing_is_learnt_or_saved_and_the_run_ends_with_its_last_player(
    start: StartTrainer, spec: BehaviorSpec
) -> None:
    messages = run(start, spec, inference=True)

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("succeeded", "completed")
    assert "no simulator plays any more" in messages[-1]["detail"]
    rewards = points_of(messages, "Environment/Cumulative Reward")
    assert set(rewards) <= {16, 32, 48, 64, 80}
    assert max(rewards) == 80, "summaries beyond max_steps too"
    assert set(rewards.values()) == {1.0}
    assert set(points_of(messages, "Policy/Version").values()) == {0.0}
    kinds = {message["type"] for message in messages}
    assert "checkpoint_written" not in kinds
    (admitted,) = [message for message in messages if message.get("name") == "behavior_admitted"]
    assert admitted["message"] == "Behavior A plays without learning from step 0"


def test_agents_whose_episodes_end_together_are_in_one_summary(start: StartTrainer, spec: BehaviorSpec) -> None:
    """Twelve agents whose episodes have eight decisions: 96 decisions end at once, and a summary is due every 16."""
    messages = run(start, spec, agents=12, inference=True)

    rewards = points_of(messages, "Environment/Cumulative Reward")
    lengths = points_of(messages, "Environment/Episode Length")
    times = [
        point["at"]
        for message in messages
        if message["type"] == "metrics"
        for point in message["points"]
        if point["key"] == "Environment/Cumulative Reward"
    ]
    assert set(rewards.values()) == {1.0}
    assert set(lengths.values()) == {8.0}
    assert len(rewards) <= 10, "there were ten ends of episodes, each of twelve agents"
    assert len(set(times)) == len(rewards)
    assert max(points_of(messages, STEPS_PER_SECOND)) >= 10 * 96


@pytest.mark.long
def test_a_run_whose_critic_sees_more_is_played_and_saved_and_its_model_lacks_what_the_policy_did_not_see(
    start: StartTrainer, tmp_path: Path
) -> None:
    spec = replace(make_spec(observations=(3, 2), continuous=1), name="A")
    network = {"hidden_units": 16, "normalize": True, "privileged_observations": ["vector 1"]}
    signals = {"extrinsic": {"normalize_reward": True}}
    section = {**SECTION, "network_settings": network, "reward_signals": signals}

    messages = start({"seed": 1, "behaviors": {"A": section}}).played_by(Game(spec, 100, 2))

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("succeeded", "completed")
    assert max(points_of(messages, "Policy/Acting KL").values()) < 1e-6, "collectors act with the policy that learns"
    assert set(points_of(messages, "Environment/Cumulative Reward").values()) == {1.0}
    folder = Path([message for message in messages if message["type"] == "checkpoint_written"][-1]["folder"])
    model = onnx.load(folder / "A.onnx")
    assert [entry.name for entry in model.graph.input] == ["obs_0"]
    state = checkpoint.behavior_states(checkpoint.load(folder))["A"]["algorithm"]
    assert tuple(state["model"]["privileged.normalizer.mean"].shape) == (2,)
    assert state["signals"]["extrinsic"]["scale"]["statistics"]["count"] > 60


CHECKPOINT = f"ckpt_{'0' * 26}"


@contextmanager
def trainer_of(folder: Path, section: dict[str, Any], **settings: Any) -> Iterator[Trainer]:
    """Make a trainer that has brought along the checkpoint in `other`."""
    document = {"behaviors": {"A": section}, "checkpoint_settings": settings}
    job = Job(
        run_id="run",
        attempt=1,
        config=resolve(document).model_dump(mode="json"),
        seed=1,
        scratch=str(folder / "scratch"),
        checkpoints={CHECKPOINT: str(folder / "other")},
    )
    trainer = Trainer(job, Supervisor(), [])
    yield trainer
    trainer.attempt.pool.close("collector_closing", "the test is over", rejoin=False)


def write_checkpoint(folder: Path, spec: BehaviorSpec) -> dict[str, Any]:
    """Write the checkpoint of another run, at step 32; return the state in it."""
    with trainer_of(folder, SECTION) as trainer:
        trainer.registry.register(spec)
        state: dict[str, Any] = dict(trainer.attempt.learners["A"].state())
    state["progress"] = {"step": 32, "round": 1}
    for weights in state["algorithm"]["model"].values():
        weights.add_(0.25)
    (folder / "other").mkdir()
    checkpoint.save(folder / "other", {"A": state})
    return state


@pytest.mark.parametrize("inference", [False, True])
def test_a_run_goes_on_at_the_step_and_with_the_weights_of_another_ones_checkpoint(
    inference: bool, tmp_path: Path, spec: BehaviorSpec
) -> None:
    state = write_checkpoint(tmp_path, spec)

    with trainer_of(tmp_path, SECTION, resume_from=CHECKPOINT, inference=inference) as trainer:
        trainer.registry.register(spec)
        learner = trainer.attempt.learners["A"]
        found: Any = learner.state()

    assert learner.learned == 32
    assert found["algorithm"]["optimizer"].keys() == state["algorithm"]["optimizer"].keys()
    for key, weights in state["algorithm"]["model"].items():
        assert torch.equal(found["algorithm"]["model"][key], weights), key


def test_a_checkpoint_of_other_networks_fails_the_run_with_both_sizes(tmp_path: Path, spec: BehaviorSpec) -> None:
    write_checkpoint(tmp_path, spec)
    other = SECTION | {"network_settings": {"hidden_units": 8}}

    with trainer_of(tmp_path, other, resume_from=CHECKPOINT) as trainer:
        trainer.registry.register(spec)
        finished = trainer.registry.unusable

    assert finished is not None
    assert (finished.outcome, finished.reason) == ("failed", "invalid_config")
    assert finished.detail is not None
    assert "the checkpoint to go on from does not fit behavior 'A'" in finished.detail
    assert "is 16x3, needed is 8x3" in finished.detail


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
    trainer.attempt.pool.close("collector_closing", "the test is over", rejoin=False)


def test_a_behavior_that_nobody_has_announced_again_is_in_the_next_checkpoint_as_it_was(tmp_path: Path) -> None:
    supervisor = Supervisor()
    with resumed(tmp_path, supervisor) as trainer:
        trainer.registry.begin_demonstrated()

        folder = trainer.checkpoints.write("interval")

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
        trainer.registry.begin_demonstrated()

        finished = trainer.checkpoints.finish("succeeded", StopReason.COMPLETED, "all is learned")

    assert (finished.outcome, finished.reason) == ("succeeded", "completed")
