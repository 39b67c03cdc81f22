"""The queue by demand: how many runs wait, how many may start, and how many slots they lack. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from server.kit.scheduling import SchedulingSettings
from server.runs.scheduling.demand import Demand, Offer, Slot, leaves, no_slot_serves, occupy, others_than, pool_of
from server.runs.scheduling.order import Account, InTraining


@dataclass(frozen=True)
class WaitingGroup:
    """The waiting runs of one account with one demand."""

    account: Account
    demand: str
    runs: int
    queued_at: float
    """Of the run that has waited longest, on the database's clock."""


@dataclass(frozen=True)
class DemandSlots:
    """Numbers of the live slots that have what a demand needs. A cordoned one counts as that alone."""

    idle: int
    busy: int
    cordoned: int


@dataclass(frozen=True)
class QueuedDemand:
    """The waiting runs with one demand."""

    demand: Demand
    runs: int
    startable_runs: int
    """Of them, those that quotas allow to be in training now."""
    missing_slots: int
    """Slots that the startable runs lack beyond the idle ones that would take them."""
    oldest_seconds: float
    """Waiting time of the run that has waited longest; 0 without runs."""
    pool: str | None
    """The declared pool that starts workers for it."""
    slots: DemandSlots
    explanation: str | None
    """Why no slot takes the runs, if no live slot and no pool serves them."""


def queue_by_demand(
    groups: Iterable[WaitingGroup],
    running: InTraining,
    slots: Mapping[Slot, int],
    policy: SchedulingSettings,
    now: float,
    asked: Demand | None = None,
) -> list[QueuedDemand]:
    """Return the queue, the demands with the most runs first; `asked` is there even if no run has this demand.

    `slots` are the live ones, with the number of slots that are the same.
    """
    groups = sorted(groups, key=lambda group: (group.queued_at, group.demand))
    startable = _startable(groups, running, policy)
    runs: Counter[Demand] = Counter() if asked is None else Counter({asked: 0})
    since: dict[Demand, float] = {}
    for group in groups:
        demand = Demand.parse(group.demand)
        runs[demand] += group.runs
        since.setdefault(demand, group.queued_at)
    missing = _missing(startable, slots)
    offers = Counter[Offer]()
    for slot, count in slots.items():
        offers[slot.offer] += count
    queue = []
    for demand, count in sorted(runs.items(), key=lambda item: (-item[1], item[0].name)):
        states = Counter[str]()
        for slot, number in slots.items():
            if slot.offer.fits(demand):
                states["cordoned" if slot.offer.cordoned else "idle" if slot.idle else "busy"] += number
        pool = pool_of(demand, policy)
        queue.append(
            QueuedDemand(
                demand,
                count,
                startable[demand],
                missing[demand],
                max(0.0, now - since[demand]) if demand in since else 0.0,
                pool,
                DemandSlots(states["idle"], states["busy"], states["cordoned"]),
                no_slot_serves(demand, offers, policy.pools) if pool is None else None,
            )
        )
    return queue


def _startable(groups: Sequence[WaitingGroup], running: InTraining, policy: SchedulingSettings) -> Counter[Demand]:
    """Return how many runs of each demand could be in training beside the present ones, the oldest groups first."""
    projects: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    startable_runs: Counter[Demand] = Counter()
    for group in groups:
        project, token = group.account.project, group.account.token_id
        left_of_project = policy.project_quota(project) - running.of_project(project) - projects[project]
        left_of_token = policy.token_quota(token) - running.of_token(token) - tokens[token]
        startable = int(max(0, min(group.runs, left_of_project, left_of_token)))
        projects[project] += startable
        tokens[token] += startable
        startable_runs[Demand.parse(group.demand)] += startable
    return startable_runs


def _missing(startable: Mapping[Demand, int], slots: Mapping[Slot, int]) -> Counter[Demand]:
    """Give each idle slot to one run, the most demanding runs first; return how many runs of each demand get none.

    A slot that leaves a run to a busy one is not given to it, for however long the run waits: how long the slot has
    left it, the slot alone knows. When the slot takes the run in the end, the run waits no longer.
    """
    present = Counter(slots)
    idle = (slot for slot in slots if slot.idle)
    smallest = sorted(idle, key=lambda slot: (slot.offer.gpus, len(slot.offer.labels)))
    missing: Counter[Demand] = Counter()
    for demand, count in sorted(startable.items(), key=lambda item: (item[0].gpus, len(item[0].labels)), reverse=True):
        missing[demand] = count
        for slot in smallest:
            assigned = min(present[slot], missing[demand]) if slot.offer.serves(demand) else 0
            if assigned:
                # Smaller slots have runs now, and each of these but the last one sees another one idle beside it.
                occupy(present, slot, assigned - 1)
                if leaves(demand, slot.offer, others_than(slot, present)):
                    assigned -= 1
                else:
                    occupy(present, slot)
                missing[demand] -= assigned
    return missing
