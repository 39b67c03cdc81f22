"""Turns, snapshots, exchanges and matches, as counters and notices bring them about."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ludus.collector.commands import OpponentAssignment
from ludus.collector.messages import EndedMatch, MatchesEnded
from ludus.config.selfplay import SelfPlaySettings
from worker.selfplay.controller import ELO, LEARNING_TEAM, OPPONENT_ELO_MEAN, OPPONENT_ELO_STD, GhostController
from worker.selfplay.ghost import Ghost, Weights
from worker.trainer.messages import EventRecord
from worker.trainer.recorder import Recorder

WIN, DRAW, LOSS = 1, 2, 3


class Club:
    """A controller, and what it asks of the collectors."""

    def __init__(self, simulators: int = 1) -> None:
        self.opposed: dict[str, OpponentAssignment] = {}
        self.calls: list[str] = []
        """Behaviors whose opponents were told, and resets, in order."""
        self.weights: dict[str, set[int]] = {}
        self.events: list[EventRecord] = []
        """All but those of `turns`."""
        self.turns: list[EventRecord] = []
        self.points: dict[str, float] = {}
        self.policy = {"A": 0.0, "B": 0.0}
        """What the weights of each learning policy are."""
        self.controller = GhostController(self, range(simulators), self._tell)

    def _tell(self, event: EventRecord) -> None:
        (self.turns if event.name == "self_play_turn_began" else self.events).append(event)

    def reset(self) -> None:
        self.calls.append("reset")

    def assign_opponents(self, behavior: str, assignment: OpponentAssignment, weights: Mapping[int, Weights]) -> None:
        assert assignment.keys <= weights.keys(), "whatever is named has weights"
        self.opposed[behavior] = assignment
        self.weights[behavior] = {key: float(flat[0]) for key, flat in weights.items()}  # type: ignore[assignment]
        self.calls.append(behavior)

    def join(self, behavior: str, step: int = 0, saved: dict[str, Any] | None = None, **settings: Any) -> Ghost:
        given = {"save_steps": 100, "swap_steps": 50, "team_change": 300, **settings}

        def weights() -> Weights:
            return np.full(2, self.policy[behavior], np.float32)

        recorder = Recorder(
            behavior, 10, lambda metrics: self.points.update({one.key: one.value for one in metrics.points})
        )
        ghost = Ghost(behavior, SelfPlaySettings.model_validate(given), 1, step, weights, recorder)
        if saved is None:
            ghost.begin()
        else:
            ghost.load_state_dict(saved["ghost"])
        self.controller.join(ghost, saved)
        return ghost

    def begin(self, **teams: list[int]) -> None:
        for behavior, numbers in teams.items():
            for team in numbers:
                self.controller.team_announced(behavior, team)
        self.controller.begin()

    def take(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


def symmetric(**settings: Any) -> tuple[Club, Ghost]:
    club = Club()
    ghost = club.join("A", **settings)
    club.begin(A=[1, 0])
    club.take()
    return club, ghost


# Turns -------------------------------------------------------------------------------------------------------------


def test_the_team_with_the_lowest_number_learns_first_against_the_untrained_policy() -> None:
    club = Club()
    club.join("A")
    club.controller.team_announced("A", 7)
    club.controller.team_announced("A", 2)
    assert not club.controller.has_turn("A"), "not before all teams of a simulator are known"

    club.controller.begin()

    assert club.controller.learning == 2
    assert club.controller.has_turn("A")
    assert club.opposed["A"] == OpponentAssignment(2, {}, [0])
    assert club.take() == ["A"], "no reset: everybody has just begun"


def test_a_turn_ends_when_more_than_team_change_steps_were_learnt_and_simulators_begin_anew() -> None:
    club, _ = symmetric()
    club.controller.learned("A", 300, done=False)
    assert club.controller.learning == 0
    assert "reset" not in club.take()

    club.controller.learned("A", 301, done=False)
    assert club.controller.learning == 1
    assert club.take() == ["A", "reset"], "collectors know who learns before they are reset"
    assert club.opposed["A"].learning == 1
    assert set(club.opposed["A"].teams) == {0}

    club.controller.learned("A", 602, done=False)
    assert club.controller.learning == 0


def test_each_turn_is_told_with_its_team_and_ml_agents_line() -> None:
    club, _ = symmetric()
    (first,) = club.turns
    assert (first.level, first.message) == ("info", "Team 0 learns, all others play frozen policies (A)")
    assert first.data == {"team": 0, "behaviors": ["A"]}

    club.controller.learned("A", 300, done=False)
    assert club.turns == [first], "the turn goes on"
    club.controller.learned("A", 301, done=False)

    (_, second) = club.turns
    assert second.message == "Team 1 learns from step 301 on (A)"
    line = "Learning team 1 swapped on step 301"
    assert second.data == {"team": 1, "behaviors": ["A"], "step": 301, "log_line": line}


def test_whose_turn_it_is_is_a_metric_at_each_change_and_in_each_summary() -> None:
    club = Club()
    club.join("A")
    club.join("B")
    club.begin(A=[0], B=[1])
    assert club.points[LEARNING_TEAM] == 0

    club.controller.learned("A", 301, done=False)

    assert club.points[LEARNING_TEAM] == 1
    assert club.controller.metrics("A") == club.controller.metrics("B") == {LEARNING_TEAM: 1}
    assert club.controller.metrics("C") == {}, "not in self-play"


def test_three_teams_take_turns_and_one_that_comes_later_joins_the_end_of_the_queue() -> None:
    club, _ = symmetric()
    club.controller.team_announced("A", 5)
    club.controller.learned("A", 301, done=False)
    club.controller.team_announced("A", 3)
    learning = [club.controller.learning]
    for turn in range(2, 6):
        club.controller.learned("A", 301 * turn, done=False)
        learning.append(club.controller.learning)

    assert learning == [1, 5, 0, 3, 1]
    assert set(club.opposed["A"].teams) == {0, 3, 5}


def test_behaviors_learn_in_turns_and_who_waits_plays_frozen_policies_in_all_of_its_teams() -> None:
    club = Club()
    club.join("A")
    club.join("B")
    club.begin(A=[0], B=[1])
    assert (club.controller.has_turn("A"), club.controller.has_turn("B")) == (True, False)
    assert (club.opposed["A"].learning, club.opposed["B"].learning) == (0, None)

    club.controller.learned("A", 301, done=False)

    assert (club.controller.has_turn("A"), club.controller.has_turn("B")) == (False, True)
    assert (club.opposed["A"].learning, club.opposed["B"].learning) == (None, 1)
    assert set(club.opposed["A"].teams) == {0}
    assert set(club.opposed["B"].teams) == set()


def test_behaviors_with_agents_of_one_team_learn_in_the_same_turn() -> None:
    club = Club()
    club.join("A")
    club.join("B")
    club.begin(A=[0, 1], B=[0, 1])

    assert (club.controller.has_turn("A"), club.controller.has_turn("B")) == (True, True)
    club.controller.learned("A", 200, done=True)
    assert club.controller.learning == 0, "the other one has not learned for all of its steps"
    club.controller.learned("B", 200, done=True)
    assert club.controller.learning == 0, "nobody is left"


def test_who_is_done_hands_the_turn_on_and_gets_none_any_more() -> None:
    club = Club()
    for behavior in ("A", "B"):
        club.join(behavior)
    club.begin(A=[0, 2], B=[1])

    club.controller.learned("A", 100, done=True)
    assert club.controller.learning == 1
    club.controller.learned("B", 301, done=False)
    assert club.controller.learning == 1
    club.controller.learned("B", 602, done=False)
    assert club.controller.learning == 1


def test_teams_that_are_done_are_passed_over_and_the_others_keep_their_order() -> None:
    club = Club()
    for behavior in ("A", "B"):
        club.join(behavior)
    club.begin(A=[1, 2, 3], B=[0])
    club.controller.learned("B", 100, done=True)
    learning = [club.controller.learning]
    for turn in range(1, 6):
        club.controller.learned("A", 301 * turn, done=False)
        learning.append(club.controller.learning)

    assert learning == [1, 2, 3, 1, 2, 3]


def test_a_behavior_that_comes_later_to_the_team_that_learns_makes_simulators_begin_anew() -> None:
    club, _ = symmetric()
    club.join("B")
    club.controller.team_announced("B", 1)
    assert club.take() == ["B"]

    club.controller.team_announced("B", 0)

    assert club.take() == ["B", "reset"], "its agents of team 0 were answered by frozen policies"


def test_self_play_with_one_team_only_is_told_once_with_its_remedy() -> None:
    club = Club()
    club.join("A")
    club.begin(A=[4])
    club.controller.learned("A", 10, done=False)
    club.controller.learned("A", 400, done=False)

    (event,) = club.events
    assert event.name == "self_play_without_opponents"
    assert "team 4" in event.message
    assert "?team=1" in event.message
    assert "reset" not in club.calls, "there is nobody else whose turn it could be"


def test_a_team_that_nobody_plays_any_more_is_waited_for_and_then_the_turn_passes_on() -> None:
    club, ghost = symmetric()
    club.controller.plays("first", [("A", 0)])
    club.controller.plays("second", [("A", 1), ("Other", 7)])
    club.controller.watch(100.0)
    assert club.events == []

    club.controller.left("first")
    club.controller.watch(200.0)
    club.controller.watch(259.0)
    assert [event.name for event in club.events] == ["self_play_team_missing"]
    assert "Team 0" in club.events[0].message
    assert "after 60 s" in club.events[0].message
    assert club.controller.learning == 0

    club.controller.watch(261.0)

    assert club.controller.learning == 1
    assert club.take() == ["A", "reset"]
    assert [event.name for event in club.events] == ["self_play_team_missing", "self_play_turn_passed"]
    club.controller.learned("A", 301, done=False)
    club.controller.learned("A", 602, done=False)
    assert club.controller.learning == 1, "there is nobody else"
    assert len(club.events) == 2, "told once"

    club.controller.plays("third", [("A", 0)])
    club.controller.learned("A", 903, done=False)
    assert club.controller.learning == 0, "it is back, and gets its turns"
    assert ghost.counters.last_team_change == 903


def test_a_team_that_comes_back_in_time_goes_on_with_its_turn() -> None:
    club, _ = symmetric()
    club.controller.plays("first", [("A", 0)])
    club.controller.plays("second", [("A", 1)])
    club.controller.left("first")
    club.controller.watch(200.0)
    club.controller.plays("third", [("A", 0)])
    club.controller.watch(300.0)
    club.controller.left("third")
    club.controller.watch(301.0)
    club.controller.watch(360.0)

    assert club.controller.learning == 0, "waited for again"


def test_where_nobody_plays_at_all_the_turn_stays_where_it_is() -> None:
    club, _ = symmetric()
    club.controller.plays("first", [("A", 0), ("A", 1)])
    club.controller.left("first")
    for now in (0.0, 100.0, 200.0):
        club.controller.watch(now)

    assert (club.controller.learning, club.events) == (0, [])


def test_a_team_that_has_learnt_everything_is_not_missed() -> None:
    club, _ = symmetric()
    club.controller.plays("first", [("A", 0)])
    club.controller.plays("second", [("A", 1)])
    club.controller.learned("A", 10, done=True)
    club.controller.left("first")
    club.controller.watch(0.0)
    club.controller.watch(100.0)

    assert club.events == []


def test_the_turn_passes_on_to_another_behavior_and_not_to_one_that_has_learnt_everything() -> None:
    club = Club()
    club.join("A")
    club.join("B")
    club.begin(A=[0, 2], B=[1])
    club.controller.learned("A", 301, done=False)  # the turn of team 1
    assert club.controller.has_turn("B")
    club.controller.learned("B", 10, done=True)
    assert club.controller.has_turn("A")
    club.controller.plays("both", [("A", 0), ("B", 1)])
    club.controller.watch(0.0)
    club.controller.watch(61.0)

    assert club.controller.learning == 0, "not of team 1, which is done, and not of team 2, which nobody plays"


# Snapshots and opponents -------------------------------------------------------------------------------------------


def test_the_policy_is_kept_after_more_than_save_steps_and_the_window_holds_the_newest() -> None:
    club, ghost = symmetric(window=2, team_change=10_000)
    for step in (100, 101, 201, 202, 303):
        club.policy["A"] = step
        club.controller.learned("A", step, done=False)

    assert [(one.number, one.step, one.weights[0]) for one in ghost.pool.snapshots] == [(2, 202, 202), (3, 303, 303)]


def test_opponents_are_exchanged_after_more_than_swap_steps_of_theirs() -> None:
    club, _ = symmetric(play_against_latest_model_ratio=1.0)
    club.policy["A"] = 5.0
    club.controller.learned("A", 20, done=False)
    club.controller.played("A", 50)
    club.controller.exchange()
    assert club.take() == []

    club.controller.played("A", 1)
    club.controller.exchange()

    assert club.take() == ["A"]
    assert club.opposed["A"] == OpponentAssignment(0, {1: [-21]}, [-21])
    assert club.weights["A"] == {-21: 5.0}, "a copy of the policy as it is now"
    club.policy["A"] = 6.0
    club.controller.learned("A", 30, done=False)
    club.controller.exchange()
    assert club.take() == [], "which the opponent keeps until the next exchange"


def test_an_exchange_that_falls_due_with_the_last_steps_of_a_round_follows_its_update_and_its_snapshot() -> None:
    club, ghost = symmetric(play_against_latest_model_ratio=0.0, window=1)
    club.controller.played("A", 51)
    club.policy["A"] = 5.0
    club.controller.learned("A", 101, done=False)
    club.controller.exchange()

    assert club.take() == ["A"], "once"
    assert club.opposed["A"] == OpponentAssignment(0, {1: [1]}, [1])
    assert club.weights["A"] == {1: 5.0}, "the policy that the round has made, in its snapshot"
    assert ghost.pool.snapshots[-1].step == 101


def test_each_simulator_gets_an_opponent_of_its_own_up_to_eight() -> None:
    for simulators, draws in ((0, 1), (3, 3), (20, 8)):
        club = Club(simulators)
        ghost = club.join("A", play_against_latest_model_ratio=0.0, save_steps=1, team_change=10_000)
        club.begin(A=[0, 1, 2])
        for step in range(2, 20, 2):
            club.controller.learned("A", step, done=False)
        club.controller.played("A", 51)
        club.controller.exchange()

        drawn = club.opposed["A"].teams
        assert {len(keys) for keys in drawn.values()} == {draws}
        assert club.opposed["A"].keys <= {one.number for one in ghost.pool.snapshots}
        if draws == 8:
            assert len({key for keys in drawn.values() for key in keys}) > 4, "drawn independently"


# Matches -----------------------------------------------------------------------------------------------------------


def match(outcome: int, key: int = 0, **fields: Any) -> EndedMatch:
    opponents = tuple(fields.pop("opponents", [("A", 1, key)]))
    values = {"simulator": 3, "team": 0, "truncated": False, "settled": True, **fields}
    return EndedMatch(outcome=outcome, opponents=opponents, **values)


def test_a_win_is_rated_and_goes_into_the_ledger() -> None:
    club, ghost = symmetric(team_change=10_000)
    club.controller.learned("A", 70, done=False)

    (played,) = club.controller.ended(MatchesEnded("A", (match(WIN),)), step=75, at=9.5)

    assert (played.number, played.step, played.at, played.simulator, played.outcome) == (1, 75, 9.5, 3, "win")
    assert [
        (participant.behavior, participant.team, participant.snapshot, participant.step)
        for participant in played.participants
    ] == [("A", 0, None, 70), ("A", 1, 0, 0)]
    assert (played.rated, played.elo) == (True, 1200.5)
    assert ghost.ratings.of(0) == 1199.5
    assert ghost.payoffs.share(0) == 1.0


def test_matches_are_counted_over_notices() -> None:
    club, _ = symmetric()
    numbers = [
        played.number
        for _ in range(2)
        for played in club.controller.ended(MatchesEnded("A", (match(WIN), match(LOSS))), step=0, at=0.0)
    ]

    assert numbers == [1, 2, 3, 4]


@pytest.mark.parametrize(("setting", "outcome", "rated"), [("ignore", "win", False), ("draw", "draw", True)])
def test_interrupted_games_count_as_is_asked_for(setting: str, outcome: str, rated: bool) -> None:
    club, ghost = symmetric(interrupted_games=setting)
    ghost.ratings.add(None, 100.0)

    (played,) = club.controller.ended(MatchesEnded("A", (match(WIN, truncated=True),)), step=0, at=0.0)

    assert (played.outcome, played.rated, played.truncated) == (outcome, rated, True)
    assert (ghost.ratings.current < 1300.0) is rated
    assert ghost.payoffs.share(0) == (0.5 if rated else None)


def test_unsettled_matches_are_written_down_and_not_rated() -> None:
    club, ghost = symmetric()

    (played,) = club.controller.ended(MatchesEnded("A", (match(WIN, settled=False),)), step=0, at=0.0)

    assert (played.rated, ghost.ratings.current, ghost.payoffs.share(0)) == (False, 1200.0, None)


def test_episodes_without_opponents_are_no_matches() -> None:
    club, _ = symmetric()

    assert club.controller.ended(MatchesEnded("A", (match(WIN, opponents=[]),)), step=0, at=0.0) == []


def test_a_copy_of_the_learning_policy_is_a_seat_without_a_snapshot_and_rates_nobody() -> None:
    club, ghost = symmetric()

    (played,) = club.controller.ended(MatchesEnded("A", (match(WIN, key=-13),)), step=0, at=0.0)

    assert (played.participants[1].snapshot, played.participants[1].step) == (None, 12)
    assert (played.rated, ghost.ratings.current) == (False, 1200.0)


def test_metrics_say_how_strong_the_policy_and_its_opponents_are() -> None:
    club, ghost = symmetric(team_change=10_000)
    club.controller.ended(MatchesEnded("A", (match(WIN), match(WIN))), step=0, at=0.0)
    club.controller.learned("A", 101, done=False)
    club.controller.ended(MatchesEnded("A", (match(WIN),)), step=0, at=0.0)
    ghost.recorder.advance(10)

    first, second = ghost.ratings.of(0), ghost.ratings.of(1)
    assert first is not None
    assert second is not None
    assert club.points[ELO] == pytest.approx(1201.0, abs=0.02), "the mean over the matches"
    assert club.points[OPPONENT_ELO_MEAN] == pytest.approx((first + second) / 2)
    assert club.points[OPPONENT_ELO_STD] == pytest.approx(abs(first - second) / 2)


# Checkpoints -------------------------------------------------------------------------------------------------------


def play_on(club: Club, ghost: Ghost) -> list[Any]:
    """Go on for a while and return everything that could differ."""
    told: list[Any] = []
    for step in range(400, 1400, 60):
        club.policy["A"] = float(step)
        club.controller.learned("A", step, done=False)
        club.controller.played("A", 37)
        club.controller.exchange()
        drawn = min(club.opposed["A"].keys)
        told += club.controller.ended(MatchesEnded("A", (match(WIN if step % 7 else LOSS, key=drawn),)), step, at=0.0)
        told.append((club.controller.learning, club.opposed["A"], club.weights["A"]))
    told.append(([one.number for one in ghost.pool.snapshots], ghost.counters, club.controller.rating("A")))
    return told


def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_happened() -> None:
    club, ghost = symmetric(window=3, opponent_selection="pfsp_hard")
    for step in range(40, 400, 40):
        club.policy["A"] = float(step)
        club.controller.learned("A", step, done=False)
        club.controller.played("A", 30)
        club.controller.exchange()
        club.controller.ended(MatchesEnded("A", (match(WIN, key=min(club.opposed["A"].keys)),)), step, at=0.0)
    state = club.controller.state("A")
    resumed = Club()
    resumed.policy["A"] = club.policy["A"]
    restored = resumed.join("A", step=360, saved=state, window=3, opponent_selection="pfsp_hard")
    resumed.begin(A=[1, 0])

    assert resumed.controller.learning == club.controller.learning == 1
    assert resumed.opposed["A"] == club.opposed["A"]
    assert resumed.weights["A"] == club.weights["A"]
    assert resumed.controller.rating("A") == club.controller.rating("A")
    assert play_on(resumed, restored) == play_on(club, ghost)


def test_turns_go_on_in_the_order_of_the_checkpoint() -> None:
    club = Club()
    club.join("A")
    club.begin(A=[0, 1, 2])
    club.controller.learned("A", 301, done=False)
    resumed = Club()
    resumed.join("A", step=301, saved=club.controller.state("A"))
    resumed.begin(A=[0, 1, 2])
    turns: dict[Club, list[int | None]] = {club: [], resumed: []}
    for turn in range(2, 5):
        for each, learning in turns.items():
            each.controller.learned("A", 301 * turn, done=False)
            learning.append(each.controller.learning)

    assert turns[resumed] == turns[club] == [2, 0, 1]


def test_a_team_of_the_checkpoint_that_nobody_brings_is_told_of_and_waited_for() -> None:
    club, _ = symmetric()
    club.controller.learned("A", 301, done=False)
    resumed = Club()
    resumed.join("A", step=301, saved=club.controller.state("A"))
    resumed.begin(A=[0])

    resumed.controller.plays("first", [("A", 0)])
    resumed.controller.watch(0.0)
    assert [event.name for event in resumed.events] == ["self_play_team_missing"]
    assert not resumed.controller.has_turn("A")
    resumed.take()
    resumed.controller.team_announced("A", 1)
    assert resumed.controller.has_turn("A")
    assert resumed.take() == ["A", "reset"]
