"""Whose turn it is: the order in which a free slot takes waiting runs. Pure: no database, no clock.

1. The highest priority; waiting raises it by one step each `aging_seconds`, so that nothing waits for ever.
2. The owner of whom the fewest runs are being trained: a hundred runs of one do not keep another's first one waiting.
3. The run that has waited longest.

An owner whose quota is used up is passed over, whatever the priority.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from server.scheduling.demand import Demand, Offer
from server.settings import SchedulingSettings


@dataclass(frozen=True)
class Waiting:
    """The run that has waited longest of one owner, with one demand and one priority."""

    run_id: str
    owner: str
    demand: str
    priority: int
    queued_at: float
    """On the database's clock."""


def by_turn(
    waiting: Iterable[Waiting],
    running: Mapping[str, int],
    offer: Offer,
    policy: SchedulingSettings,
    now: float,
    hint: str | None = None,
) -> list[Waiting]:
    """Return the runs that a slot may take, the one whose turn it is first.

    `running` counts the runs that are being trained, by owner; `now` is the database's time; `hint` is the run that the
    wake-up named, which decides between equals only.
    """

    def key(one: Waiting) -> tuple[int, int, float, bool, str]:
        waited = max(0.0, now - one.queued_at)
        priority = one.priority + int(waited // policy.aging_seconds)
        return (-priority, running.get(one.owner, 0), one.queued_at, one.run_id != hint, one.run_id)

    allowed = [
        one
        for one in waiting
        if offer.serves(Demand.parse(one.demand)) and running.get(one.owner, 0) < policy.quota(one.owner)
    ]
    return sorted(allowed, key=key)
