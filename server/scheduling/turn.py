"""Whose turn it is: the order in which a free slot takes waiting runs. Pure: no database, no clock.

1. The highest priority; waiting raises it by one step each `aging_seconds`, so that nothing waits for ever.
2. The owner of whom the fewest runs are being trained: a hundred runs of one do not keep another's first one waiting.
3. The run that has waited longest.

An owner whose quota is used up is passed over, whatever the priority.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from server.scheduling.demand import Demand, Offer, nobody_serves
from server.settings import SchedulingSettings


@dataclass(frozen=True)
class Obstacle:
    """Why a run waits for more than its turn."""

    event: str
    """Type of the event that says so the first time."""
    sentence: str
    level: str = "warning"


def obstacle(
    owner: str, demand: str, offers: Sequence[Offer], running: Mapping[str, int], policy: SchedulingSettings
) -> Obstacle | None:
    """Return why no slot takes an owner's runs with this demand; None where they only wait for their turn."""
    nobody = nobody_serves(Demand.parse(demand), offers)
    if nobody is not None:
        return Obstacle("no_worker_serves", nobody)
    quota = policy.quota(owner)
    if running.get(owner, 0) < quota:
        return None
    whose = f"The owner `{owner}`" if owner else "Who gives no owner"
    if quota == 0:
        return Obstacle("quota_reached", f"{whose} may have no run trained here (LUDUS_SCHEDULING__OWNER_QUOTAS).")
    runs = f"{quota:g} run{'s' * (quota > 1)}"
    sentence = f"{whose} has {runs} trained, as many as allowed: this one follows when one of them ends."
    return Obstacle("quota_reached", sentence, "info")


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
