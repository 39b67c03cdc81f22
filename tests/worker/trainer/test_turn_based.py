"""Games of turns that train without self-play: every player's agents learn, and the run ends by itself."""

import threading
from pathlib import Path
from typing import Any

import pytest

from ludus.protocol.codes import CloseCode
from ludus.sdk import (
    Actions,
    ActionSpec,
    BehaviorSpec,
    ConnectionSummary,
    ObservationSpec,
    ResetInfo,
    Simulation,
    StepBuilder,
    connect,
)
from tests.worker.trainer.attempts import Listener, Run
from worker.trainer.loop import Trainer
from worker.trainer.messages import CheckpointWritten

NETWORK = {"hidden_units": 8, "num_layers": 1}
TRAINERS: dict[str, dict[str, Any]] = {
    "ppo": {"batch_size": 16, "buffer_size": 64, "num_epoch": 1},
    "poca": {"batch_size": 16, "buffer_size": 64, "num_epoch": 1},
    "sac": {"batch_size": 16, "buffer_size": 500, "buffer_init_steps": 50, "steps_per_update": 4},
}
MAX_STEPS = 222


class Board(Simulation):
    """Some board games: players move in turn, and each is told with its own next message what came of its last move.

    The loser hears of the end of the game when the next one has begun.
    """

    def __init__(self, players: tuple[str, ...], games: int) -> None:
        """`players` are the behaviors of those who move in turn."""
        self.behaviors = tuple(
            BehaviorSpec(name, (ObservationSpec((2,)),), ActionSpec(discrete_branches=(3,)))
            for name in dict.fromkeys(players)
        )
        self._players = players
        self._moves = [0] * games

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        del start
        for game in range(len(self._moves)):
            self._moves[game] = 0
            self._ask(builder, game, 0)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for action in actions:
            game, player = divmod(action.agent, len(self._players))
            self._moves[game] += 1
            following = (player + 1) % len(self._players)
            if self._moves[game] > len(self._players) and self._moves[game] % 11 <= len(self._players):
                builder.end_episode(self._agent(game, following), [0.0, 1.0], 1.0, behavior=self._players[following])
            self._ask(builder, game, following)

    def _agent(self, game: int, player: int) -> int:
        return game * len(self._players) + player

    def _ask(self, builder: StepBuilder, game: int, player: int) -> None:
        builder.request_decision(self._agent(game, player), [1.0, 0.0], 0.1, behavior=self._players[player])


TEAMS = ("Go?team=0", "Go?team=1")


@pytest.mark.parametrize(
    ("trainer", "players", "games", "threaded"),
    [
        ("ppo", ("Go", "Go", "Go"), 1, False),
        ("sac", TEAMS, 1, True),
        *(pytest.param(trainer, TEAMS, 1, False, marks=pytest.mark.long) for trainer in TRAINERS),
        pytest.param("ppo", TEAMS, 2, False, marks=pytest.mark.long),
        pytest.param("ppo", ("Black", "White"), 1, False, marks=pytest.mark.long),
    ],
)
def test_a_turn_based_run_ends_at_its_max_steps(
    tmp_path: Path, trainer: str, players: tuple[str, ...], games: int, threaded: bool
) -> None:
    section = {
        "trainer_type": trainer,
        "hyperparameters": TRAINERS[trainer],
        "network_settings": NETWORK,
        "max_steps": MAX_STEPS,
        "time_horizon": 8,
        "threaded": threaded,
    }
    behaviors = sorted({name.partition("?")[0] for name in players})
    run = Run({"behaviors": dict.fromkeys(behaviors, section)}, tmp_path)
    listener = Listener()
    endings: list[ConnectionSummary] = []
    done = threading.Event()

    def train() -> None:
        Trainer(run.job(), listener, []).run()
        done.set()

    def play() -> None:
        endings.append(connect(Board(players, games), run="run", server=f"127.0.0.1:{run.port}"))

    threads = [threading.Thread(target=each, daemon=True) for each in (train, play)]
    for thread in threads:
        thread.start()

    assert done.wait(40), "the run goes on for ever"
    threads[1].join(10)

    assert [(end.code, end.sessions) for end in endings] == [(CloseCode.RUN_FINISHED, 1)]
    written = [message for message in listener.told if isinstance(message, CheckpointWritten)]
    assert written[-1].steps == dict.fromkeys(behaviors, MAX_STEPS)
    described = {file: model.behavior for file, model in written[-1].models.items()}
    assert described == {f"{behavior}.onnx": behavior for behavior in behaviors}
    assert {file.name for file in Path(written[-1].folder).glob("*.onnx")} == set(described)
