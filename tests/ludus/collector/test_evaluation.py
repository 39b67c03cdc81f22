"""Frozen policies in a collector: who answers which team, and which games of an episode batch count."""

from collections.abc import Iterator

import numpy as np
import pytest

from ludus.collector.evaluation import EndedGame
from ludus.config.network import NetworkSettings
from ludus.protocol.batches import Outcome
from tests.ludus.collector.world import NETWORK, End, Member, World, admission, factory_of, spec_of, weights_of
from worker.collectors.acting import POLICIES

RED, BLUE = "Duel?team=0", "Duel?team=1"
CANDIDATE, CHAMPION = 3, 7
"""What their policies answer."""
WIDER = NETWORK.model_copy(update={"hidden_units": 2})


class Court:
    """A world whose teams are all answered by the policies of an evaluation."""

    def __init__(self, *networks: NetworkSettings) -> None:
        world = self.world = World(spec_of("Duel"), learning=None)
        # Two units on one input: weights (2), biases (2), head (2), its bias, the deviation.
        champion = np.zeros(8, np.float32)
        champion[6] = 0.3 * CHAMPION
        weights = [weights_of(CANDIDATE), champion][: len(networks)]
        self.runner = factory_of(POLICIES).evaluation(admission(world.arena, 500, networks), world.arena, weights)
        self.episode_batches = self.runner.episode_batches
        world.frozen["Duel"] = self.runner

    def join(self, *names: str) -> Member:
        return self.world.join(1, *names)

    def sit(self, game: Member, episode_batch: int, team: int | None) -> None:
        """Begin an episode batch, as the collector does after a reset."""
        game.drop()
        self.runner.sit(
            {agent_index.team: agent_index for _, agent_index in game.agent_indexes.values()},
            "one",
            episode_batch,
            team,
        )

    def take(self) -> list[EndedGame]:
        """Return the games of the only episode batch that is complete."""
        ((session_id, _, games),) = self.episode_batches.take()
        assert session_id == "one"
        return games


@pytest.fixture
def court() -> Iterator[Court]:
    made = Court(NETWORK, WIDER)
    yield made
    made.world.arena.close()


def test_the_candidate_plays_the_team_that_the_sitting_names(court: Court) -> None:
    game = court.join(RED, BLUE)

    court.sit(game, 0, team=0)
    game.play({RED: [0, 1], BLUE: [0]})
    first = game.actions
    game.actions = {}
    court.sit(game, 1, team=1)
    game.play({RED: [0, 1], BLUE: [0]})

    assert first == {RED: {0: CANDIDATE, 1: CANDIDATE}, BLUE: {0: CHAMPION}}
    assert game.actions == {RED: {0: CHAMPION, 1: CHAMPION}, BLUE: {0: CANDIDATE}}


def test_only_the_first_game_of_each_agent_counts_whichever_ends_first(court: Court) -> None:
    game = court.join(RED, BLUE)
    court.sit(game, 0, team=0)
    game.play({RED: [0, 1], BLUE: [0, 1]})

    game.play({RED: [0, 1]}, end={RED: [End(1, 1.0)]})  # agent 1 wins, and begins another one
    assert court.episode_batches.take() == [], "agent 0 plays on"
    game.play({RED: [0, 1]}, end={RED: [End(1, -1.0)]})
    game.play({}, end={RED: [End(0, -2.0)]})

    assert [(each.outcome, each.episode_return, each.length) for each in court.take()] == [
        (Outcome.LOSS, -2.0, 3),
        (Outcome.WIN, 1.0, 1),
    ]


def test_agents_that_come_later_do_not_count(court: Court) -> None:
    game = court.join(RED, BLUE)
    court.sit(game, 0, team=0)
    game.play({RED: [4]})
    game.play({RED: [4, 9], BLUE: [0]})

    game.play({}, end={RED: [End(9, 1.0), End(4, 0.0)]})

    (only,) = court.take()
    assert only.outcome == Outcome.DRAW


def test_a_group_plays_one_game_that_ends_with_its_last_member(court: Court) -> None:
    game = court.join(RED, BLUE)
    game.groups[RED] = 5
    court.sit(game, 0, team=0)
    game.play({RED: [0, 1], BLUE: [0]})
    game.play({RED: [0], BLUE: [0]}, end={RED: [End(1, 1.0)]})
    assert court.episode_batches.take() == []

    game.play({}, end={RED: [End(0, 1.0, group_reward=2.0)]})

    (only,) = court.take()
    assert (only.outcome, only.episode_return) == (Outcome.WIN, 2.0)  # the mean of 1, and of 1 + 2


def test_an_interrupted_game_is_a_draw_unless_the_simulator_says_otherwise(court: Court) -> None:
    game = court.join(RED, BLUE)
    court.sit(game, 0, team=0)
    game.play({RED: [0, 1]})

    ends = [End(0, 3.0, truncated=True), End(1, 3.0, truncated=True, outcome=Outcome.LOSS)]
    game.play({}, end={RED: ends})

    assert [(each.outcome, each.truncated) for each in court.take()] == [(Outcome.DRAW, True), (Outcome.LOSS, True)]


def test_the_other_side_and_what_comes_before_a_sitting_count_for_nothing(court: Court) -> None:
    game = court.join(RED, BLUE)
    game.play({RED: [0], BLUE: [0]})
    game.play({}, end={RED: [End(0, 1.0)], BLUE: [End(0, 1.0)]})
    court.sit(game, 0, team=1)
    game.play({RED: [0], BLUE: [0]})

    game.play({}, end={RED: [End(0, 1.0)]})

    assert court.episode_batches.take() == []


def test_a_sitting_that_is_broken_off_is_never_reported(court: Court) -> None:
    game = court.join(RED, BLUE)
    court.sit(game, 0, team=0)
    game.play({RED: [0], BLUE: [0]})
    game.drop()

    game.play({RED: [0]})
    game.play({}, end={RED: [End(0, 1.0)]})

    assert court.episode_batches.take() == []


def test_one_policy_alone_plays_every_team() -> None:
    court = Court(NETWORK)
    game = court.join("Duel")
    court.sit(game, 0, team=None)

    game.play({"Duel": [0, 1]})
    game.play({}, end={"Duel": [End(0, 1.5), End(1, -1.0)]})

    assert game.actions == {"Duel": {0: CANDIDATE, 1: CANDIDATE}}
    assert [each.episode_return for each in court.take()] == [1.5, -1.0]
    court.world.arena.close()
