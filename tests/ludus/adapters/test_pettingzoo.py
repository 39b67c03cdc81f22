"""PettingZoo games keep their rewards, ends, masks and outcomes on the way to the server.

What a simulation tells is compared with the same game, played with the same actions as PettingZoo's documentation says:
`agent_iter()` and `last()`, or `step()` of a parallel game.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import AECEnv

from ludus.adapters.assignment import UnsupportedGame
from ludus.adapters.pettingzoo import PettingZooSimulation, behavior_name, make_environment, make_simulation
from ludus.play.players import RandomPlayer, answer
from ludus.protocol.batches import ActionBatch, BehaviorBatch, Outcome
from ludus.sdk.seeds import environment_seed, episode_seed
from tests.ludus.adapters.table import FIRST, SECOND, TICTACTOE, Table, decisions, start, terminals, tictactoe
from tests.toys.arena import Arena, Chase, Relay

WIN, DRAW, LOSS = int(Outcome.WIN), int(Outcome.DRAW), int(Outcome.LOSS)


def moves(table: Table, *cells: int) -> dict[str, BehaviorBatch]:
    """Play a game of tic-tac-toe; return what is told after the last move."""
    told = table.reset()
    for number, cell in enumerate(cells):
        told = table.choose((FIRST, SECOND)[number % 2], cell)
    return told


class TestTicTacToe:
    def test_both_players_are_agents_of_one_behavior_in_two_teams(self) -> None:
        specs = tictactoe().simulation.behaviors

        assert [spec.name for spec in specs] == [FIRST, SECOND]
        assert {spec.behavior for spec in specs} == {"tictactoe"}
        assert [[part.shape for part in spec.observations] for spec in specs] == [[(18,)], [(18,)]]
        assert {spec.actions.discrete_branches for spec in specs} == {(9,)}

    def test_what_is_taken_is_masked(self) -> None:
        table = tictactoe()

        (first,) = table.reset().values()
        (second,) = table.choose(FIRST, 4).values()

        assert decisions(first).action_masks.tolist() == [[1] * 9]
        assert decisions(second).action_masks.tolist() == [[1, 1, 1, 1, 0, 1, 1, 1, 1]]
        assert (second.behavior, decisions(second).agent_ids.tolist()) == (SECOND, [1])

    def test_the_one_who_did_not_move_last_sees_how_it_was_beaten(self) -> None:
        told = moves(tictactoe(), 0, 3, 1, 4, 2)

        winner, loser = terminals(told[FIRST]), terminals(told[SECOND])
        assert (winner.rewards.tolist(), loser.rewards.tolist()) == ([1.0], [-1.0])
        assert (winner.outcomes.tolist(), loser.outcomes.tolist()) == ([WIN], [LOSS])
        assert not winner.truncated.any()
        assert not loser.truncated.any()
        board = loser.observations[0].reshape(3, 3, 2)
        assert board[..., 1].reshape(9).tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0], "the winner's row"
        assert board[..., 0].reshape(9).tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0], "its own cells"

    def test_the_next_game_begins_in_the_same_turn(self) -> None:
        told = moves(tictactoe(), 0, 3, 1, 4, 2)

        assert decisions(told[FIRST]).rewards.tolist() == [0.0]
        assert not decisions(told[FIRST]).observations[0].any(), "an empty board"
        assert told[SECOND].decisions is None

    def test_nobody_wins_a_draw(self) -> None:
        told = moves(tictactoe(), 0, 1, 2, 4, 3, 5, 7, 6, 8)

        assert terminals(told[FIRST]).outcomes.tolist() == [DRAW]
        assert terminals(told[SECOND]).outcomes.tolist() == [DRAW]

    def test_the_second_player_can_win(self) -> None:
        told = moves(tictactoe(), 0, 3, 1, 4, 8, 5)

        assert terminals(told[FIRST]).outcomes.tolist() == [LOSS]
        assert terminals(told[SECOND]).outcomes.tolist() == [WIN]

    def test_games_of_one_process_play_independently(self) -> None:
        table = tictactoe(3)

        told = table.reset()
        assert decisions(told[FIRST]).agent_ids.tolist() == [0, 2, 4]
        batch = ActionBatch(FIRST, np.array([2], np.int32), np.zeros((1, 0), np.float32), np.array([[8]], np.int32))
        told = table.act(batch)

        assert list(told) == [SECOND]
        assert decisions(told[SECOND]).agent_ids.tolist() == [3]
        assert decisions(told[SECOND]).action_masks[0, 8] == 0

    def test_a_reset_abandons_a_game_in_the_middle(self) -> None:
        table = tictactoe()
        table.reset()
        table.choose(FIRST, 4)

        told = table.reset(start(first=False))

        assert list(told) == [FIRST]
        assert told[FIRST].terminals is None
        assert not decisions(told[FIRST]).observations[0].any()

    def test_finished_games_are_counted_until_the_next_reset(self) -> None:
        table = tictactoe()

        moves(table, 0, 3, 1, 4, 2)
        assert table.simulation.finished == 1
        table.reset()
        assert table.simulation.finished == 0


class TestParallelGames:
    def test_a_game_waits_until_all_its_players_are_answered(self) -> None:
        table = Table(make_simulation("classic.rps_v2"))

        told = table.reset()
        assert {name: decisions(batch).agent_ids.tolist() for name, batch in told.items()} == {
            "rps?team=0": [0],
            "rps?team=1": [1],
        }
        assert table.choose("rps?team=1", 2) == {}
        assert len(table.choose("rps?team=0", 1)) == 2

    def test_a_limit_truncates_and_the_sum_of_all_rounds_decides(self) -> None:
        table = Table(make_simulation("classic.rps_v2", arguments={"max_cycles": 3}))
        table.reset()
        rock, paper, scissors = 0, 1, 2

        for ours, theirs in ((rock, paper), (rock, scissors), (paper, rock)):
            table.choose("rps?team=0", ours)
            told = table.choose("rps?team=1", theirs)

        first, second = (terminals(told[name]) for name in ("rps?team=0", "rps?team=1"))
        assert (first.truncated.tolist(), second.truncated.tolist()) == ([True], [True])
        assert (first.outcomes.tolist(), second.outcomes.tolist()) == ([WIN], [LOSS])

    def test_masks_can_come_with_the_infos(self) -> None:
        table = Table(PettingZooSimulation([Chase()], "chase"))

        told = table.reset()

        assert decisions(told["hunter?team=0"]).action_masks.tolist() == [[1, 1, 0, 0, 1]]

    def test_continuous_actions_are_rescaled_to_the_bounds_of_the_space(self) -> None:
        env, seen = Relay(), list[dict[str, Any]]()
        step = env.step
        env.step = lambda actions: (seen.append(actions), step(actions))[1]  # type: ignore[method-assign,func-returns-value]
        table = Table(PettingZooSimulation([env], "relay"))

        told = table.reset()
        table.act(
            *(ActionBatch(name, None, np.array([[-1, 0.5]], np.float32), np.zeros((1, 0), np.int32)) for name in told)
        )

        np.testing.assert_allclose(seen[0]["runner_0"], [0.0, 1.0])


GAMES = {
    "tictactoe": lambda: make_environment(TICTACTOE),
    "connect four": lambda: make_environment("classic/connect_four-v3"),
    "rps": lambda: make_environment("classic.rps_v2", {"max_cycles": 5}),
    "rps, one after the other": lambda: make_environment("classic.rps_v2:env", {"max_cycles": 5}),
    "arena": Arena,
    "fair arena": lambda: Arena(fair=True, mortality=0.05),
    "relay": Relay,
}


@dataclass
class Life:
    """What one player was told in one game."""

    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    final: Any = None
    truncated: bool = False


def play_through(simulation: PettingZooSimulation, seed: int) -> dict[Any, Life]:
    """Play one game with random moves; return what the server was told, by player."""
    table, lives = Table(simulation), defaultdict[Any, Life](Life)
    players = list(simulation.assignments)
    cast = {spec.name: RandomPlayer(spec.actions, seed + number) for number, spec in enumerate(simulation.behaviors)}
    told = table.reset(start(seed))
    while True:
        over = simulation.finished > 0
        for batch in told.values():
            if batch.terminals is not None:
                for row, agent in enumerate(batch.terminals.agent_ids.tolist()):
                    life = lives[players[agent]]
                    life.rewards.append(float(batch.terminals.rewards[row]))
                    life.final = batch.terminals.observations[0][row]
                    life.truncated = bool(batch.terminals.truncated[row])
            if batch.decisions is not None and not over:
                for row, agent in enumerate(batch.decisions.agent_ids.tolist()):
                    lives[players[agent]].rewards.append(float(batch.decisions.rewards[row]))
        if over:
            return lives
        answers = answer(cast, told.values())
        for batch in answers:
            decoder = simulation.assignments[players[int(batch.agent_ids[0])]].view.decoder
            for agent, action in zip(batch.agent_ids, decoder.rows(batch.continuous, batch.discrete), strict=True):
                lives[players[agent]].actions.append(action)
        told = table.act(*answers)


def replay(env: Any, seed: int, lives: dict[Any, Life]) -> tuple[dict[Any, float], dict[Any, Any], dict[Any, bool]]:
    """Play the same game as PettingZoo's users do; return what everybody earned, saw last, and who was truncated."""
    paid, final, truncated = defaultdict[Any, float](float), {}, {}
    left = {player: iter(life.actions) for player, life in lives.items()}
    if isinstance(env, AECEnv):
        env.reset(seed=seed)
        for player in env.agent_iter():
            observation, reward, ended, cut, _ = env.last()
            paid[player] += reward
            if ended or cut:
                final[player], truncated[player] = np.array(proper(observation)), not ended
            env.step(None if ended or cut else next(left[player]))
    else:
        env.reset(seed=seed)
        while env.agents:
            observations, rewards, ended, cut, _ = env.step({player: next(left[player]) for player in env.agents})
            for player, reward in rewards.items():
                paid[player] += reward
                if ended[player] or cut[player]:
                    final[player], truncated[player] = np.array(proper(observations[player])), not ended[player]
    assert all(next(actions, None) is None for actions in left.values()), "every action was carried out"
    return paid, final, truncated


def proper(observation: Any) -> Any:
    return observation["observation"] if isinstance(observation, dict) else observation


@pytest.mark.parametrize("name", GAMES)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_every_player_is_told_what_the_game_pays_and_shows_it(name: str, seed: int) -> None:
    assert compare(GAMES[name], seed)


@pytest.mark.long
def test_players_of_a_long_game_die_at_different_times() -> None:
    def knights() -> Any:
        return make_environment("butterfly.knights_archers_zombies_v11", {"max_cycles": 160, "spawn_delay": 1})

    lives = compare(knights, seed=3)

    assert len({len(life.actions) for life in lives.values()}) == 3, "this seed kills the archers first, one by one"
    assert sum(sum(life.rewards) for life in lives.values()) == 3.0


def compare(make: Callable[[], Any], seed: int) -> dict[Any, Life]:
    """Play a game here and as PettingZoo's users do: the same rewards and ends; return them."""
    simulation = PettingZooSimulation([make()], "game")

    lives = play_through(simulation, seed)
    paid, final, truncated = replay(make(), environment_seed(seed, 0), lives)

    players, assignments = set(lives), simulation.assignments
    strangers = {bystander.behavior: bystander.reward for bystander in simulation.non_acting_players}
    assert players | {player for player in final if assignments[player].spec.name in strangers} == set(final)
    for player in final:
        told = sum(lives[player].rewards) if player in players else strangers[assignments[player].spec.name]
        assert told == pytest.approx(paid[player], abs=1e-4), player
    for player in players:
        view = assignments[player].view
        encoded = view.encoder.stack([view.encoder.read(final[player])])[0][0]
        np.testing.assert_array_equal(lives[player].final, encoded, str(player))
        assert lives[player].truncated == truncated[player], player
        assert len(lives[player].rewards) == len(lives[player].actions) + 1
    return lives


class TestRewards:
    def test_what_is_paid_before_the_first_move_comes_with_the_second_message(self) -> None:
        env = Arena(mortality=0.0)
        table = Table(PettingZooSimulation([env], "arena", seed=1))
        name = "arena?team={}".format

        table.reset()
        told = table.choose(name(0), 0)
        early = env.rewards["fighter_1"]
        assert early != 0, "this seed pays the second player for the first move"
        assert decisions(told[name(1)]).rewards.tolist() == [0.0]
        for team in (1, 2, 3):
            table.choose(name(team), 0)
        paid = env._cumulative_rewards["fighter_1"]
        told = table.choose(name(0), 0)

        assert decisions(told[name(1)]).rewards[0] == pytest.approx(early + paid + env.rewards["fighter_1"], abs=1e-6)

    def test_a_game_that_is_no_contest_has_no_outcome(self) -> None:
        table = Table(PettingZooSimulation([Chase(prize=1.5)], "chase"))
        table.reset()
        for _ in range(5):
            table.choose("hunter?team=0", 0)
            told = table.choose("hare?team=1", 0, 0)

        assert terminals(told["hunter?team=0"]).outcomes is None
        assert terminals(told["hare?team=1"]).outcomes is None

    def test_everybody_wins_or_loses_a_contest_of_many(self) -> None:
        simulation = PettingZooSimulation([Arena(mortality=0.0, fair=True)], "arena", seed=1)
        table = Table(simulation)
        table.reset()
        for move in range(12):
            told = table.choose(f"arena?team={move % 4}", 0)

        outcomes = [terminals(batch).outcomes[0] for batch in told.values()]
        assert len(outcomes) == 4
        assert set(outcomes) == {WIN, LOSS}

    def test_one_who_never_acted_is_no_episode_but_a_bystander(self) -> None:
        simulation = PettingZooSimulation([Arena(limit=1, mortality=0.0, fair=True)], "arena", seed=1)
        table = Table(simulation)
        table.reset()

        told = table.choose("arena?team=0", 0)

        assert list(told) == ["arena?team=0"]
        assert [bystander.behavior for bystander in simulation.non_acting_players] == [
            f"arena?team={team}" for team in (1, 2, 3)
        ]
        rewards = [
            float(terminals(told["arena?team=0"]).rewards[0]),
            *(b.reward for b in simulation.non_acting_players),
        ]
        assert sum(rewards) == pytest.approx(0.0, abs=1e-6)
        assert all(bystander.outcome for bystander in simulation.non_acting_players)


class TestSeeds:
    def test_games_are_seeded_once_and_each_differently(self) -> None:
        envs = [Arena(limit=2, mortality=0.0), Arena(limit=2, mortality=0.0)]
        table = Table(PettingZooSimulation(envs, "arena"))

        table.reset()
        for move in range(4):
            table.choose(f"arena?team={move % 2}", 0, 0)

        assert [env.seeds for env in envs] == [[environment_seed(5, index), None, None] for index in (0, 1)]

    def test_an_environment_parameter_can_seed_every_episode(self) -> None:
        envs = [Arena(limit=2, mortality=0.0), Arena(limit=2, mortality=0.0)]
        table = Table(PettingZooSimulation(envs, "arena", seed_parameter="opening"))

        for value, first in ((7.0, True), (9.0, False)):
            table.reset(start(first=first, opening=value, gravity=2.0))
            table.choose("arena?team=0", 0, 0)
            table.choose("arena?team=1", 0, 0)

        assert envs[0].seeds == [7, episode_seed(7, 0, 1), 9, episode_seed(9, 0, 1)]
        assert envs[1].seeds == [episode_seed(value, 1, episode) for value in (7, 9) for episode in (0, 1)]
        assert envs[0].options == {"gravity": 2.0}, "the seed is not for the game"


def test_a_game_that_is_over_at_once_is_an_error_and_no_endless_loop() -> None:
    class Empty(Relay):
        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
            self.agents = []
            return {}, {}

    with pytest.raises(UnsupportedGame, match="ended before any player could act"):
        Table(PettingZooSimulation([Empty()], "empty")).reset()


def test_closing_closes_every_game() -> None:
    closed: Iterator[int] = iter(range(2))
    envs = [Arena(), Arena()]
    for env in envs:
        env.close = lambda: next(closed)  # type: ignore[method-assign,assignment]

    PettingZooSimulation(envs, "arena").close()

    assert list(closed) == []


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
