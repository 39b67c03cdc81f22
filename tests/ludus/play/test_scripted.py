"""Scripted teams are played in the simulator: the run hears of the others only, and learns how their games ended."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ludus.adapters.pettingzoo import PettingZooSimulation, make_simulation
from ludus.play.players import Player, RandomPlayer
from ludus.play.scripted import MOST_REPORTED, ScriptedSimulation
from ludus.protocol.batches import ActionBatch, BehaviorBatch, DecisionBatch, Floats, Ints, Outcome
from ludus.protocol.codec import decode_stats, decode_step, encode_actions
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.protocol.specs import BehaviorLayout
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder
from ludus.sdk.session import Session
from tests.toys.arena import Chase

FIRST, SECOND = "tictactoe?team=0", "tictactoe?team=1"
START = ResetInfo(seed=5, parameters={}, number=0, run_id="run-1", first=True)


class First(Player):
    """Takes the first choice that is allowed."""

    def __init__(self) -> None:
        self.begun: list[int | None] = []
        self.forgotten: list[int] = []

    def act(self, decisions: DecisionBatch) -> tuple[Floats, Ints]:
        assert decisions.action_masks is not None
        count = len(decisions.agent_ids)
        return np.zeros((count, 0), np.float32), decisions.action_masks.argmax(axis=1).astype(np.int32)[:, None]

    def forget(self, agents: Any) -> None:
        self.forgotten.extend(agents)

    def begin(self, seed: int | None) -> None:
        self.begun.append(seed)


class Run:
    """The server's end: answers whatever is asked, and keeps what it hears."""

    def __init__(self, simulation: Simulation) -> None:
        self.heard: list[BehaviorBatch] = []
        self.stats: list[tuple[str, float]] = []
        self._simulation = simulation
        self._session = Session(simulation.behaviors)
        self._layouts = {spec.name: BehaviorLayout(spec) for spec in simulation.behaviors}

    def play(self, steps: int, start: ResetInfo = START) -> None:
        builder = self._session.new_step()
        self._simulation.reset(builder, start)
        for _ in range(steps):
            actions = Actions()
            for request in self._session.requests(builder):
                batches = decode_step(request.step, self._layouts)
                self.heard.extend(batches)
                self.stats.extend((stat.key, stat.value) for stat in decode_stats(request.step))
                answers = [self._last_allowed(batch) for batch in batches if batch.decisions is not None]
                actions = self._session.actions(encode_actions(request.step.step_id, answers))
            builder = self._session.new_step()
            self._simulation.step(builder, actions)

    @staticmethod
    def _last_allowed(batch: BehaviorBatch) -> ActionBatch:
        assert batch.decisions is not None
        masks = batch.decisions.action_masks
        if masks is None:
            masks = np.ones((len(batch.decisions.agent_ids), 5), np.uint8)
        choices = masks.shape[1] - 1 - masks[:, ::-1].argmax(axis=1)
        return ActionBatch(
            batch.behavior, None, np.zeros((len(masks), 0), np.float32), choices.astype(np.int32)[:, None]
        )


def scripted(players: Mapping[str, Player], count: int = 1) -> ScriptedSimulation:
    return ScriptedSimulation(make_simulation("classic.tictactoe_v3", count), players)


@pytest.mark.parametrize(("theirs", "ours"), [(SECOND, FIRST), (FIRST, SECOND)])
def test_the_run_plays_one_team_and_hears_of_no_other(theirs: str, ours: str) -> None:
    simulation = scripted({theirs: First()})
    run = Run(simulation)

    run.play(30)

    assert [spec.name for spec in simulation.behaviors] == [ours]
    assert {batch.behavior for batch in run.heard} == {ours}
    boards = [batch.decisions.observations[0].reshape(3, 3, 2) for batch in run.heard if batch.decisions is not None]
    # Its own cells are the last ones, the opponent's the first ones.
    assert any(board[2, 2, 0] and board[0, 0, 1] for board in boards)


def test_outcomes_are_reported_as_shares() -> None:
    # Both fill a column from their end: who begins has its three first.
    run = Run(scripted({SECOND: First()}))

    run.play(40)

    ends = [batch.terminals for batch in run.heard if batch.terminals is not None]
    assert len(ends) >= 4
    assert all(end.outcomes is not None and end.outcomes.tolist() == [int(Outcome.WIN)] for end in ends)
    counts = Counter(run.stats)
    assert counts == {
        ("Environment/Win", 1.0): len(ends),
        ("Environment/Draw", 0.0): len(ends),
        ("Environment/Loss", 0.0): len(ends),
    }


def test_against_a_random_player_games_end_in_every_way() -> None:
    run = Run(scripted({SECOND: RandomPlayer(ActionSpec(0, (9,)))}, count=4))

    run.play(400)

    reported = Counter(key for key, value in run.stats if value)
    assert set(reported) == {"Environment/Win", "Environment/Draw", "Environment/Loss"}
    assert reported["Environment/Win"] > reported["Environment/Loss"], "who begins has the better of it"


def test_several_games_go_on_with_their_own_scripted_moves() -> None:
    run = Run(scripted({SECOND: RandomPlayer(ActionSpec(0, (9,)), seed=1)}, count=5))

    run.play(60)

    asked = Counter(
        agent for batch in run.heard if batch.decisions is not None for agent in batch.decisions.agent_ids.tolist()
    )
    assert set(asked) == {0, 2, 4, 6, 8}
    assert min(asked.values()) >= 20


def test_scripted_players_are_seeded_once_and_forget_ended_episodes() -> None:
    player = First()
    run = Run(scripted({SECOND: player}))

    run.play(20)
    run.play(1, ResetInfo(seed=5, parameters={}, number=0, run_id="run-1", first=False))

    first, later = player.begun
    assert first is not None
    assert later is None, "a later reset does not repeat the same games"
    assert set(player.forgotten) == {1}


def test_stats_and_announcements_of_the_game_are_passed_on() -> None:
    class Announcing(Simulation):
        behaviors = (BehaviorSpec("A?team=0", (ObservationSpec((1,)),), ActionSpec(0, (2,))),)
        late = BehaviorSpec("A?team=1", (ObservationSpec((1,)),), ActionSpec(0, (2,)))

        def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
            builder.announce(self.late)
            builder.report("Environment/Distance", 3.0)
            builder.request_decision(0, [1.0], behavior="A?team=1", mask=[1, 1])

        def step(self, builder: StepBuilder, actions: Actions) -> None:
            builder.request_decision(1, [1.0], behavior="A?team=1", mask=[1, 1])

    class Idle(Announcing):
        behaviors = (*Announcing.behaviors, BehaviorSpec("B", (ObservationSpec((1,)),), ActionSpec(0, (2,))))

    simulation = ScriptedSimulation(Idle(), {"B": First()})
    builder = Session(simulation.behaviors).new_step()
    simulation.reset(builder, START)

    assert [spec.name for spec in builder.announced] == ["A?team=1"]
    assert [(stat.key, stat.value) for stat in builder.stats] == [("Environment/Distance", 3.0)]
    later = StepBuilder({Announcing.late.name: BehaviorLayout(Announcing.late)}, {})
    simulation.step(later, Actions())
    assert [batch.behavior for batch in later.batches()] == ["A?team=1"]


@pytest.mark.long
def test_a_step_has_room_for_the_outcomes_of_any_number_of_games() -> None:
    simulation = ScriptedSimulation(
        PettingZooSimulation([Chase() for _ in range(400)], "chase"), {"hare?team=1": Hares()}
    )
    run = Run(simulation)

    run.play(6)

    assert len(run.stats) == 3 * MOST_REPORTED <= 1_000


class Hares(First):
    """After the first move nothing is masked."""

    def act(self, decisions: DecisionBatch) -> tuple[Floats, Ints]:
        count = len(decisions.agent_ids)
        return np.zeros((count, 0), np.float32), np.zeros((count, 1), np.int32)


@pytest.mark.parametrize(
    ("players", "problem"),
    [
        ({FIRST: First(), SECOND: First()}, "no team is left to train"),
        ({"tictactoe?team=2": First()}, r"there is no 'tictactoe\?team=2' to be played, only tictactoe\?team=0"),
    ],
)
def test_a_game_without_anybody_to_train_and_a_player_without_a_team_are_refused(
    players: Mapping[str, Player], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        scripted(players)
