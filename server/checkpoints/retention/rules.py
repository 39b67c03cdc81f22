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
    items = list(checkpoints)
    good = [item for item in items if not item.damaged]
    newest = max(good, key=lambda item: item.order, default=None)
    scored = [(item.score, item.order, item.id) for item in good if item.score is not None]
    ids = {item.id for item in items if item.held} | {item for *_, item in sorted(scored, reverse=True)[:best]}
    return ids if newest is None else ids | {newest.id}


def beyond_count(checkpoints: Iterable[Candidate], keep: int, best: int) -> list[Candidate]:
    """Return those of one run's checkpoints that `keep_checkpoints` and `keep_best` let go, oldest first. 0 keeps all.

    Final ones stay. Damaged ones don't count among the newest, and go with those that are as old.
    """
    items = sorted(checkpoints, key=lambda item: item.order, reverse=True)
    stay = spared(items, best)
    counted = [item for item in items if not item.final and not item.damaged]
    if keep <= 0 or len(counted) <= keep:
        return []
    last = counted[keep - 1].order
    excess = [item for item in items if item.order < last and not item.final and item.id not in stay]
    return excess[::-1]


def beyond_age(checkpoints: Iterable[Candidate], stay: set[str], before: float) -> list[Candidate]:
    """Return the checkpoints of all runs that are older than a time, oldest first."""
    return _oldest_first(item for item in checkpoints if item.created_at < before and item.id not in stay)


def beyond_size(checkpoints: Sequence[Candidate], stay: set[str], limit: int) -> list[Candidate]:
    """Return the oldest checkpoints of all runs without which the others have at most `limit` bytes, if there are any.

    Those that stay count, too: where they alone are larger, all others go.
    """
    excess = sum(item.size for item in checkpoints) - limit
    oldest = []
    for item in _oldest_first(item for item in checkpoints if item.id not in stay):
        if excess <= 0:
            break
        oldest.append(item)
        excess -= item.size
    return oldest


def _oldest_first(checkpoints: Iterable[Candidate]) -> list[Candidate]:
    return sorted(checkpoints, key=lambda item: (item.created_at, item.order))
