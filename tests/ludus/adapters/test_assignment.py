"""Players of a game become agents of the behaviors and teams that one expects, or that were asked for."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from ludus.adapters.assignment import Lineup, UnsupportedGame
from ludus.adapters.pettingzoo import PettingZooSimulation, make_simulation
from ludus.protocol.batches import Outcome
from tests.ludus.adapters.table import FIRST, TICTACTOE, Table, decisions, terminals
from tests.toys.arena import Chase, Relay


def test_players_of_several_kinds_have_a_behavior_and_a_team_for_each_kind() -> None:
    table = Table(PettingZooSimulation([Chase()], "chase"))

    told = table.reset()

    assert [spec.name for spec in table.simulation.behaviors] == ["hunter?team=0", "hare?team=1"]
    assert decisions(told["hare?team=1"]).agent_ids.tolist() == [1, 2]
    assert decisions(told["hare?team=1"]).group_ids.tolist() == [1, 1], "mates share a group"
    assert decisions(told["hunter?team=0"]).group_ids is None


def test_mates_keep_their_group_to_the_end_and_other_games_have_others() -> None:
    table = Table(PettingZooSimulation([Chase(), Chase()], "chase"))

    told = table.reset()
    assert decisions(told["hare?team=1"]).group_ids.tolist() == [1, 1, 4, 4]
    for _ in range(5):
        table.choose("hunter?team=0", 0, 0)
        told = table.choose("hare?team=1", 0, 0, 0, 0)

    assert terminals(told["hare?team=1"]).group_ids.tolist() == [1, 1, 4, 4]
    assert terminals(told["hare?team=1"]).outcomes.tolist() == [int(Outcome.LOSS)] * 4


def test_players_can_be_separate() -> None:
    specs = make_simulation(TICTACTOE, separate=True).behaviors

    assert [spec.name for spec in specs] == ["player_1?team=0", "player_2?team=1"]


@pytest.mark.parametrize(("teams", "names"), [((3,), {"Game?team=3"}), ((1, 0), {"Game?team=1", "Game?team=0"})])
def test_teams_and_the_name_can_be_chosen(teams: tuple[int, ...], names: set[str]) -> None:
    simulation = make_simulation(TICTACTOE, behavior="Game", teams=teams)

    assert {spec.name for spec in simulation.behaviors} == names


def test_a_game_of_mates_has_no_winner() -> None:
    simulation = make_simulation(TICTACTOE, teams=(0,))
    table = Table(simulation)
    table.reset()
    for cell in (0, 3, 1, 4, 2):
        told = table.choose(FIRST, cell)

    assert terminals(told[FIRST]).agent_ids.tolist() == [1, 0]
    assert terminals(told[FIRST]).outcomes is None


@pytest.mark.parametrize(
    ("env", "lineup", "problem"),
    [
        (Chase(unlike=True), Lineup(), "the players hare_0 and hare_1 of game have different spaces"),
        (Chase(), Lineup(behavior="Animal"), r"players of several kinds \(hunter, hare\)"),
        (Chase(), Lineup(behavior="Animal", separate=True), "leave out --behavior"),
        (Chase(), Lineup(teams=(0, 1)), r"names 2 teams, but game has 3 players \(hunter_0, hare_0, hare_1\)"),
    ],
)
def test_a_lineup_that_does_not_fit_is_refused(env: Any, lineup: Lineup, problem: str) -> None:
    with pytest.raises(UnsupportedGame, match=problem):
        PettingZooSimulation([env], "game", lineup)


def test_a_game_must_say_who_may_play() -> None:
    class Crowd(Relay):
        def __init__(self) -> None:
            super().__init__()
            del self.possible_agents

    with pytest.raises(UnsupportedGame, match="a fixed list `possible_agents`"):
        PettingZooSimulation([Crowd()], "crowd")


def test_a_space_without_counterpart_is_refused() -> None:
    class Wordy(Relay):
        def observation_space(self, agent: str) -> spaces.Space[Any]:
            return spaces.Text(5)

    with pytest.raises(ValueError, match="wrap the environment"):
        PettingZooSimulation([Wordy()], "wordy")


def test_other_entries_beside_a_mask_are_observations_of_their_own() -> None:
    class Both(Chase):
        def observation_space(self, agent: str) -> spaces.Space[Any]:
            parts = {"near": spaces.Box(0, 1, (2,)), "far": spaces.Box(0, 1, (3,))}
            return spaces.Dict({**parts, "action_mask": spaces.Box(1, 1, (5,), np.int8)})

    simulation = PettingZooSimulation([Both()], "both")

    (spec,) = simulation.behaviors[:1]
    assert {part.name: part.shape for part in spec.observations} == {"near": (2,), "far": (3,)}
    told = Table(simulation).reset()
    assert decisions(told[spec.name]).action_masks.shape == (1, 5)
