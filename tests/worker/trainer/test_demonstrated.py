"""Clone runs: they learn from demonstrations alone, and are evaluated by whoever is there."""

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ludus.config.behavior import CloneConfig
from ludus.config.run import SimulatorsConfig
from ludus.demonstrations import DemonstrationError, write
from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec, ResetInfo, Simulation, StepBuilder
from server.metrics.points import MetricPoint
from tests.ludus.demonstrations.shown import make_demonstration
from tests.worker.learners import RecordingCollection, ended_episodes
from tests.worker.rollouts import make_spec
from tests.worker.trainer.conftest import StartTrainer, points_of
from worker.learning.build import Demonstrations, build_demonstrated
from worker.trainer.demonstrated import DemonstratedLearner
from worker.trainer.recorder import EVALUATION_REWARD, Recorder

SPEC = BehaviorSpec("Echo", (ObservationSpec((1,)),), ActionSpec(discrete_branches=(2,)))
STEPS = 5
"""Steps of an episode."""
OTHER = {"behaviors": {"Other": {}}}
"""Whom nobody plays."""


class Echo(Simulation):
    """Pays 1 for the choice that is seen (-1 or 1), 0 else: 5 is the best return."""

    behaviors = (SPEC,)

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)
        self._seen = 0
        self._left = STEPS

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        del start
        self._ask(builder, 0.0)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        reward = float(next(iter(actions)).discrete[0] == self._seen)
        self._left -= 1
        if self._left == 0:
            builder.end_episode(agent=0, observation=[0.0], reward=reward)
            self._left, reward = STEPS, 0.0
        self._ask(builder, reward)

    def _ask(self, builder: StepBuilder, reward: float) -> None:
        self._seen = int(self._rng.integers(2))
        builder.request_decision(agent=0, observation=[2.0 * self._seen - 1.0], reward=reward)


def show(path: Path, *, size: int = 1, steps: int = 64) -> str:
    """Write a demonstration of an expert of `Echo` that sees `size` numbers."""
    choices = np.arange(steps) % 2
    shown = make_demonstration(
        BehaviorSpec("Echo", (ObservationSpec((size,)),), SPEC.actions),
        (steps,),
        observations=(np.repeat(2.0 * choices[:, None] - 1.0, size, 1).astype(np.float32),),
        discrete=choices[:, None].astype(np.int32),
    )
    write(shown, path)
    return str(path)


def document(demonstration: str, grace: float = 1.0, **overrides: Any) -> dict[str, Any]:
    return {
        "seed": 1,
        "behaviors": {
            "Echo": {
                "trainer_type": "clone",
                "demo_path": demonstration,
                "hyperparameters": {"batch_size": 32, "learning_rate": 0.01},
                "network_settings": {"hidden_units": 16, "num_layers": 1},
                "max_steps": 250,
                "summary_freq": 50,
                "evaluation_interval": 100,
                "evaluation_episodes": 4,
                **overrides,
            }
        },
        "simulators": {"grace_seconds": grace, "startup_grace_seconds": grace},
    }


def test_a_clone_learns_without_any_simulator_and_leaves_a_model(start: StartTrainer, tmp_path: Path) -> None:
    messages = list(start(document(show(tmp_path / "expert.npz"))).reports())

    losses = points_of(messages, "Losses/Pretraining Loss")
    assert list(losses) == [50, 100, 150, 200, 250]
    assert losses[250] < 0.05 < losses[50]
    assert points_of(messages, "Evaluation/Cumulative Reward") == {}
    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("succeeded", "completed")
    checkpoint = next(message for message in messages if message["type"] == "checkpoint_written")
    assert checkpoint["steps"] == {"Echo": 250}
    assert {path.name for path in Path(checkpoint["folder"]).iterdir()} >= {"Echo.onnx", "state.safetensors"}


def test_a_stopped_clone_leaves_a_checkpoint_of_where_it_was(start: StartTrainer, tmp_path: Path) -> None:
    trainer = start(document(show(tmp_path / "expert.npz"), max_steps=10_000_000, evaluation_episodes=0))
    messages: list[dict[str, Any]] = []

    for message in trainer.reports():
        messages.append(message)
        if message["type"] == "metrics":
            trainer.stop()

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("succeeded", "user")
    (checkpoint,) = [message for message in messages if message["type"] == "checkpoint_written"]
    assert 0 < checkpoint["step"] < 10_000_000
    assert (Path(checkpoint["folder"]) / "Echo.onnx").exists()


@pytest.mark.long
@pytest.mark.parametrize("memory", [None, {"memory_size": 8, "sequence_length": 4}], ids=["no memory", "memory"])
def test_a_simulator_that_dials_in_evaluates_exact_steps(
    start: StartTrainer, tmp_path: Path, memory: dict[str, int] | None
) -> None:
    # Learning takes a moment only: it is the evaluations that wait for the simulator.
    network = {"hidden_units": 16, "num_layers": 1, "memory": memory}
    messages = start(document(show(tmp_path / "expert.npz"), 60.0, network_settings=network)).played_by(Echo())

    returns = points_of(messages, "Evaluation/Cumulative Reward")
    assert list(returns) == [100, 200, 250]
    # A memory of random numbers at first: after so few steps it draws the other choice now and then.
    assert returns[250] == STEPS if memory is None else returns[250] > STEPS - 2, "a clone of the expert plays like it"
    assert points_of(messages, "Evaluation/Episode Length")[250] == STEPS
    assert messages[-1]["outcome"] == "succeeded"


@pytest.mark.parametrize(
    ("named", "section"),
    [("Echo", "behavioral_cloning"), ("Other", "reward_signals.gail")],
    ids=["its own section", "the template's"],
)
def test_a_demonstration_that_does_not_fit_fails_the_run_before_training_with_its_key_and_both_shapes(
    start: StartTrainer, tmp_path: Path, named: str, section: str
) -> None:
    behavior: dict[str, Any] = {"demo_path": show(tmp_path / "wider.npz", size=3)}
    for key in reversed(section.split(".")):
        behavior = {key: behavior}
    trainer = start({"behaviors": {"Echo": behavior}} if named == "Echo" else {"default_settings": behavior, **OTHER})

    messages = trainer.played_by(Echo())

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "invalid_config")
    key = f"behaviors.Echo.{section}" if named == "Echo" else f"default_settings.{section}"
    assert re.fullmatch(rf"{key}\.demo_path: .*wider.npz.*\(3,\).*'Echo'.*\(1,\); record it .*", messages[-1]["detail"])
    refused = [message for message in messages if message["type"] == "event" and message["name"] == "behavior_refused"]
    assert [message["message"] for message in refused] == [messages[-1]["detail"]]
    assert not any(message["type"] == "metrics" for message in messages)


def test_a_clone_without_its_demonstration_fails_before_anybody_dials_in(start: StartTrainer, tmp_path: Path) -> None:
    messages = list(start(document(str(tmp_path / "nowhere.npz"))).reports())

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "invalid_config")
    assert re.match(r"behaviors\.Echo\.demo_path: .*nowhere\.npz: it cannot be read", messages[-1]["detail"])


DEMONSTRATION = "dem_" + "0" * 26


class World:
    """A clone's learner with nobody around, at first."""

    def __init__(
        self, folder: Path, *, grace: float = 60.0, startup_grace: float | None = 60.0, episodes: int = 3
    ) -> None:
        self.collection = RecordingCollection()
        self.points: list[MetricPoint] = []
        self.told: list[str] = []
        self.messages: list[str] = []
        self.played = False
        config = CloneConfig.model_validate(
            {
                "demonstrations": [DEMONSTRATION],
                "hyperparameters": {"batch_size": 16},
                "network_settings": {"hidden_units": 4, "num_layers": 1},
                "max_steps": 25,
                "checkpoint_interval": 20,
                "evaluation_interval": 10,
                "evaluation_episodes": episodes,
            }
        )
        paths = Demonstrations({DEMONSTRATION: show(folder / "shown.npz")})
        algorithm, spec, shown = build_demonstrated(config, "Echo", torch.device("cpu"), 1, paths)
        self.learner = DemonstratedLearner(
            spec,
            algorithm,
            shown,
            Recorder("Echo", 100, lambda metrics: self.points.extend(metrics.points), strength=None),
            self.collection,
            simulators=SimulatorsConfig(grace_seconds=grace, startup_grace_seconds=startup_grace),
            is_played=lambda: self.played,
            report=self._tell,
        )

    def _tell(self, event: str, message: str) -> None:
        self.told.append(event)
        self.messages.append(message)

    def dial_in(self) -> None:
        self.learner.register(SPEC, "cpu")
        self.played = True

    def end(self, *episodes: tuple[int, float]) -> None:
        """Report finished episodes: the version that answered the first decision, and the return."""
        versions, returns = (np.array(column) for column in zip(*episodes, strict=True))
        self.learner.episodes_ended(ended_episodes("Echo", version=versions, **{"return": returns}, length=5))

    @property
    def evaluations(self) -> dict[int, float]:
        return {point.step: point.value for point in self.points if point.key == EVALUATION_REWARD}


def test_an_evaluation_waits_for_a_simulator_and_says_so(tmp_path: Path) -> None:
    world = World(tmp_path)

    world.learner.learn()

    assert (world.learner.step, world.learner.ready, world.told) == (10, False, ["evaluation_waits"])
    world.dial_in()
    assert ("publish", 10) in world.collection.take(), "the weights of the step that it waits at"
    world.end((10, 1.0), (10, 2.0), (10, 6.0))
    assert world.learner.ready
    world.learner.learn()
    assert world.evaluations == {10: 3.0}


def test_a_clone_that_nobody_plays_waits_once_says_so_and_learns_on(tmp_path: Path) -> None:
    world = World(tmp_path, startup_grace=0.2)

    deadline = time.monotonic() + 30
    while not world.learner.done:
        assert time.monotonic() < deadline
        if world.learner.ready:
            world.learner.learn()

    assert world.learner.step == 25
    assert world.evaluations == {}
    assert world.told == ["evaluation_waits", "evaluation_abandoned"]
    assert world.collection.calls == []


def test_after_a_wait_in_vain_a_simulator_that_comes_is_used_again(tmp_path: Path) -> None:
    world = World(tmp_path, startup_grace=1e-9)
    world.learner.learn()
    world.learner.learn()
    world.dial_in()

    world.learner.learn()

    assert (world.learner.step, world.learner.ready) == (20, False)
    world.end((20, 1.0), (20, 1.0), (20, 1.0))
    world.learner.learn()
    world.played = False
    world.learner.learn()
    assert (world.learner.step, world.learner.done) == (25, False), "and waited for, should it be away for a moment"


def test_a_clone_without_evaluations_waits_for_nobody(tmp_path: Path) -> None:
    world = World(tmp_path, episodes=0)
    world.dial_in()

    for _ in range(3):
        world.learner.learn()

    assert (world.learner.step, world.learner.done, world.told) == (25, True, [])


def test_an_evaluation_counts_episodes_of_its_own_weights_from_their_first_decision_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.dial_in()
    assert world.collection.take() == [("admit", "Echo"), ("publish", 0), ("unrecorded",)]

    world.learner.learn()

    assert world.learner.step == 10, "steps end at the evaluation"
    assert world.collection.take() == [("publish", 10)]
    assert not world.learner.ready, "learning waits for it"
    world.end((0, 100.0), (10, 1.0), (0, 100.0), (10, 2.0))
    assert not world.learner.ready
    world.end((10, 6.0), (10, 100.0))
    assert world.learner.ready
    world.learner.learn()
    assert world.evaluations == {10: 3.0}, "the first three: (1 + 2 + 6) / 3"
    world.learner.learn()
    assert world.learner.step == 20


def test_the_end_is_evaluated_before_the_clone_is_done(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.dial_in()
    for step in (10, 20):
        world.learner.learn()
        world.end(*[(step, 1.0)] * 3)
        world.learner.learn()

    world.learner.learn()

    assert (world.learner.step, world.learner.done) == (25, False)
    world.end((25, 1.0), (25, 1.0), (25, 1.0))
    world.learner.learn()
    assert world.learner.done
    assert world.evaluations == {10: 1.0, 20: 1.0, 25: 1.0}


def test_an_evaluation_whose_simulator_left_waits_for_it_to_come_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.dial_in()
    world.learner.learn()
    world.end((10, 1.0))

    world.played = False

    assert not world.learner.ready
    world.played = True
    world.end((10, 1.0), (10, 4.0))
    world.learner.learn()
    assert world.evaluations == {10: 2.0}


def test_a_game_without_ends_does_not_stop_the_clone(tmp_path: Path) -> None:
    world = World(tmp_path, grace=1e-9)
    world.dial_in()

    for _ in range(10):
        if world.learner.ready:
            world.learner.learn()

    assert world.learner.done
    assert set(world.told) == {"evaluation_abandoned"}


def test_a_game_that_is_not_what_was_shown_is_refused_and_the_clone_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path)

    with pytest.raises(DemonstrationError, match=r"\(1,\).*\(7,\)"):
        world.learner.register(make_spec(observations=(7,), branches=(2,)), "cpu")

    world.learner.learn()
    assert world.learner.step == 10


def test_a_resumed_clone_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    world, resumed = World(tmp_path, episodes=0), World(tmp_path, episodes=0)
    world.learner.learn()
    assert not world.learner.checkpoint_due

    resumed.learner.algorithm.load_state_dict(world.learner.algorithm.state_dict())
    resumed.learner.checkpointed()
    for one in (world, resumed):
        one.learner.learn()

    assert resumed.learner.step == world.learner.step == 20
    assert resumed.learner.checkpoint_due
    np.testing.assert_array_equal(world.learner.algorithm.flat_weights(), resumed.learner.algorithm.flat_weights())


@pytest.mark.parametrize(
    ("startup_grace", "limit"), [(600.0, "for 600 s"), (None, "without limit")], ids=["limited", "unlimited"]
)
def test_the_first_simulator_is_waited_for_as_long_as_in_any_run(
    tmp_path: Path, startup_grace: float | None, limit: str
) -> None:
    world = World(tmp_path, grace=1e-9, startup_grace=startup_grace)

    world.learner.learn()

    assert not world.learner.ready, "it is not over after the grace for simulators that were there"
    (message,) = world.messages
    assert message.startswith(
        f"The evaluation of Echo at step 10 waits for a simulator, {limit} (simulators.startup_grace_seconds); "
    )
    world.dial_in()
    assert not world.learner.ready, "its episodes are waited for"
    assert world.learner.ready, "but not for longer than the grace"
