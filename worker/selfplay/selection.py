"""Selects opponents of the learning policy: the probability of each snapshot, and draws.

Uniform over the window is ML-Agents'. Prioritised fictitious self-play (Vinyals et al. 2019, AlphaStar, methods,
"Prioritized fictitious self-play") prefers opponents by how the policy fared against them, with `p` its share of points
(1 for a win, 1/2 for a draw): `(1 - p)^2` those it loses to, `p (1 - p)` its equals. Against whom it has not played
yet, `p` is the value with the greatest probability, so that each opponent is tried.
"""

from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from ludus.config.selfplay import OpponentSelection, SelfPlaySettings
from worker.selfplay.pool import Snapshot

MEMORY = 0.99
"""Factor of a game's weight for each later game against the same snapshot: the policy that learns changes."""


class Payoffs:
    """How the policy that learns fares against each snapshot."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[float, float]] = {}
        """Number of the snapshot -> games, points; both fade."""

    def played(self, number: int, score: float) -> None:
        """Record a game: 1 for a win of the policy that learns, 1/2 for a draw, 0 for a loss."""
        games, points = self._counts.get(number, (0.0, 0.0))
        self._counts[number] = (MEMORY * games + 1.0, MEMORY * points + score)

    def share(self, number: int) -> float | None:
        """Return the share of points, between 0 and 1; None before the first game."""
        games, points = self._counts.get(number, (0.0, 0.0))
        return points / games if games else None

    def forget_before(self, number: int) -> None:
        """Forget older snapshots."""
        self._counts = {own: counts for own, counts in self._counts.items() if own >= number}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `load_state_dict` needs."""
        return {str(number): list(counts) for number, counts in self._counts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._counts = {int(number): (games, points) for number, (games, points) in state.items()}


def probabilities(selection: OpponentSelection, shares: list[float | None]) -> NDArray[np.float64]:
    """Return the probability of each snapshot, given the shares of points against them; None: not played yet."""
    match selection:
        case "uniform":
            weights = np.ones(len(shares))
        case "pfsp_hard":
            weights = (1.0 - np.array([0.0 if share is None else share for share in shares])) ** 2
        case "pfsp_variance":
            known = np.array([0.5 if share is None else share for share in shares])
            weights = known * (1.0 - known)
        case _:
            assert_never(selection)
    if not weights.any():  # it always wins, or (variance) always loses: all are equal
        weights = np.ones(len(shares))
    normalized: NDArray[np.float64] = weights / weights.sum()
    return normalized


def draw(
    settings: SelfPlaySettings, snapshots: tuple[Snapshot, ...], payoffs: Payoffs, rng: np.random.Generator
) -> Snapshot | None:
    """Draw an opponent: a snapshot, or None for the newest policy (`play_against_latest_model_ratio`)."""
    if rng.random() >= 1.0 - settings.play_against_latest_model_ratio:
        return None
    shares = [payoffs.share(snapshot.number) for snapshot in snapshots]
    return snapshots[int(rng.choice(len(snapshots), p=probabilities(settings.opponent_selection, shares)))]
