"""The curve of a run that continues others: their points, each up to the checkpoint that the next took, and its own.

A run that continues another one counts the steps on. What its predecessor recorded beyond that checkpoint is no part of
the curve: those steps were done again. A behavior that the checkpoint does not have began anew, and has no predecessor.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from server.checkpoints.repository import Takeover
from server.metrics.points import NO_LIMIT, Place, Points, Window

Lineages = Mapping[str, Sequence[Takeover]]
"""For each run that continues another one, the takeovers that led to it, the newest first."""
Piece = tuple[Place, int]
"""A metric of one run, and the last step of it that counts."""


def pieces(places: Iterable[Place], run_ids: Sequence[str], lineages: Lineages) -> dict[Place, list[Piece]]:
    """Return, for each metric of these runs, the metrics of which its curve consists, the oldest first.

    `places` are those of the runs and of their predecessors. The metrics come run by run, with names sorted.
    """
    names: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for run_id, behavior, key in places:
        names[run_id].add((behavior, key))
    curves: defaultdict[Place, list[Piece]] = defaultdict(list)
    for run_id in run_ids:
        takeovers = lineages.get(run_id, ())
        members = [run_id, *(takeover.predecessor for takeover in takeovers)]
        for behavior, key in sorted(set().union(*(names[member] for member in members))):
            last = NO_LIMIT
            limits = [last, *(last := min(last, _last_step(takeover, behavior)) for takeover in takeovers)]
            for member, limit in reversed(list(zip(members, limits, strict=True))):
                if (behavior, key) in names[member] and limit >= 0:
                    curves[run_id, behavior, key].append(((member, behavior, key), limit))
    return dict(curves)


def joined(parts: Sequence[Piece], histories: Mapping[Place, Points]) -> Points:
    """Return the points of a curve, of which the metrics are in `histories`."""
    return Points.joined([histories[place].within(Window(last=limit)) for place, limit in parts]).increasing()


def _last_step(takeover: Takeover, behavior: str) -> int:
    """Return the last step of a behavior's predecessor that counts, -1 where it has none; "" is the run as a whole."""
    return takeover.steps.get(behavior, -1) if behavior else takeover.step
