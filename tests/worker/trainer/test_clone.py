"""Clone runs: they learn from demonstrations alone, and are evaluated by whoever is there."""

import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.demonstrations import Demonstration, write
from ludus.sdk import (
    Actions,
    ActionSpec,
    BehaviorSpec,
    ObservationSpec,
    ResetInfo,
    Simulation,
    SimulatorError,
    StepBuilder,
    connect,
)
from tests.worker.trainer.conftest import StartTrainer, points_of, reports

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
    write(
        Demonstration(
            spec=BehaviorSpec("Echo", (ObservationSpec((size,)),), SPEC.actions),
            observations=(np.repeat(2.0 * choices[:, None] - 1.0, size, 1).astype(np.float32),),
            continuous=np.zeros((steps, 0), np.float32),
            discrete=choices[:, None].astype(np.int32),
            rewards=np.ones(steps, np.float32),
            terminated=np.arange(steps) == steps - 1,
            truncated=np.zeros(steps, np.bool_),
            starts=np.zeros(1, np.int64),
            final_observations=(np.zeros((1, size), np.float32),),
            from_start=np.ones(1, np.bool_),
        ),
        path,
    )
    return str(path)


def play(address: str) -> None:
    """Play until the trainer has no more use for it, or refuses it."""
    with suppress(SimulatorError):
        connect(Echo(), run="alone", server=address, connect_timeout_seconds=5.0)


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
    messages = list(reports(start(document(show(tmp_path / "expert.npz")))))

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

    for message in reports(trainer):
        messages.append(message)
        if message["type"] == "metrics":
            trainer.stop()

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("succeeded", "user")
    (checkpoint,) = [message for message in messages if message["type"] == "checkpoint_written"]
    assert 0 < checkpoint["step"] < 10_000_000
    assert (Path(checkpoint["folder"]) / "Echo.onnx").exists()


def test_a_simulator_that_dials_in_evaluates_exact_steps(start: StartTrainer, tmp_path: Path) -> None:
    # Learning takes a moment only: it is the evaluations that wait for the simulator.
    trainer = start(document(show(tmp_path / "expert.npz"), grace=60.0))
    messages: list[dict[str, Any]] = []
    players: list[threading.Thread] = []

    for message in reports(trainer):
        messages.append(message)
        if message["type"] == "listening" and not players:
            address = message["endpoints"][0]["address"]
            players.append(threading.Thread(target=play, args=(address,), daemon=True))
            players[0].start()

    players[0].join(10)
    returns = points_of(messages, "Evaluation/Cumulative Reward")
    assert list(returns) == [100, 200, 250]
    assert returns[250] == STEPS, "a clone of the expert makes no mistake"
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
    messages: list[dict[str, Any]] = []
    player: threading.Thread | None = None

    for message in reports(trainer):
        messages.append(message)
        if message["type"] == "listening" and player is None:
            address = message["endpoints"][0]["address"]
            player = threading.Thread(target=play, args=(address,), daemon=True)
            player.start()

    assert player is not None
    player.join(10)
    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "invalid_config")
    key = f"behaviors.Echo.{section}" if named == "Echo" else f"default_settings.{section}"
    assert re.fullmatch(rf"{key}\.demo_path: .*wider.npz.*\(3,\).*'Echo'.*\(1,\); record it .*", messages[-1]["detail"])
    refused = [message for message in messages if message["type"] == "event" and message["name"] == "behavior_refused"]
    assert [message["message"] for message in refused] == [messages[-1]["detail"]]
    assert not any(message["type"] == "metrics" for message in messages)


def test_a_clone_without_its_demonstration_fails_before_anybody_dials_in(start: StartTrainer, tmp_path: Path) -> None:
    messages = list(reports(start(document(str(tmp_path / "nowhere.npz")))))

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "invalid_config")
    assert re.match(r"behaviors\.Echo\.demo_path: .*nowhere\.npz: it cannot be read", messages[-1]["detail"])
