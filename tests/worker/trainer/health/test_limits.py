"""A limit of divergence ends a run; GAIL on episodes of different length is a finding about it."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ludus.sdk import Actions, SimulatorError, StepBuilder, connect
from tests.worker.trainer.conftest import StartTrainer, reports
from tests.worker.trainer.test_clone import Echo, show

SECTION = {
    "hyperparameters": {"batch_size": 32, "buffer_size": 128, "learning_rate_schedule": "constant"},
    "network_settings": {"hidden_units": 16, "num_layers": 1},
    "time_horizon": 16,
    "max_steps": 2560,
}


class Tempting(Echo):
    """Pays for the first choice whatever is seen; episodes are of 1, 2, 3, ... steps where `varies`."""

    varies = False
    episodes = 0

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        reward = 1.0 - float(next(iter(actions)).discrete[0])
        self._left -= 1
        if self._left == 0:
            builder.end_episode(agent=0, observation=[0.0], reward=reward)
            self.episodes += 1
            self._left, reward = (1 + self.episodes % 5 if self.varies else 5), 0.0
        self._ask(builder, reward)


def play_through(start: StartTrainer, game: Tempting, **section: Any) -> list[dict[str, Any]]:
    """Play a run to its end; return what its trainer told."""
    messages: list[dict[str, Any]] = []
    players: list[threading.Thread] = []

    def play(address: str) -> None:
        with suppress(SimulatorError):
            connect(game, run="alone", server=address, connect_timeout_seconds=5.0)

    for message in reports(start({"seed": 1, "behaviors": {"Echo": {**SECTION, **section}}})):
        messages.append(message)
        if message["type"] == "listening" and not players:
            players.append(threading.Thread(target=play, args=(message["endpoints"][0]["address"],), daemon=True))
            players[0].start()
    players[0].join(10)
    return messages


FAST = SECTION["hyperparameters"] | {"learning_rate": 1.0, "beta": 0.0}  # type: ignore[operator]


def test_a_limit_ends_the_run_as_diverged_and_keeps_the_policy(start: StartTrainer) -> None:
    limit = {"stop_entropy_below": 0.001}
    messages = play_through(start, Tempting(), hyperparameters=FAST, divergence=limit, max_steps=100_000)

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "diverged")
    assert "below the limit of 0.001 for 3 updates in a row" in messages[-1]["detail"]
    (written,) = [message for message in messages if message["type"] == "checkpoint_written"]
    assert (Path(written["folder"]) / "Echo.onnx").exists()
    assert "update_rolled_back" not in {message.get("name") for message in messages}


@pytest.mark.parametrize("varies", [True, False])
def test_gail_where_episodes_differ_in_length_is_a_finding(start: StartTrainer, tmp_path: Path, varies: bool) -> None:
    game = Tempting()
    game.varies = varies
    gail = {"demo_path": show(tmp_path / "expert.npz", steps=5), "network_settings": SECTION["network_settings"]}

    messages = play_through(start, game, reward_signals={"gail": gail}, max_steps=640)

    lists = [message["findings"] for message in messages if message["type"] == "findings"]
    assert ("gail_variable_horizon" in {finding["code"] for finding in lists[-1]}) == varies
