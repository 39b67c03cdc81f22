"""The queue that hands runs to workers, and the writes of an attempt (`server.runs.attempts.repository`: the fence)."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from sqlalchemy import bindparam, insert, update
from sqlalchemy.orm import Session

from ludus.schemas.states import RunKind, RunState, StopReason
from server.assessments.writer import AssessmentWriter
from server.checkpoints.refs import CheckpointRef
from server.checkpoints.repository import CheckpointRepository, InitialCheckpoints, ref
from server.checkpoints.requests.repository import CheckpointRequestRepository
from server.checkpoints.score import keep_best_of
from server.checkpoints.writer import CheckpointWriter
from server.demonstrations.refs import DemonstrationRef
from server.demonstrations.repository import DemonstrationRepository
from server.demonstrations.repository import ref as demonstration_ref
from server.kit.db.clock import now
from server.kit.db.database import Database
from server.kit.db.texts import storable_json
from server.kit.errors import DatabaseUnavailable, IllegalTransition, LeaseLost
from server.kit.scheduling import SchedulingSettings
from server.kit.states import EVENT_OF, LEASED, TERMINAL, Intent
from server.ladders.matches.writer import MatchWriter
from server.lifecycle.attempts.claim import DEFAULT_RESTART_BUDGET, Claim
from server.lifecycle.leases.repository import (
    SHOW_SECONDS,
    SHOWN_LEASE_SECONDS,
    LeaseRepository,
    Renewal,
    apply_intent,
    end_attempt,
    end_without_result,
)
from server.metrics.repository import MetricRepository
from server.metrics.writer import MetricWriter
from server.runs.amendments.refs import AmendmentRef
from server.runs.amendments.repository import AmendmentRepository
from server.runs.amendments.writer import AmendmentWriter
from server.runs.attempts.repository import AttemptFence
from server.runs.bottleneck.times import TimeSpent
from server.runs.environment_parameters.writer import ParameterWriter
from server.runs.events.repository import UNTRACKED, Note, lock_run, move
from server.runs.models import Attempt, Log, Run
from server.runs.profiles.repository import ProfileWriter
from server.runs.scheduling.demand import Demand, Offer
from server.runs.scheduling.fit import Slot, leaves
from server.runs.scheduling.order import Waiting, in_order
from server.runs.scheduling.repository import UNITS, Look, WaitingRuns, look_at
from server.simulators.collectors.writer import CollectorWriter
from server.simulators.writer import SimulatorWriter
from server.workers.models import Worker
from server.workers.repository import WorkerRepository, is_cordoned

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds until a slot tries the semaphore again, at most; twice as many after each look."""

_LOOK = look_at(barred=is_cordoned(bindparam("worker_id")))


class AnotherSlot(NamedTuple):
    """A kind of slots of which one is idle, and a waiting run that it serves."""

    run_id: str
    kind: str
    """`Offer.kind`."""


class RunQueue:
    """Hands runs to the worker of one slot."""

    def __init__(
        self,
        database: Database,
        policy: SchedulingSettings | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._policy = policy or SchedulingSettings()
        self._monotonic = monotonic
        self._left: Mapping[str, float] = {}
        """Runs that wait and were left to a slot that fits better, and since when."""
        self.for_another: AnotherSlot | None = None
        """After a claim that found nothing: the kind of an idle slot that serves a waiting run. Wake one of it."""

    def claim(
        self,
        worker_id: str,
        lease_seconds: float,
        hint: str | None = None,
        offer: Offer | None = None,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> Claim | None:
        """Claim the best run that waits and that a slot with this offer may run; None when there is none.

        Which one is best, `server.runs.scheduling.order` says; `hint` is the run that the wake-up named; `fingerprint`
        (`worker.host.fingerprint`) is kept with the attempt.
        The race: many workers are woken for one run, and users cancel it meanwhile. Claims happen one after the other,
        so that quotas hold; the chosen run is locked, passed over if it is busy, and taken by one conditional UPDATE on
        its state and attempt number. Raises DatabaseUnavailable if other claims do not end in time.
        """
        self.for_another = None
        offer = offer or Offer()
        with self._database.read(once=True) as session:  # most claims find nothing; they need no lock
            look = WaitingRuns(session).look(_LOOK, worker_id=worker_id)
        if not look.heads:
            return None
        with self._database.read() as session:
            order = self._order(session, look, worker_id, lease_seconds, hint, offer)
        if not order:
            self.for_another = self._another(look, worker_id, lease_seconds)
            return None
        # Hundreds of slots claim at once after a zone has died. If all waited for the lock, they would keep all
        # connections from the beats of others; if none did, the lock would be free most of the time.
        give_up, pause = time.monotonic() + self._database.busy_seconds, FIRST_PAUSE
        while True:
            unit = random.randrange(UNITS)  # noqa: S311  not used for secrets
            with self._database.write(once=True) as session:
                free = WaitingRuns(session).is_free(unit)
            if free:
                with self._database.write(gathers=True) as session:
                    entered = WaitingRuns(session).enter(unit)
                    if entered:
                        found = self._take(session, order[0], worker_id, lease_seconds, hint, offer, fingerprint)
                if entered:
                    break
            if time.monotonic() > give_up:
                raise DatabaseUnavailable("claims of other slots did not end in time")
            time.sleep(random.uniform(0, pause))  # noqa: S311  not used for secrets
            pause = min(2 * pause, LONGEST_PAUSE)
        if isinstance(found, Look):
            self.for_another = self._another(found, worker_id, lease_seconds)
            return None
        return found

    def _take(
        self,
        session: Session,
        guess: Waiting,
        worker_id: str,
        lease_seconds: float,
        hint: str | None,
        offer: Offer,
        fingerprint: Mapping[str, Any] | None,
    ) -> Claim | Look:
        """Claim a run in a transaction with a unit of the semaphore; if there is none, return what was there.

        Claims wait for one another, so that a run of the group of `guess`, whose turn it probably is, is read before
        the lock. If it is its turn with the lock, too, only one message is left; if not, another run is read.
        """
        runs = WaitingRuns(session)
        guessed = _candidate(session, guess)
        runs.lock_queue()
        look = runs.look(_LOOK, worker_id=worker_id)
        for one in self._order(session, look, worker_id, lease_seconds, hint, offer):
            candidate = (guessed if one.group == guess.group else None) or _candidate(session, one)
            if candidate is not None:
                return _begin(session, candidate, worker_id, lease_seconds, fingerprint, look.clock)
        return look

    def _order(
        self, session: Session, look: Look, worker_id: str, lease_seconds: float, hint: str | None, offer: Offer
    ) -> Sequence[Waiting]:
        """Return the heads of the queue that the slot may take, in order."""
        if look.barred:
            return []
        mine = [one for one in look.heads if offer.serves(Demand.parse(one.demand))]
        if mine and offer.gpus:
            left = self._left_to_others(mine, offer, WorkerRepository(session).others(worker_id, lease_seconds))
            mine = [one for one in mine if one.run_id not in left]
        return in_order(mine, look.running, offer, self._policy, now=look.clock, hint=hint)

    def _another(self, look: Look, worker_id: str, lease_seconds: float) -> AnotherSlot | None:
        """Return a run, of the heads of the queue, that another idle slot takes: the one that fits it best."""
        if not look.heads:
            return None
        with self._database.read(once=True) as session:
            others = WorkerRepository(session).others(worker_id, lease_seconds)
        idle = sorted(
            (other.offer for other in others if other.idle), key=lambda offer: (offer.gpus, len(offer.labels))
        )
        for offer in idle:
            order = in_order(look.heads, look.running, offer, self._policy, now=look.clock)
            if order:
                return AnotherSlot(order[0].run_id, offer.kind)
        return None

    def _left_to_others(self, heads: Sequence[Waiting], offer: Offer, others: Sequence[Slot]) -> AbstractSet[str]:
        """Return the runs that this slot leaves to others now, as it has not for too long."""
        now = self._monotonic()
        leaving = [one.run_id for one in heads if leaves(Demand.parse(one.demand), offer, others)]
        self._left = {run_id: self._left.get(run_id, now) for run_id in leaving}
        return {run_id for run_id, since in self._left.items() if now - since < self._policy.best_fit_seconds}

    def waiting(self, offer: Offer) -> str | None:
        """Return a run that waits for a worker and that a slot with this offer serves; None if there is none."""
        with self._database.read() as session:
            runs = WaitingRuns(session)
            served = [group for group in runs.demands() if offer.serves(Demand.parse(group[1]))]
            oldest = runs.oldest(served, limit=1) if served else ()
        return oldest[0].run_id if oldest else None


class AttemptLedger:
    """The writes of one attempt: its own, and the writers of the features. Each is one fenced transaction; all raise
    LeaseLost.
    """

    def __init__(self, database: Database, claim: Claim, restart_budget: int = DEFAULT_RESTART_BUDGET) -> None:
        self._claim = claim
        self._restart_budget = restart_budget
        self._show_at = time.monotonic() + SHOW_SECONDS
        """When the lease is written where the release before `0027` looks, on the monotonic clock."""
        self._fence = fence = AttemptFence(database, claim.run_id, claim.attempt)
        self.amendments = AmendmentWriter(fence)
        self.assessment = AssessmentWriter(fence)
        self.checkpoints = CheckpointWriter(
            fence,
            keep_best_of(claim.config),
            scores=lambda session, run_id: MetricRepository(session).scores(run_id),
            rewind=lambda session, run_id: MetricRepository(session).rewind(run_id),
        )
        self.collectors = CollectorWriter(fence)
        self.matches = MatchWriter(fence)
        self.metrics = MetricWriter(fence)
        self.parameters = ParameterWriter(fence)
        self.profiles = ProfileWriter(fence)
        self.simulators = SimulatorWriter(fence)

    def demonstrations(self) -> list[DemonstrationRef]:
        """Return the demonstrations that the run's configuration names. Not fenced: they never change."""
        with self._fence.database.read() as session:
            return [demonstration_ref(each) for each in DemonstrationRepository(session).of_run(self._claim.run_id)]

    def initial_checkpoints(self) -> list[CheckpointRef]:
        """Return the checkpoints that behaviors begin with. Not fenced: which they are never changes."""
        with self._fence.database.read() as session:
            return InitialCheckpoints(session).of_run(self._claim.run_id)

    def heartbeat(self, lease_seconds: float, step: int, time_spent: TimeSpent | None = None) -> Renewal:
        """Renew the lease from now on the database's clock, note the progress, and return what users want.

        This is also the sign of life of the slot. Raises RunNotFound, too.
        """
        run_id, attempt = self._claim.run_id, self._claim.attempt
        show = time.monotonic() >= self._show_at
        with self._fence.database.write(once=not show) as session:
            if show:
                lock_run(session, run_id)  # first, as in all writes of the run and its lease
            leases = LeaseRepository(session)
            renewal = leases.renew(run_id, attempt, lease_seconds, step, time_spent)
            if show and renewal is not None:
                leases.show(run_id, attempt)
        if renewal is None:
            self._fence.check()
            raise LeaseLost(run_id, attempt)
        if show:
            self._show_at = time.monotonic() + SHOW_SECONDS
        return renewal

    def rewind_metrics(self) -> None:
        """Set the run's newest metrics back to what this attempt does not supersede, before it appends to them.

        The history is read for that, so that it does not belong into the claim, for which others wait.
        """
        with self._fence.write() as (session, run):
            MetricRepository(session).rewind(run.id)

    def listening(self, endpoints: Sequence[Mapping[str, Any]]) -> None:
        """Publish the endpoints of the collectors: `{"address": "host:port", "index": 0}` each."""
        with self._fence.write() as (session, _):
            self._fence.set(session, endpoints=[dict(endpoint) for endpoint in endpoints])
            lists = {"Simulators": [], "Edge collectors": []}  # type: dict[str, list[str]]
            for endpoint in endpoints:
                lists["Edge collectors" if endpoint.get("edge") else "Simulators"].append(str(endpoint["address"]))
            sentences = [f"{who} can connect: {', '.join(where)}." for who, where in lists.items() if where]
            self._fence.record(session, Note("trainer_listening", " ".join(sentences)))

    def move(self, to: RunState, *, reason: StopReason | None = None, detail: str | None = None) -> None:
        """Move the run. Moving it to its present state changes nothing; a state without a lease ends the attempt.

        `reason` says why a run ended or pauses; without one SUCCEEDED means `completed` and CANCELLED `user`. An intent
        that a user expressed while the run paused still holds: to pause makes `user` the reason, to stop or cancel ends
        the run. Raises IllegalTransition.
        """
        if reason is None:
            reason = {RunState.SUCCEEDED: StopReason.COMPLETED, RunState.CANCELLED: StopReason.USER}.get(to)
        if to is RunState.FAILED and reason is None:
            raise ValueError("a run never fails without a reason")
        with self._fence.write() as (session, run):
            if run.state == to:
                return
            if to not in EVENT_OF:
                raise IllegalTransition(run.id, run.state, to)  # no transition leads there
            level = "error" if to is RunState.FAILED else "info"
            intent = run.intent
            if to is RunState.PAUSED and intent == Intent.PAUSE:
                reason = StopReason.USER
            message = detail or f"The run is {to}" + (f" ({reason})." if reason else ".")
            move(session, run, to, Note(EVENT_OF[to], message, level), reason=reason, detail=detail)
            if to not in LEASED:
                outcome = {RunState.PAUSED: "paused", RunState.RECOVERING: "released"}.get(to, str(reason))
                end_attempt(session, run, outcome, detail)
            if to is RunState.PAUSED or to in TERMINAL:
                CheckpointRequestRepository(session).settle(run.id, to)
            if to is RunState.PAUSED:
                apply_intent(session, run, intent)

    def event(self, type: str, message: str, *, level: str = "info", data: Mapping[str, Any] | None = None) -> None:  # noqa: A002
        """Append an event to the run."""
        with self._fence.tell(Note(type, message, level, data or {})):
            pass

    def self_play(self, learning_team: int, elo: Mapping[str, float]) -> None:
        """Record the learning team of self-play, and the rating of each behavior's learning policy."""
        values = {"self_play": {"learning_team": learning_team, "elo": dict(elo)}, "stored_updated_at": now()}
        with self._fence.write() as (session, run):
            session.execute(update(Run).where(Run.id == run.id).values(**values), execution_options=UNTRACKED)

    def log(self, name: str, path: str, size: int) -> None:
        """Enter a log file of this attempt in the artifact store, or its new size. Allowed after the end, too."""
        with self._fence.database.write() as session:
            run = lock_run(session, self._claim.run_id)
            if session.get(Attempt, (run.id, self._claim.attempt)) is None:
                raise LeaseLost(run.id, self._claim.attempt)
            row = Log(run_id=run.id, attempt=self._claim.attempt, name=name, path=path, size=size, updated_at=now())
            session.merge(row)

    def release(self, outcome: str, detail: str, *, counts: bool | None = None) -> None:
        """End the attempt and leave the run to another worker, or FAILED when the restart budget is spent.

        `counts` says whether this restart is charged: by default all are but `released`, a worker's orderly shutdown.
        """
        charged = outcome != "released" if counts is None else counts
        with self._fence.write() as (session, run):
            end_without_result(session, run, outcome, detail, self._restart_budget, counts=charged)


class _Candidate(NamedTuple):
    """A waiting run, locked, with what its next attempt begins with."""

    run: Run
    since: float
    """Since when it waits, on the database's clock."""
    resume: CheckpointRef | None
    amendments: tuple[AmendmentRef, ...]


def _candidate(session: Session, head: Waiting) -> _Candidate | None:
    """Lock the oldest free run of a head's group, and read what its next attempt needs; None if none is free."""
    taken = WaitingRuns(session).take(head)
    if taken is None:
        return None
    run, since = taken
    newest = CheckpointRepository(session).newest(run.id)
    amendments = AmendmentRepository(session).refs(run.id)
    return _Candidate(run, since, None if newest is None else ref(newest), amendments)


def _begin(
    session: Session,
    candidate: _Candidate,
    worker_id: str,
    lease_seconds: float,
    fingerprint: Mapping[str, Any] | None,
    clock: float,
) -> Claim:
    """Open the next attempt of a locked run. None of the statements returns anything: they go with the COMMIT."""
    run, since, resume, amendments = candidate
    number = run.attempt + 1
    recovers = run.state == RunState.RECOVERING
    step = resume.step if resume else 0
    message = f"Worker {worker_id} took the run" + (f" and resumes it at step {step}." if resume else ".")
    data = {"worker_id": worker_id, "resumed_from": resume.id if resume else None, "step": step}
    move(
        session,
        run,
        RunState.STARTING,
        Note(EVENT_OF[RunState.STARTING], message, data=data),
        attempt=number,
        locked=True,
        stored_step=step,
    )
    session.execute(
        insert(Attempt).values(
            run_id=run.id,
            number=number,
            worker_id=worker_id,
            lease_expires_at=now() + SHOWN_LEASE_SECONDS,
            heartbeat_at=now(),
            step=step,
            resumed_from=resume.id if resume else None,
            resume_step=step,
            fingerprint=None if fingerprint is None else storable_json(fingerprint),
            started_at=now(),
        )
    )
    LeaseRepository(session).grant(run.id, number, worker_id, lease_seconds, step)
    working = {"run_id": run.id, "last_claim_at": now(), "stored_heartbeat_at": now()}
    session.execute(update(Worker).where(Worker.id == worker_id).values(working), execution_options=UNTRACKED)
    kind, waited = RunKind(run.kind), max(0.0, clock - since)
    return Claim(run.id, number, kind, run.name, run.config, run.seed, resume, worker_id, amendments, recovers, waited)
