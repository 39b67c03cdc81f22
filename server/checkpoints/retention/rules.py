"""The rules of retention, as pure functions over facts about checkpoints.

Spared, whatever else is said, are of each run the newest good one (recovery begins with it) and as many of the best as
its configuration keeps; and everything that is pinned or in use (`Candidate.held`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """One checkpoint whose files are stored."""

    id: str
    run_id: str
    order: tuple[int, int, float, str]
    """Attempt number, step, time and id: the last in this order is the run's newest."""
    created_at: float
    step: int
    size: int
    """Bytes."""
    final: bool
    """Whether a run ended with it."""
    score: float | None
    damaged: bool
    held: bool
    """Whether it is pinned, has an alias, or is something that a run which has not ended begins with."""


def spared(checkpoints: Iterable[Candidate], best: int) -> set[str]:
    """Return the ids of those of one run's checkpoints that no rule removes; `best` is how many of the best stay."""
    every = list(checkpoints)
    good = [each for each in every if not each.damaged]
    newest = max(good, key=lambda each: each.order, default=None)
    scored = [(each.score, each.order, each.id) for each in good if each.score is not None]
    kept = {each.id for each in every if each.held} | {each for *_, each in sorted(scored, reverse=True)[:best]}
    return kept if newest is None else kept | {newest.id}


def beyond_count(checkpoints: Iterable[Candidate], keep: int, best: int) -> list[Candidate]:
    """Return those of one run's checkpoints that `keep_checkpoints` and `keep_best` let go, oldest first. 0 keeps all.

    Final ones stay. Damaged ones don't count among the newest, and go with those that are as old.
    """
    every = sorted(checkpoints, key=lambda each: each.order, reverse=True)
    stay = spared(every, best)
    counted = [each for each in every if not each.final and not each.damaged]
    if keep <= 0 or len(counted) <= keep:
        return []
    last = counted[keep - 1].order
    gone = [each for each in every if each.order < last and not each.final and each.id not in stay]
    return gone[::-1]


def beyond_age(checkpoints: Iterable[Candidate], stay: set[str], before: float) -> list[Candidate]:
    """Return the checkpoints of all runs that are older than a time, oldest first."""
    return _oldest_first(each for each in checkpoints if each.created_at < before and each.id not in stay)


def beyond_size(checkpoints: Sequence[Candidate], stay: set[str], limit: int) -> list[Candidate]:
    """Return the oldest checkpoints of all runs without which the others have at most `limit` bytes, if there are any.

    Those that stay count, too: where they alone are larger, all others go.
    """
    excess = sum(each.size for each in checkpoints) - limit
    gone = []
    for each in _oldest_first(each for each in checkpoints if each.id not in stay):
        if excess <= 0:
            break
        gone.append(each)
        excess -= each.size
    return gone


def _oldest_first(checkpoints: Iterable[Candidate]) -> list[Candidate]:
    return sorted(checkpoints, key=lambda each: (each.created_at, each.order))
