"""Counts what there is: runs by state, who waits and for how long, attempts and how they ended, messages to deliver."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from server.kit.db.clock import now
from server.runs.models import CLAIMABLE_SQL, Attempt, Run
from server.runs.states import TERMINAL, RunState
from server.simulators.models import Simulator
from server.webhooks.models import PENDING_SQL, Delivery, Webhook
from server.workers.models import Worker


@dataclass(frozen=True, slots=True)
class Fleet:
    """The numbers of one moment. Ages are in seconds, 0 where there is nothing to be old."""

    runs: Mapping[str, int]
    """By state; every state is there."""
    oldest_queued_seconds: float
    """How long the run that waits longest has waited for a worker."""
    workers_busy: int
    workers_idle: int
    simulators: int
    """Connected to runs that have not ended."""
    attempts_live: int
    oldest_heartbeat_seconds: float
    """Since the heartbeat of the live attempt that was silent longest."""
    attempts_ended: Mapping[str, int]
    """By outcome; `lease_expired` are those that lost their lease."""
    agent_steps: int
    """Trained by all attempts together."""
    deliveries_pending: int
    oldest_due_seconds: float
    """How long the message that is due longest waits to be sent."""
    webhooks_disabled: Mapping[str, int]
    """By reason."""


class FleetRepository:
    """Reads the numbers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def read(self, silent_seconds: float) -> Fleet:
        """Count. A worker that was not heard of for `silent_seconds` doesn't count."""
        live, oldest_heartbeat = self._live_attempts()
        ended, steps = self._attempts()
        busy, idle = self._workers(silent_seconds)
        pending, oldest_due = self._deliveries()
        return Fleet(
            runs=self._runs(),
            oldest_queued_seconds=self._oldest_queued(),
            workers_busy=busy,
            workers_idle=idle,
            simulators=self._simulators(),
            attempts_live=live,
            oldest_heartbeat_seconds=oldest_heartbeat,
            attempts_ended=ended,
            agent_steps=steps,
            deliveries_pending=pending,
            oldest_due_seconds=oldest_due,
            webhooks_disabled=self._webhooks_disabled(),
        )

    def _runs(self) -> dict[str, int]:
        found = dict.fromkeys((state.value for state in RunState), 0)
        for state, count in self._session.execute(select(Run.state, func.count()).group_by(Run.state)):
            found[state] = count
        return found

    def _oldest_queued(self) -> float:
        waited = select(now() - func.min(Run.queued_at)).where(text(CLAIMABLE_SQL))
        return max(0.0, self._session.scalar(waited) or 0.0)

    def _workers(self, silent_seconds: float) -> tuple[int, int]:
        query = select(func.count(), func.count(Worker.run_id)).where(
            Worker.stopped_at.is_(None), Worker.heartbeat_at > now() - silent_seconds
        )
        there, busy = self._session.execute(query).one()
        return busy, there - busy

    def _simulators(self) -> int:
        live = select(Run.id).where(Run.state.in_([state for state in RunState if state not in TERMINAL]))
        query = select(func.count()).where(Simulator.run_id.in_(live), Simulator.state == "connected")
        return self._session.scalar(query) or 0

    def _live_attempts(self) -> tuple[int, float]:
        query = select(func.count(), now() - func.min(Attempt.heartbeat_at)).where(
            Attempt.lease_expires_at.is_not(None)
        )
        count, oldest = self._session.execute(query).one()
        return count, max(0.0, oldest or 0.0)

    def _attempts(self) -> tuple[dict[str, int], int]:
        trained = func.sum(Attempt.step - Attempt.resume_step)
        found = self._session.execute(select(Attempt.outcome, func.count(), trained).group_by(Attempt.outcome)).all()
        # An attempt that has not reported yet has step 0 below the one that it resumes from.
        steps = sum(int(each) for _, _, each in found if each is not None)
        return {outcome: count for outcome, count, _ in found if outcome is not None}, max(0, steps)

    def _deliveries(self) -> tuple[int, float]:
        query = (
            select(func.count(), now() - func.min(Delivery.next_try_at))
            .join(Webhook, Webhook.id == Delivery.webhook_id)
            .where(text(f"webhook_deliveries.{PENDING_SQL}"), Webhook.enabled)
        )
        count, oldest = self._session.execute(query).one()
        return count, max(0.0, oldest or 0.0)

    def _webhooks_disabled(self) -> dict[str, int]:
        query = select(Webhook.disabled_reason, func.count()).where(~Webhook.enabled).group_by(Webhook.disabled_reason)
        return {reason or "user": count for reason, count in self._session.execute(query)}
