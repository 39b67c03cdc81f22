"""Elo ratings of a behavior's policies: of the one that learns, and of its snapshots (`server.ladders.elo`).

As in ML-Agents a snapshot begins with the rating that the policy has when it is taken. Matches conserve the sum: what
the learning side gains, its opponents lose. Against several opponents each counts an equal part of a match; ML-Agents
compares with the last team only and changes the ratings of all, so that there the sum drifts.
"""

from collections.abc import Sequence
from typing import Any

from server.ladders import elo


class Ratings:
    """The ratings of one behavior's policies."""

    def __init__(self, initial: float) -> None:
        self.current = initial
        """Of the policy that learns."""
        self._snapshots: dict[int, float] = {}

    def saved(self, number: int) -> None:
        """Begin the rating of a snapshot."""
        self.enter(number, self.current)

    def enter(self, number: int, rating: float) -> None:
        """Begin the rating of an opponent with a given value."""
        self._snapshots[number] = rating

    def of(self, snapshot: int | None) -> float | None:
        """Return the rating of a snapshot, or (None) of the policy that learns; None if it is forgotten."""
        return self.current if snapshot is None else self._snapshots.get(snapshot)

    def add(self, snapshot: int | None, change: float) -> None:
        """Change the rating of a snapshot, or (None) of the policy that learns."""
        if snapshot is None:
            self.current += change
        else:
            self._snapshots[snapshot] += change

    def forget_before(self, number: int) -> None:
        """Forget older snapshots."""
        self._snapshots = {own: rating for own, rating in self._snapshots.items() if own >= number}

    @property
    def total(self) -> float:
        """The sum over all policies."""
        return self.current + sum(self._snapshots.values())

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `load_state_dict` needs."""
        return {"current": self.current, "snapshots": {str(own): rating for own, rating in self._snapshots.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.current = state["current"]
        self._snapshots = {int(own): rating for own, rating in state["snapshots"].items()}


def rate(own: Ratings, opponents: Sequence[tuple[Ratings, int | None]], score: float) -> bool:
    """Rate a match of the policy that learns: `score` is 1, 1/2 or 0; an opponent is a snapshot, or a learning policy.

    Return whether it changed anything: it does not where a rating is forgotten, and where a policy plays itself.
    """
    ratings = [where.of(snapshot) for where, snapshot in opponents]
    others = [where is not own or snapshot is not None for where, snapshot in opponents]
    known = [rating for rating in ratings if rating is not None]
    if len(known) < len(ratings) or not any(others):
        return False
    changes = [elo.change(score, own.current, rating) / len(known) for rating in known]
    for (where, snapshot), change in zip(opponents, changes, strict=True):
        if where is not own or snapshot is not None:
            where.add(snapshot, -change)
            own.add(None, change)
    return True
