"""ML-Agents' own end-to-end checks of self-play, held to its budgets, with a whole trainer and real collectors.

Of `trainers/tests/torch_entities/test_simple_rl.py` of ML-Agents 1.1.0 (`test_simple_ghost`, `test_simple_asymm_ghost`
and those that end in `_fails`): two teams, each with a walk of its own (`tests.toys.walkers`). All teams walk well at
the end, or, where opponents are exchanged too late, those that do not learn still walk as the untrained policy does. As
there, what counts is the mean of each team's newest five returns; here also that the rating of the policy has grown.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from ludus.protocol.spec import ActionSpec
from tests.learning.test_ml_agents_checks import CONTINUOUS, DISCRETE, LEARN, LONG, NAMES
from tests.toys.walk import HYPERPARAMETERS
from tests.toys.walkers import Walkers
from tests.worker.selfplay.match_day import train

BAR = 0.9
SYMMETRIC, ASYMMETRIC = ("Walk?team=0", "Walk?team=1"), ("Walk?team=0", "WalkOpp?team=1")
LATEST = {"play_against_latest_model_ratio": 1.0}
UNTRAINED = {"play_against_latest_model_ratio": 0.0}


@dataclass(frozen=True, slots=True)
class Check:
    """One of ML-Agents' checks."""

    variant: str
    names: tuple[str, str]
    actions: ActionSpec
    steps: int
    """ML-Agents' budget, of each behavior."""
    self_play: dict[str, Any]
    learned: bool
    """Whether all teams shall walk well; else one does and one does not."""
    when: tuple[pytest.MarkDecorator, ...]

    def __str__(self) -> str:
        return f"{self.variant}-{NAMES[self.actions]}"

    @property
    def document(self) -> dict[str, dict[str, Any]]:
        """The behaviors' sections of the configuration."""
        section = {
            "hyperparameters": HYPERPARAMETERS["ppo"],
            "network_settings": {"num_layers": 1, "hidden_units": 32},
            "max_steps": self.steps,
            "summary_freq": 500,
            "self_play": self.self_play,
        }
        return {name.partition("?")[0]: section for name in self.names}


# fmt: off
SWAPPED = {**LATEST, "save_steps": 2000, "swap_steps": 2000}
NEVER_SWAPPED = {**LATEST, "save_steps": 2000, "swap_steps": 4000}
TURNS = {**LATEST, "save_steps": 10_000, "swap_steps": 10_000, "team_change": 400}
UNTRAINED_TURNS = {**UNTRAINED, "save_steps": 5000, "swap_steps": 5000, "team_change": 2000}
CHECKS = (
    Check("symmetric",        SYMMETRIC,  DISCRETE,   2500, SWAPPED,         True,  LONG),
    Check("symmetric",        SYMMETRIC,  CONTINUOUS, 2500, SWAPPED,         True,  LEARN),
    Check("symmetric-fails",  SYMMETRIC,  DISCRETE,   2500, NEVER_SWAPPED,   False, LONG),
    Check("symmetric-fails",  SYMMETRIC,  CONTINUOUS, 2500, NEVER_SWAPPED,   False, LEARN),
    Check("asymmetric",       ASYMMETRIC, DISCRETE,   4000, TURNS,           True,  LEARN),
    Check("asymmetric",       ASYMMETRIC, CONTINUOUS, 4000, TURNS,           True,  LEARN),
    Check("asymmetric-fails", ASYMMETRIC, DISCRETE,   3000, UNTRAINED_TURNS, False, LEARN),
    Check("asymmetric-fails", ASYMMETRIC, CONTINUOUS, 3000, UNTRAINED_TURNS, False, LEARN),
)
# fmt: on


@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", [pytest.param(check, id=str(check), marks=check.when) for check in CHECKS])
def test_what_ml_agents_checks_is_learnt_within_its_budget(check: Check, tmp_path: Path) -> None:
    game = Walkers(check.names, check.actions)

    finished, match_recorder = train(check.document, [game], tmp_path)

    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished.detail
    assert match_recorder.checkpoints[-1].steps == dict.fromkeys(check.document, check.steps)
    scores = [fmean(game.returns(name)) for name in check.names]
    if check.learned:
        assert min(scores) > BAR, scores
    else:
        assert min(scores) < BAR < max(scores), scores
    assert match_recorder.points("Self-play/ELO", "Walk")[-1] > 1200.0
