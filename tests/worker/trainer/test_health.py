"""A run whose policy does not learn any more says so: while it goes on, and with its last word."""

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
SAC = {"trainer_type": "sac", "hyperparameters": {"batch_size": 32, "buffer_size": 1000, "steps_per_update": 8}}
"""SAC holds the entropy at its target: here nothing collapses."""


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


def events(messages: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [message for message in messages if message["type"] == "event" and message["name"] in names]


FAST = SECTION["hyperparameters"] | {"learning_rate": 1.0, "beta": 0.0}  # type: ignore[operator]


@pytest.mark.long
def test_a_policy_whose_entropy_is_gone_succeeds_with_a_warning_and_a_last_word(start: StartTrainer) -> None:
    messages = play_through(start, Tempting(), hyperparameters=FAST)

    (exploded,) = events(messages, "kl_exploded")
    assert exploded["data"]["step"] == 128
    (told,) = events(messages, "entropy_collapsed")
    assert told["level"] == "warning"
    assert told["data"]["measure"] == "branch 0"
    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("succeeded", "completed")
    assert messages[-1]["detail"].startswith("every behavior reached its max_steps; Echo: the entropy of branch 0 is ")
    assert f"since step {told['data']['step']:,}; Echo: Policy/Approximate KL is " in messages[-1]["detail"]


def test_a_limit_ends_the_run_as_diverged_and_keeps_the_policy(start: StartTrainer) -> None:
    limit = {"stop_entropy_below": 0.001}
    messages = play_through(start, Tempting(), hyperparameters=FAST, divergence=limit, max_steps=100_000)

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "diverged")
    assert "below the limit of 0.001 for 3 updates in a row" in messages[-1]["detail"]
    (written,) = [message for message in messages if message["type"] == "checkpoint_written"]
    assert (Path(written["folder"]) / "Echo.onnx").exists()
    assert not events(messages, "update_rolled_back")


@pytest.mark.long
@pytest.mark.parametrize("section", [{}, SAC], ids=["ppo", "sac"])
def test_a_run_that_learns_as_it_should_says_nothing(start: StartTrainer, section: dict[str, Any]) -> None:
    messages = play_through(start, Tempting(), **section, summary_freq=640)

    assert not events(messages, "entropy_collapsed", "kl_exploded", "gail_variable_horizon")
    assert messages[-1]["detail"] == "every behavior reached its max_steps"


@pytest.mark.parametrize("varies", [True, False])
def test_gail_where_episodes_differ_in_length_is_told_once(start: StartTrainer, tmp_path: Path, varies: bool) -> None:
    game = Tempting()
    game.varies = varies
    gail = {"demo_path": show(tmp_path / "expert.npz", steps=5), "network_settings": SECTION["network_settings"]}

    messages = play_through(start, game, reward_signals={"gail": gail}, max_steps=640)

    assert len(events(messages, "gail_variable_horizon")) == varies
