"""The queue that hands runs to workers, and a claim: the data that a worker gets with a run."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Row, Select, bindparam, exists, insert, select, update
from sqlalchemy.orm import Session, aliased, load_only

from ludus.schemas.states import RunKind, RunState
from server.checkpoints.models import Checkpoint
from server.checkpoints.refs import CheckpointRef
from server.checkpoints.repository import newest_of, ref
from server.kit.db.clock import now
from server.kit.db.database import Database
from server.kit.db.texts import storable_json
from server.kit.scheduling import SchedulingSettings
from server.kit.states import EVENT_OF
from server.lifecycle.leases.repository import LeaseRepository, is_lent
from server.runs.amendments import Amendment, AmendmentRepository
from server.runs.events.repository import UNTRACKED, Note, move
from server.runs.models import Attempt, Run
from server.runs.refs import AmendmentRef
from server.runs.scheduling.demand import Demand, Offer, Slot, leaves
from server.runs.scheduling.order import Waiting, in_order
from server.runs.scheduling.repository import SINCE, Look, WaitingRuns, first_of_group, look_at
from server.workers.models import Worker
from server.workers.repository import WorkerRepository, is_cordoned

DEFAULT_RESTART_BUDGET = 3
"""Restarts without progress before a run counts as FAILED, where the settings say nothing else."""


@dataclass(frozen=True)
class Claim:
    """One attempt at a run, held by one worker under a lease."""

    run_id: str
    attempt: int
    """Fencing number: greater than that of every earlier attempt."""
    kind: RunKind
    name: str
    config: Mapping[str, Any]
    """Resolved configuration, with all amendments."""
    seed: int
    resume: CheckpointRef | None
    """Newest good checkpoint, None at the beginning."""
    worker_id: str
    amendments: tuple[AmendmentRef, ...] = ()
    """Changes of the configuration up to now; a checkpoint stores how many of them it includes."""
    recovers: bool = False
    """Whether the run was RECOVERING: an earlier attempt was interrupted."""
    waited_seconds: float = 0.0
    """How long the run has waited for this claim, on the database's clock: since it was queued, or since the last
    heartbeat of the attempt that was interrupted."""


_LOOK = look_at(is_cordoned(bindparam("worker_id")))


def _take(*, ready: bool) -> Select[Run, float, bool, Checkpoint | None]:
    """Build the statement that locks the oldest run of a group and returns what its next attempt begins with.

    The race: a user changes the configuration of the run before it is locked, but after the statement began. Then the
    new configuration is returned without the amendment, which the supervisor hears of with its first heartbeat.
    """
    former = aliased(Checkpoint)
    newest = newest_of(Run.id, former).with_only_columns(former.id).correlate(Run).scalar_subquery()
    return (
        first_of_group(ready=ready)
        .add_columns(SINCE, exists().where(Amendment.run_id == Run.id), Checkpoint)
        .outerjoin(Checkpoint, Checkpoint.id == newest)
        .options(load_only(Run.id, Run.kind, Run.name, Run.config, Run.seed, Run.state, Run.attempt, Run.event_seq))
        .options(load_only(Checkpoint.attempt, Checkpoint.step, Checkpoint.steps, Checkpoint.path, Checkpoint.files))
    )


_TAKE, _TAKE_READY = _take(ready=False), _take(ready=True)
_ATTEMPT = insert(Attempt).values(lease_expires_at=now() + bindparam("seconds"), heartbeat_at=now(), started_at=now())
_WORKS = (
    update(Worker)
    .where(Worker.id == bindparam("slot"))
    .values(run_id=bindparam("taken"), last_claim_at=now(), stored_heartbeat_at=now())
)
"""Made once: to put them together took twice as long as all else that a slot does for a claim."""


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
        self._reserved: Mapping[str, float] = {}
        """Waiting runs that the slot leaves to one that fits them better, and since when."""
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
        (`worker.host.gpus`) is kept with the attempt.
        The race: many workers are woken for one run, and users cancel it meanwhile. Claims happen one after the other,
        so that quotas hold and the last idle slot with GPUs sees that it is; a run that another transaction has locked
        is passed over. Raises DatabaseUnavailable if other claims do not end in time.
        """
        self.for_another, offer = None, offer or Offer()
        with self._database.read(once=True) as session:  # most claims find nothing; they need no lock
            look = WaitingRuns(session).look(_LOOK, worker_id)
        if not look.heads:
            return None
        others = self._others(worker_id, lease_seconds) if offer.gpus else ()
        if self._order(look, others, hint, offer):
            with self._database.write(gathers=True) as session:
                runs = WaitingRuns(session)
                runs.lock_queue()
                look = runs.look(_LOOK, worker_id)
                if offer.gpus:
                    others = WorkerRepository(session).others(worker_id, lease_seconds)
                for head in self._order(look, others, hint, offer):
                    statement = _TAKE_READY if head.ready else _TAKE
                    if taken := session.execute(statement, head.group).one_or_none():
                        return _begin(session, taken, look.clock, worker_id, lease_seconds, fingerprint)
        self.for_another = self._another(look, others or self._others(worker_id, lease_seconds))
        return None

    def _others(self, worker_id: str, lease_seconds: float) -> Sequence[Slot]:
        with self._database.read(once=True) as session:
            return WorkerRepository(session).others(worker_id, lease_seconds)

    def _order(self, look: Look, others: Sequence[Slot], hint: str | None, offer: Offer) -> Sequence[Waiting]:
        """Return the heads of the queue that the slot may take now, in order."""
        if look.barred:
            return []
        served = [head for head in look.heads if offer.serves(Demand.parse(head.demand))]
        if offer.gpus:
            clock = self._monotonic()
            better = [head.run_id for head in served if leaves(Demand.parse(head.demand), offer, others)]
            self._reserved = {run_id: self._reserved.get(run_id, clock) for run_id in better}
            reserved = {run for run, since in self._reserved.items() if clock - since < self._policy.best_fit_seconds}
            served = [head for head in served if head.run_id not in reserved]
        return in_order(served, look.running, offer, self._policy, now=look.clock, hint=hint)

    def _another(self, look: Look, others: Sequence[Slot]) -> AnotherSlot | None:
        """Return a run, of the heads of the queue, that another idle slot takes: the one that fits it best."""
        idle = [slot.offer for slot in others if slot.idle]
        for offer in sorted(idle, key=lambda offer: (offer.gpus, len(offer.labels))):
            if order := in_order(look.heads, look.running, offer, self._policy, now=look.clock):
                return AnotherSlot(order[0].run_id, offer.kind)
        return None

    def has_lent(self, claim: Claim) -> bool:
        """Return whether the run of an attempt that has ended waits again because its slot is lent."""
        with self._database.read(once=True) as session:
            waits = (Run.id == claim.run_id, Run.attempt == claim.attempt, Run.state == RunState.QUEUED)
            lent = is_lent(claim.run_id, claim.attempt)  # else a user paused it, and resumed it at once
            return session.scalar(select(Run.id).where(*waits, lent)) is not None

    def waiting(self, offer: Offer) -> str | None:
        """Return a run that waits for a worker and that a slot with this offer serves; None if there is none."""
        with self._database.read() as session:
            runs = WaitingRuns(session)
            served = [group for group in runs.demands() if offer.serves(Demand.parse(group[1]))]
            oldest = runs.oldest(served, limit=1) if served else ()
        return oldest[0].run_id if oldest else None


def _begin(
    session: Session,
    taken: Row[Run, float, bool, Checkpoint | None],
    clock: float,
    worker_id: str,
    lease_seconds: float,
    fingerprint: Mapping[str, Any] | None,
) -> Claim:
    """Open the next attempt of a locked run (`_take`). No write returns anything: they go with the COMMIT."""
    run, since, amended, newest = taken
    resume = None if newest is None else ref(newest)
    amendments = AmendmentRepository(session).refs(run.id) if amended else ()
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
    attempt = {
        "run_id": run.id,
        "number": number,
        "worker_id": worker_id,
        "seconds": lease_seconds,
        "step": step,
        "resumed_from": resume.id if resume else None,
        "resume_step": step,
        "fingerprint": None if fingerprint is None else storable_json(fingerprint),
    }
    session.execute(_ATTEMPT, attempt)
    LeaseRepository(session).grant(run.id, number, worker_id, lease_seconds, step)
    session.execute(_WORKS, {"slot": worker_id, "taken": run.id}, execution_options=UNTRACKED)
    kind, waited = RunKind(run.kind), max(0.0, clock - since)
    return Claim(run.id, number, kind, run.name, run.config, run.seed, resume, worker_id, amendments, recovers, waited)
