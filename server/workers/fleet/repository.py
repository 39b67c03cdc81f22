"""Counts runs by state, waiting times, attempts by outcome, and pending messages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import CompoundSelect, case, func, select, text, union_all

from ludus.schemas.states import RunState
from server.kit.db.clock import now
from server.kit.db.repository import Repository
from server.kit.scheduling import SchedulingSettings
from server.kit.states import TERMINAL
from server.runs.models import CLAIMABLE_SQL, Attempt, DeletedAttempts, Lease, Run
from server.runs.scheduling.queue import QueuedDemand
from server.simulators.models import Simulator
from server.webhooks.models import PENDING_SQL, Delivery, Webhook
from server.workers.repository import QueueRepository, WorkerRepository

HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The numbers of one moment. Ages are in seconds, 0 where there is nothing to be old."""

    runs: Mapping[str, int]
    """By state; every state is there."""
    oldest_queued_seconds: float
    """Longest time that a run has waited for a worker."""
    queue: Sequence[QueuedDemand]
    """The waiting runs by their demand, the demand with the most runs first."""
    workers_busy: int
    workers_idle: int
    workers_cordoned: int
    """Without a run, and not to take one."""
    workers_silent: int
    """Lost or hanging within the last hour (`WorkerRepository.silent`)."""
    simulators: int
    """Connected to runs that have not ended."""
    attempts_live: int
    oldest_heartbeat_seconds: float
    """Since the heartbeat of the live attempt that was silent longest."""
    attempts_ended: Mapping[str, int]
    """By outcome; `lease_expired` are those that lost their lease. With those of deleted runs: they never fall."""
    agent_steps: int
    """Trained by all attempts together, with those of deleted runs."""
    deliveries_pending: int
    oldest_due_seconds: float
    """Longest time that a message has been due."""
    webhooks_disabled: Mapping[str, int]
    """By reason."""


class FleetRepository(Repository):
    """Reads the numbers."""

    def read(self, policy: SchedulingSettings, silent_seconds: float) -> Fleet:
        """Read all numbers. A worker without a heartbeat for `silent_seconds` does not count."""
        scalar, execute = self._session.scalar, self._session.execute
        runs = dict.fromkeys((state.value for state in RunState), 0)
        runs |= {row[0]: row[1] for row in execute(select(Run.state, func.count()).group_by(Run.state))}
        slots = WorkerRepository(self._session).slots(silent_seconds)
        workers = Counter[str]()
        for slot, count in slots.items():
            workers["busy" if not slot.idle else "cordoned" if slot.offer.cordoned else "idle"] += count
        live_runs = select(Run.id).where(Run.state.in_([state for state in RunState if state not in TERMINAL]))
        lease = (Lease.run_id == Attempt.run_id) & (Lease.attempt == Attempt.number)
        heard = func.coalesce(Lease.renewed_at, Attempt.heartbeat_at)
        leased = select(func.count(), now() - func.min(heard)).select_from(Attempt).outerjoin(Lease, lease)
        leased = leased.where(Attempt.lease_expires_at.is_not(None))
        live, oldest_heartbeat = execute(leased).one()
        # An attempt of the release before `0027` that has not reported yet has step 0, below the one it resumes from.
        step = func.coalesce(Lease.step, Attempt.step)
        trained = func.sum(case((step > Attempt.resume_step, step - Attempt.resume_step), else_=0))
        outcomes = select(Attempt.outcome, func.count(), trained).outerjoin(Lease, lease).group_by(Attempt.outcome)
        # One statement: a deletion that commits meanwhile has moved attempts from the one to the other, or has not.
        deleted = select(DeletedAttempts.outcome, DeletedAttempts.attempts, DeletedAttempts.agent_steps)
        ended, agent_steps = Counter[str](), 0
        counted: CompoundSelect[Any] = union_all(outcomes, deleted)
        for outcome, count, steps in execute(counted):
            ended[outcome or ""] += count
            agent_steps += int(steps)
        del ended[""]  # those that go on
        deliveries = (
            select(func.count(), now() - func.min(Delivery.next_try_at))
            .join(Webhook, Webhook.id == Delivery.webhook_id)
            .where(text(f"webhook_deliveries.{PENDING_SQL}"), Webhook.enabled)
        )
        pending, oldest_due = execute(deliveries).one()
        disabled = select(Webhook.disabled_reason, func.count()).where(~Webhook.enabled)
        return Fleet(
            runs=runs,
            oldest_queued_seconds=max(
                0.0, scalar(select(now() - func.min(Run.queued_at)).where(text(CLAIMABLE_SQL))) or 0.0
            ),
            queue=QueueRepository(self._session).read(policy, silent_seconds),
            workers_busy=workers["busy"],
            workers_idle=workers["idle"],
            workers_cordoned=workers["cordoned"],
            workers_silent=WorkerRepository(self._session).silent(HOUR_SECONDS),
            simulators=scalar(
                select(func.count()).where(Simulator.run_id.in_(live_runs), Simulator.state == "connected")
            )
            or 0,
            attempts_live=live,
            oldest_heartbeat_seconds=max(0.0, oldest_heartbeat or 0.0),
            attempts_ended=ended,
            agent_steps=agent_steps,
            deliveries_pending=pending,
            oldest_due_seconds=max(0.0, oldest_due or 0.0),
            webhooks_disabled={
                reason or "user": count for reason, count in execute(disabled.group_by(Webhook.disabled_reason))
            },
        )
