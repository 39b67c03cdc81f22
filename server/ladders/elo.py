"""Elo ratings as ML-Agents computes them: a step of K = 1 towards the score, on a scale of 400. Pure arithmetic.

    E = 1 / (1 + 10^((opponent - rating) / 400)),    rating := rating + K (score - E)

The score is 1 for a win, 1/2 for a draw and 0 for a loss. One side gains as much as the other one loses, so that the
sum of the ratings stays what it is.
"""

import math
from typing import Final

K: Final = 1.0
"""Greatest change of a rating by one match."""
SCALE: Final = 400.0
"""A lead of so many points makes a win ten times as likely as a loss."""
_STEEPEST: Final = 300.0
"""Beyond this exponent of ten the outcome is certain in double precision."""


def expected(rating: float, opponent: float) -> float:
    """Return the score, between 0 and 1, that a player can expect against an opponent."""
    return 1.0 / (1.0 + math.pow(10.0, min((opponent - rating) / SCALE, _STEEPEST)))


def change(score: float, rating: float, opponent: float) -> float:
    """Return by how much a score (0 to 1) changes a rating; the opponent's changes by as much the other way."""
    return K * (score - expected(rating, opponent))
