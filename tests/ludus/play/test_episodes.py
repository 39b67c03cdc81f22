"""Single episodes: seeded, counted to their end, seen from the candidate's side."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import pytest

from ludus.adapters.assignment import Lineup
from ludus.adapters.gymnasium import make_simulation as make_gymnasium
from ludus.adapters.pettingzoo import PettingZooSimulation
from ludus.adapters.pettingzoo import make_simulation as make_pettingzoo
from ludus.play.episodes import SEED_PARAMETER, Episode, play_episode, play_episodes, summarize, team_of
from ludus.play.players import Player, RandomPlayer
from ludus.protocol.batches import DecisionBatch, Floats, Ints, Outcome
from ludus.protocol.spec import ActionSpec, BehaviorSpec
from ludus.sdk.simulation import GameSimulation
from tests.toys.arena import Arena, Chase, Relay


class Always(Player):
    """Makes the same moves in every game: the next of its list that is allowed."""

    def __init__(self, *preferences: int) -> None:
        self._preferences = preferences

    def act(self, decisions: DecisionBatch) -> tuple[Floats, Ints]:
        masks = decisions.action_masks
        choices = [
            next(choice for choice in self._preferences if masks is None or masks[row, choice])
            for row in range(len(decisions.agent_ids))
        ]
        return np.zeros((len(choices), 0), np.float32), np.array(choices, np.int32)[:, None]


def tictactoe() -> GameSimulation:
    return make_pettingzoo("classic.tictactoe_v3", seed_parameter=SEED_PARAMETER)


ROW, COLUMN = Always(0, 1, 2, 3, 4, 5, 6, 7, 8), Always(8, 7, 6, 5, 4, 3, 2, 1, 0)


def test_an_episode_is_what_gymnasium_makes_of_the_same_seed_and_actions() -> None:
    simulation = make_gymnasium("CartPole-v1", seed_parameter=SEED_PARAMETER)
    env = gymnasium.make("CartPole-v1")
    for seed in (1000, 3, 1000):
        part = play_episode(simulation, {"CartPole": Always(0)}, seed)["CartPole"]

        env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(0)
            total, ended = total + float(reward), terminated or truncated
        assert (part.cumulative_reward, part.length, part.outcome) == (total, total, Outcome.UNSPECIFIED)
    simulation.close()


def test_both_sides_of_a_game_are_told_apart() -> None:
    parts = play_episode(tictactoe(), {"tictactoe?team=0": ROW, "tictactoe?team=1": COLUMN}, 0)

    first, second = parts["tictactoe?team=0"], parts["tictactoe?team=1"]
    assert (first.cumulative_reward, first.length, first.outcome) == (1.0, 3, Outcome.WIN)
    assert (second.cumulative_reward, second.length, second.outcome) == (-1.0, 2, Outcome.LOSS)


def test_a_side_of_several_agents_is_their_mean() -> None:
    simulation = PettingZooSimulation([Chase(prize=1.5)], "chase", seed_parameter=SEED_PARAMETER)

    parts = play_episode(simulation, {"hunter?team=0": Always(0), "hare?team=1": Always(0)}, 0)

    assert (parts["hunter?team=0"].cumulative_reward, parts["hunter?team=0"].length) == (7.5, 5)
    assert (parts["hare?team=1"].cumulative_reward, parts["hare?team=1"].length) == (-2.5, 5)


@pytest.mark.parametrize("make", [Arena, Relay, lambda: Arena(fair=True, mortality=0.3)])
def test_the_same_seed_is_the_same_episode_whatever_was_played_before(make: Callable[[], Any]) -> None:
    simulation = PettingZooSimulation([make()], "game", seed_parameter=SEED_PARAMETER)
    players = {spec.name: RandomPlayer(spec.actions) for spec in simulation.behaviors}

    played = [play_episode(simulation, players, seed) for seed in (1, 2, 1)]

    assert played[0] == played[2] != played[1]


def test_a_side_that_never_acted_has_won_or_lost_all_the_same() -> None:
    simulation = PettingZooSimulation(
        [Arena(limit=1, mortality=0.0, fair=True)], "arena", Lineup(teams=(0, 1, 1, 1)), seed_parameter=SEED_PARAMETER
    )

    parts = play_episode(simulation, {f"arena?team={team}": Always(0) for team in (0, 1)}, 3)

    assert parts["arena?team=0"].length == 1
    assert parts["arena?team=1"].length == 0
    assert parts["arena?team=0"].cumulative_reward == pytest.approx(-3 * parts["arena?team=1"].cumulative_reward)
    assert {part.outcome for part in parts.values()} == {Outcome.WIN, Outcome.LOSS}


def test_a_candidate_plays_each_seed_on_every_side() -> None:
    played = list(play_episodes(tictactoe(), lambda _: ROW, lambda _: COLUMN, [7, 8], [0, 1]))

    assert [(episode.seed, episode.team) for episode in played] == [(7, 0), (7, 1), (8, 0), (8, 1)]
    assert [episode.outcome for episode in played] == [Outcome.WIN, Outcome.LOSS] * 2
    assert [episode.length for episode in played] == [3, 2, 3, 2]


def test_a_candidate_plays_all_agents_of_its_team() -> None:
    asked: list[tuple[str, str]] = []

    def of(who: str) -> Callable[[BehaviorSpec], Player]:
        def make(spec: BehaviorSpec) -> Player:
            asked.append((who, spec.name))
            return Always(0)

        return make

    simulation = PettingZooSimulation([Chase()], "chase", seed_parameter=SEED_PARAMETER)
    (episode,) = play_episodes(simulation, of("candidate"), of("others"), [0], [1])

    assert asked == [("others", "hunter?team=0"), ("candidate", "hare?team=1")]
    assert (episode.team, episode.cumulative_reward, episode.outcome) == (1, -2.5, Outcome.LOSS)


@pytest.mark.long
def test_who_goes_first_matters_between_random_players_and_sides_even_out() -> None:
    def player(_: BehaviorSpec) -> Player:
        return RandomPlayer(ActionSpec(0, (9,)))

    played = list(islice(play_episodes(tictactoe(), player, player, iter(range(1000)), [0, 1]), 300))

    first, second = (summarize([episode for episode in played if episode.team == team]) for team in (0, 1))
    # Of random games of tic-tac-toe who begins wins 58.5 % and loses 28.8 %.
    assert 0.47 < first.wins / first.episodes < 0.70
    assert (first.wins, first.draws, first.losses) == (second.losses, second.draws, second.wins)
    assert summarize(played).mean == 0.0


def test_a_summary_counts_and_averages() -> None:
    outcomes = [Outcome.WIN, Outcome.WIN, Outcome.DRAW, Outcome.LOSS, Outcome.UNSPECIFIED]
    rewards = [1.0, 2.0, 0.0, -1.0, 3.0]

    summary = summarize(
        [
            Episode(seed, 0, reward, 4.0, outcome)
            for seed, (reward, outcome) in enumerate(zip(rewards, outcomes, strict=True))
        ]
    )

    assert (summary.episodes, summary.mean, summary.lowest, summary.highest) == (5, 1.0, -1.0, 3.0)
    assert (summary.wins, summary.draws, summary.losses, summary.decided) == (2, 1, 1, 4)
    assert -1.0 <= summary.low < 1.0 < summary.high <= 3.0
    assert summary.mean_length == 4.0


@pytest.mark.parametrize(("name", "team"), [("A", None), ("A?team=0", 0), ("A?team=12", 12), ("A?team=x", None)])
def test_the_team_is_in_the_announced_name(name: str, team: int | None) -> None:
    assert team_of(BehaviorSpec(name, (), ActionSpec(1))) == team
