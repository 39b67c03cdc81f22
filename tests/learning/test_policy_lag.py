"""Steps that a policy of four updates ago took: what they cost, and what V-trace makes of them.

Every round is played by the policy of `lag` updates before, as behind a slow link, and learned from by the newest one.
Figures are in benchmarks/README.md.
"""

from functools import cache

import numpy as np
import pytest

from tests.learning.statistics import chance_of_as_much_worse
from tests.toys.late import GAMES, curve

pytestmark = [pytest.mark.learning, pytest.mark.hours, pytest.mark.timeout(1800)]

SEEDS, ROUNDS, LAST = range(1, 9), 80, 10


@cache
def curves(name: str, trainer: str, lag: int, vtrace: bool) -> list[list[float]]:
    """Return the mean return in each round, for each seed."""
    return [
        curve(name, lag=lag, seed=seed, rounds=ROUNDS, objective={"vtrace": vtrace}, trainer=trainer) for seed in SEEDS
    ]


def at_the_end(scores: list[list[float]]) -> list[float]:
    return [float(np.nanmean(of_seed[-LAST:])) for of_seed in scores]


def on_the_way(scores: list[list[float]]) -> list[float]:
    return [float(np.nanmean(of_seed)) for of_seed in scores]


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
@pytest.mark.parametrize("name", sorted(GAMES))
def test_with_vtrace_steps_of_four_updates_ago_lead_to_the_returns_of_lockstep(name: str, trainer: str) -> None:
    lockstep, late, corrected = (curves(name, trainer, *how) for how in ((0, False), (4, False), (4, True)))
    for title, scores in (("lockstep", lockstep), ("lag 4", late), ("lag 4, vtrace", corrected)):
        ends, way = at_the_end(scores), on_the_way(scores)
        line = f"{name} {trainer} {title}: end {np.mean(ends):.1f} (worst {min(ends):.1f}), mean {np.mean(way):.1f}"
        print(line)  # noqa: T201  (the figures that docs tell)

    assert chance_of_as_much_worse(at_the_end(corrected), at_the_end(lockstep)) > 0.05


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_without_vtrace_a_late_ball_is_learned_more_slowly(trainer: str) -> None:
    late, corrected = (on_the_way(curves("ball", trainer, 4, vtrace)) for vtrace in (False, True))

    assert chance_of_as_much_worse(late, corrected) < 0.05
