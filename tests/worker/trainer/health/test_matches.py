"""Self-play whose game rewards the wrong side is found in a real run; rock, paper, scissors as it should be is not."""

from typing import Any

import numpy as np
import pytest

from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, StepBuilder
from tests.toys.roshambo import OUTCOMES, REWARDS, Roshambo
from tests.worker.trainer.conftest import StartTrainer
from tests.worker.trainer.health.runs import SECTION, play_through

SELF_PLAY: dict[str, Any] = {"save_steps": 500, "team_change": 1000, "swap_steps": 300, "window": 5}


class Duel(Roshambo):
    """Rock, paper, scissors that reports no outcomes; what is seen is noise."""

    behaviors = tuple(
        BehaviorSpec(f"Duel?team={team}", (ObservationSpec((2,)),), ActionSpec(0, (3,))) for team in (0, 1)
    )

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self._mistake = mistake
        self._rng = np.random.default_rng(1)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for action in actions:
            self._moves[int(action.behavior[-1])] = int(action.discrete[0])
        if len(self._moves) < 2:
            return
        for team, spec in enumerate(self.behaviors):
            reward = REWARDS[OUTCOMES[(self._moves[team] - self._moves[1 - team]) % 3]]
            reward = {"both win": 1.0 + 0.1 * self._moves[team], "nobody wins": 0.0}.get(self._mistake, reward)
            late = self._mistake in {"nobody wins", "time is up"}
            builder.end_episode(agent=team, observation=[0.0, 0.0], reward=reward, truncated=late, behavior=spec.name)
        self._begin(builder)

    def _begin(self, builder: StepBuilder) -> None:
        self._moves.clear()
        for team, spec in enumerate(self.behaviors):
            seen = self._rng.standard_normal(2).tolist()
            builder.request_decision(agent=team, observation=seen, behavior=spec.name)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ("none", set()),
        ("both win", {"both_teams_win"}),
        ("nobody wins", {"matches_drawn"}),
        ("time is up", {"matches_unrated"}),
    ],
)
def test_a_game_that_rewards_the_wrong_side_is_found(start: StartTrainer, mistake: str, expected: set[str]) -> None:
    section = {**SECTION, "max_steps": 4096, "self_play": SELF_PLAY}

    assert set(play_through(start, Duel(mistake), {"behaviors": {"Duel": section}}).findings) == expected
