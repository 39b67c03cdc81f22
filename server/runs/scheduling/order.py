"""The order in which a free slot takes waiting runs. Pure: no database, no clock.

1. The project with the fewest runs in training; among equal ones, the one whose next run has waited longest.
2. In the project, the highest priority; waiting raises it by one step each `aging_seconds`, so that nothing waits for
   ever.
3. Then the token with the fewest runs in training, and of one token's runs the owner with the fewest.
4. The run that has waited longest.

A run that is ready to train, because a game waits for it or it needs none, counts as having waited `aging_seconds`
longer. So it goes before others of the same priority, and no run waits for ever for a game to come first.

Project and token come from the authenticated request. Owner and priority are free text and a free number, so they
only order runs that would compete with each other anyway: they never gain anything over another project, and the owner
nothing over another token. Quotas bind projects and tokens; a run beyond one of them is passed over.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from server.kit.scheduling import SchedulingSettings
from server.runs.scheduling.demand import Demand, Offer, no_slot_serves, pool_of


@dataclass(frozen=True)
class Obstacle:
    """Why a run waits for more than its turn."""

    event: str
    """Type of the event that says so the first time."""
    sentence: str
    level: str = "warning"


class Account(NamedTuple):
    """The groups whose quotas a run counts against."""

    project: str
    token_id: str
    """The token that created it; empty: no token of the database did."""
    owner: str
    """Free text, by which nothing is limited."""


class InTraining:
    """Numbers of runs in training, by project, by token and by owner."""

    def __init__(self, counts: Mapping[Account, int]) -> None:
        self._projects: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._owners = dict(counts)
        for account, count in counts.items():
            self._projects[account.project] = self.of_project(account.project) + count
            self._tokens[account.token_id] = self.of_token(account.token_id) + count

    def of_project(self, project: str) -> int:
        """Return how many runs of a project are in training."""
        return self._projects.get(project, 0)

    def of_token(self, token_id: str) -> int:
        """Return how many runs that a token created are in training, in all projects that it acts in."""
        return self._tokens.get(token_id, 0)

    def of_owner(self, account: Account) -> int:
        """Return how many runs of an owner are in training, of those that one token created in one project."""
        return self._owners.get(account, 0)

    def after(self, end: Account | None = None, begin: Account | None = None) -> "InTraining":
        """Return the numbers once a run of one account has ended, and one of another has begun."""
        counts = Counter(self._owners)
        if end is not None:
            counts[end] -= 1
        if begin is not None:
            counts[begin] += 1
        return InTraining(counts)


def quota_reached(account: Account, running: InTraining, policy: SchedulingSettings) -> str | None:
    """Say which quota keeps an account's runs waiting; None where none does."""
    project, token = account.project, account.token_id
    limits = (
        (policy.project_quota(project), running.of_project(project), f"The project `{project}`", "PROJECT"),
        (policy.token_quota(token), running.of_token(token), _token(token), "TOKEN"),
    )
    for quota, count, whose, kind in limits:
        if quota == 0:
            settings = f"LUDUS_SCHEDULING__{kind}_QUOTAS or LUDUS_SCHEDULING__RUNS_PER_{kind}"
            return f"{whose} may have no run in training here ({settings})."
        if count >= quota:
            runs = f"{quota:g} run{'s' * (quota > 1)}"
            return f"{whose} has {runs} in training, as many as allowed: this one follows when one of them ends."
    return None


def _token(token_id: str) -> str:
    return f"The token `{token_id}`, which created this run," if token_id else "The group of runs without a token"


def obstacle(
    account: Account, demand: str, offers: Mapping[Offer, int], running: InTraining, policy: SchedulingSettings
) -> Obstacle | None:
    """Return why no slot takes an account's runs with this demand; None where they only wait for their turn."""
    parsed = Demand.parse(demand)
    reason = no_slot_serves(parsed, offers, policy.pools)
    if reason is not None:
        pool = pool_of(parsed, policy)
        if pool is not None and quota_reached(account, running, policy) is None:
            return Obstacle("pool_awaited", f"It waits for a worker of the pool {pool} to start.", "info")
        if pool is None:
            return Obstacle("no_worker_serves", reason)
    reached = quota_reached(account, running, policy)
    return None if reached is None else Obstacle("quota_reached", reached, "info")


@dataclass(frozen=True)
class Waiting:
    """The run that has waited longest of one account, with one demand and one priority; or of those that are ready."""

    run_id: str
    account: Account
    demand: str
    priority: int
    queued_at: float
    """On the database's clock."""
    ready: bool = False
    """Whether it could train at once: a game waits for it, or it needs none."""

    @property
    def group(self) -> Mapping[str, str | int]:
        """Account, demand and priority. Runs that are equal in them differ in nothing but how long they have waited."""
        return {**self.account._asdict(), "demand": self.demand, "priority": self.priority}


def in_order(
    waiting: Iterable[Waiting],
    running: InTraining,
    offer: Offer,
    policy: SchedulingSettings,
    now: float,
    hint: str | None = None,
) -> list[Waiting]:
    """Return the runs that a slot may take, the one whose turn it is first.

    `now` is the database's time; `hint` is the run that the wake-up named, which decides between equals only.
    """

    def since(run: Waiting) -> float:
        return run.queued_at - policy.aging_seconds * run.ready

    def in_project(run: Waiting) -> tuple[int, int, int, float, bool, str]:
        waited = max(0.0, now - since(run))
        priority = run.priority + int(waited // policy.aging_seconds)
        tokens, owners = running.of_token(run.account.token_id), running.of_owner(run.account)
        return (-priority, tokens, owners, since(run), run.run_id != hint, run.run_id)

    allowed = [
        run
        for run in waiting
        if offer.serves(Demand.parse(run.demand)) and quota_reached(run.account, running, policy) is None
    ]
    ordered = sorted(allowed, key=in_project)
    # Priorities of different projects are never compared: projects compare by the age of the run that each would take.
    next_of: dict[str, Waiting] = {}
    for run in ordered:
        next_of.setdefault(run.account.project, run)

    def of_project(run: Waiting) -> tuple[int, float, bool, str]:
        following = next_of[run.account.project]
        count = running.of_project(run.account.project)
        return (count, since(following), following.run_id != hint, run.account.project)

    return sorted(ordered, key=of_project)  # stable: the order within a project stays
