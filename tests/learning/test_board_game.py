"""Connect four, learned by self-play alone: the preset's policy beats a random player nearly always, on both sides.

A player without chance in its moves that has learned the game can still lose to luck; what is asked for is 95 of 100.
"""

from pathlib import Path

import pytest

from ludus.adapters.pettingzoo import make_simulation
from ludus.play.episodes import SEED_PARAMETER, play_episodes
from ludus.play.model import ModelPlayer
from ludus.play.players import Player, RandomPlayer
from ludus.protocol.batches import Outcome
from ludus.protocol.spec import BehaviorSpec
from ludus.statistics import mean_interval
from server.config.presets import read_preset
from server.config.resolution import resolve
from tests.worker.selfplay.match_day import train

GAME = "classic.connect_four_v3"
SEEDS = range(500)
"""Each is played twice, with either side."""


@pytest.mark.learning
@pytest.mark.hours
@pytest.mark.timeout(3600)
def test_the_preset_for_connect_four_beats_random_in_95_of_100_games_over_both_sides(tmp_path: Path) -> None:
    document = resolve(read_preset("connect_four")).model_dump(mode="json")["behaviors"]
    games = [make_simulation(GAME, 8) for _ in range(2)]

    finished, match_recorder = train(document, games, tmp_path)

    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished.detail
    trained = wins(Path(match_recorder.checkpoints[-1].folder, "connect_four.onnx"))
    interval = mean_interval(trained)
    assert interval is not None
    low, high = interval
    share = sum(trained) / len(trained)
    assert share >= 0.95, f"{share:.3f} of {len(trained)} games were won (95 % interval: {low:.3f} to {high:.3f})"
    assert min(sum(trained[::2]), sum(trained[1::2])) >= 0.9 * len(SEEDS), "with neither side by the other one alone"


def wins(model: Path) -> list[float]:
    """Play against a random player; return 1 for each game that the model won, 0 for the others."""

    def candidate(spec: BehaviorSpec) -> Player:
        return ModelPlayer(model, spec)

    def others(spec: BehaviorSpec) -> Player:
        return RandomPlayer(spec.actions)

    simulation = make_simulation(GAME, 1, seed_parameter=SEED_PARAMETER)
    played = play_episodes(simulation, candidate, others, SEEDS, (0, 1))
    return [float(episode.outcome == Outcome.WIN) for episode in played]
