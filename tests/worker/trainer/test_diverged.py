"""A run that has failed as `diverged` says what went wrong, and leaves the weights from before."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ludus.sdk import SimulatorError, StepBuilder, connect
from tests.worker.trainer.conftest import StartTrainer, reports
from tests.worker.trainer.test_clone import Echo, document, show
from worker.trainer import checkpoint

NETWORK = {"hidden_units": 16, "num_layers": 1}


class Overpaid(Echo):
    """Pays as `Echo` for 200 decisions, then 1e30: the squared error of its critic is more than float32 holds."""

    asked = 0

    def _ask(self, builder: StepBuilder, reward: float) -> None:
        self.asked += 1
        super()._ask(builder, reward if self.asked < 200 else 1e30)


def of_type(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [message for message in messages if message["type"] == kind]


def rollbacks(messages: list[dict[str, Any]]) -> list[str]:
    """What is said of each update that was taken back."""
    return [event["message"] for event in of_type(messages, "event") if event["name"] == "update_rolled_back"]


def tensors_of(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def test_rewards_that_no_critic_can_learn_fail_the_run_and_leave_what_was_learnt_before(start: StartTrainer) -> None:
    ppo = {"hyperparameters": {"batch_size": 32, "buffer_size": 64}, "network_settings": NETWORK}
    trainer = start({"seed": 1, "behaviors": {"Echo": {**ppo, "max_steps": 10_000, "time_horizon": 16}}})
    messages: list[dict[str, Any]] = []
    players: list[threading.Thread] = []

    def play(address: str) -> None:
        with suppress(SimulatorError):
            connect(Overpaid(), run="alone", server=address, connect_timeout_seconds=5.0)

    for message in reports(trainer):
        messages.append(message)
        if message["type"] == "listening" and not players:
            players.append(threading.Thread(target=play, args=(message["endpoints"][0]["address"],), daemon=True))
            players[0].start()

    players[0].join(10)
    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "diverged")
    told = rollbacks(messages)
    assert len(told) == 3
    for sentence in (*told, messages[-1]["detail"]):
        assert sentence.startswith("Echo: value loss is not finite in minibatch 0; the update was taken back")
    (written,) = of_type(messages, "checkpoint_written")
    assert written["reason"] == "final"
    assert (Path(written["folder"]) / "Echo.onnx").exists()
    state = checkpoint.load(Path(written["folder"]))["Echo"]
    assert state["algorithm"]["version"] == 3, "200 decisions are three rounds of 64, and all were learned from"
    assert all(tensor.isfinite().all() for tensor in tensors_of(state))


def test_a_clone_that_learns_too_fast_fails_and_leaves_its_weights_from_before(
    start: StartTrainer, tmp_path: Path
) -> None:
    fast = {"batch_size": 32, "learning_rate": 1.0}
    network = {"hidden_units": 64, "num_layers": 6}
    shown = show(tmp_path / "expert.npz", steps=256)
    messages = list(reports(start(document(shown, hyperparameters=fast, network_settings=network))))

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "diverged")
    told = rollbacks(messages)
    assert len(told) == 3
    assert all("Echo: Losses/Pretraining Loss exploded from 0." in sentence for sentence in told)
    assert len(set(told)) == 3, "each attempt meets other minibatches"
    (written,) = of_type(messages, "checkpoint_written")
    assert written["steps"] == {"Echo": 0}
    assert (Path(written["folder"]) / "Echo.onnx").exists()
    state = checkpoint.load(Path(written["folder"]))["Echo"]
    assert all((tensor.abs() < 10.0).all() for tensor in tensors_of(state["algorithm"]["model"]))
