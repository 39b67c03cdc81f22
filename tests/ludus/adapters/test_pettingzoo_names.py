"""Games are found by the names that PettingZoo and Python give them; what is no game is refused with a sentence."""

import sys

import pytest
from pettingzoo import AECEnv

from ludus.adapters.assignment import UnsupportedGame
from ludus.adapters.pettingzoo import behavior_name, make_environment
from tests.toys.arena import Arena


@pytest.mark.parametrize(
    ("name", "behavior"),
    [
        ("classic.connect_four_v3", "connect_four"),
        ("classic/connect_four-v3", "connect_four"),
        ("my_games.arena:make_duel", "make_duel"),
        ("my_games.arena_v0:raw_env", "arena"),
        ("mpe2.simple_tag_v3", "simple_tag"),
    ],
)
def test_a_behavior_is_named_after_its_game(name: str, behavior: str) -> None:
    assert behavior_name(name) == behavior


@pytest.mark.parametrize("name", ["classic.rps_v2", "classic/rps-v2", "classic/rps"])
def test_a_game_whose_players_can_act_at_once_is_played_so(name: str) -> None:
    assert not isinstance(make_environment(name), AECEnv)


def test_games_of_ones_own_are_made_with_their_arguments() -> None:
    env = make_environment("tests.toys.arena:arena", {"limit": 3})

    assert isinstance(env, Arena)
    assert env.limit == 3


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("classic.tictactoe_v99", "there is no game classic.tictactoe_v99"),
        ("classic/tictactoe-v99", "v99"),
        ("nowhere/tictactoe", "nowhere"),
        ("tests.toys.arena", "has neither parallel_env nor env: write pettingzoo:tests.toys.arena:FACTORY"),
        ("tests.toys.arena:duel", "the module tests.toys.arena has no duel"),
        ("collections:OrderedDict", "makes a OrderedDict, which is no PettingZoo game"),
    ],
)
def test_what_is_no_game_is_refused_with_a_sentence(name: str, problem: str) -> None:
    with pytest.raises(UnsupportedGame, match=problem):
        make_environment(name)


def test_a_library_that_a_game_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chess", None)

    with pytest.raises(UnsupportedGame, match=r"needs the module chess.*pip install 'pettingzoo\[classic\]'"):
        make_environment("classic.chess_v6")
