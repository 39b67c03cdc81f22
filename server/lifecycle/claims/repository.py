"""The queue that hands runs to workers."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.orm import Session

from ludus.schemas.states import RunKind, RunState
from server.checkpoints.refs import CheckpointRef
from server.checkpoints.repository import CheckpointRepository, ref
from server.kit.db.clock import now
from server.kit.db.database import Database
from server.kit.db.texts import storable_json
from server.kit.errors import DatabaseUnavailable
from server.kit.scheduling import SchedulingSettings
from server.kit.states import EVENT_OF
from server.lifecycle.claims.claim import Claim
from server.lifecycle.leases.repository import SHOWN_LEASE_SECONDS, LeaseRepository, is_lent
from server.runs.amendments.refs import AmendmentRef
from server.runs.amendments.repository import AmendmentRepository
from server.runs.events.repository import UNTRACKED, Note, move
from server.runs.models import Attempt, Run
from server.runs.scheduling.demand import Demand, Offer
from server.runs.scheduling.fit import Slot, leaves
from server.runs.scheduling.order import Waiting, in_order
from server.runs.scheduling.repository import UNITS, Look, WaitingRuns, look_at
from server.workers.models import Worker
from server.workers.repository import WorkerRepository, is_cordoned, is_idle_beside

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds until a slot tries the semaphore again, at most; twice as many after each look."""

_BARRED = is_cordoned(bindparam("worker_id"))
_LOOK = look_at(_BARRED)
_LOOK_BESIDE = look_at(
    _BARRED, is_idle_beside(bindparam("worker_id"), bindparam("kinds", expanding=True), bindparam("lease_seconds"))
)
"""Says also whether another slot of some kinds is idle."""


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
        so that quotas hold; a run that another transaction has locked is passed over, and the one that is chosen stays
        locked until it is taken. Raises DatabaseUnavailable if other claims do not end in time.
        """
        self.for_another = None
        offer = offer or Offer()
        with self._database.read(once=True) as session:  # most claims find nothing; they need no lock
            look = WaitingRuns(session).look(_LOOK, worker_id=worker_id)
        if not look.heads:
            return None
        # Read before the lock: that a slot leaves a run to a better one is a matter of minutes. Whether it is the last
        # idle one with GPUs is not (`_turn`).
        others = self._others(worker_id, lease_seconds) if offer.gpus else ()
        order = self._order(look, others, hint, offer)
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
                        turn = partial(self._turn, worker_id, lease_seconds, others, hint, offer)
                        found = _take(session, order[0], turn, worker_id, lease_seconds, fingerprint)
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

    def _others(self, worker_id: str, lease_seconds: float) -> Sequence[Slot]:
        with self._database.read(once=True) as session:
            return WorkerRepository(session).others(worker_id, lease_seconds)

    def _order(self, look: Look, others: Sequence[Slot], hint: str | None, offer: Offer) -> Sequence[Waiting]:
        """Return the heads of the queue that the slot may take, in order."""
        if look.barred:
            return []
        mine = [one for one in look.heads if offer.serves(Demand.parse(one.demand))]
        if offer.gpus:
            left = self._left_to_others(mine, offer, others)
            mine = [one for one in mine if one.run_id not in left]
        return in_order(mine, look.running, offer, self._policy, now=look.clock, hint=hint)

    def _turn(
        self,
        worker_id: str,
        lease_seconds: float,
        others: Sequence[Slot],
        hint: str | None,
        offer: Offer,
        runs: WaitingRuns,
    ) -> tuple[Look, Sequence[Waiting]]:
        """Look with the lock, in one message; return what is there, and what the slot may take of it, in order.

        The race: several slots with GPUs see each other idle, and claim. With the lock, each looks whether there still
        is another one, or the last of them would take a run that it is to leave to a slot without GPUs.
        """
        kinds = {other.offer.kind for other in others if other.idle and other.offer.gpus}
        if kinds:
            look = runs.look(_LOOK_BESIDE, worker_id=worker_id, kinds=sorted(kinds), lease_seconds=lease_seconds)
        else:
            look = runs.look(_LOOK, worker_id=worker_id)
        if not look.beside:
            others = [other for other in others if not (other.idle and other.offer.gpus)]
        return look, self._order(look, others, hint, offer)

    def _another(self, look: Look, worker_id: str, lease_seconds: float) -> AnotherSlot | None:
        """Return a run, of the heads of the queue, that another idle slot takes: the one that fits it best."""
        if not look.heads:
            return None
        idle = [other.offer for other in self._others(worker_id, lease_seconds) if other.idle]
        for offer in sorted(idle, key=lambda offer: (offer.gpus, len(offer.labels))):
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


def _take(
    session: Session,
    guess: Waiting,
    turn: Callable[[WaitingRuns], tuple[Look, Sequence[Waiting]]],
    worker_id: str,
    lease_seconds: float,
    fingerprint: Mapping[str, Any] | None,
) -> Claim | Look:
    """Claim a run in a transaction with a unit of the semaphore; if there is none, return what was there.

    Claims wait for one another, so that a run of the group of `guess`, whose turn it probably is, is read before the
    lock. If it is its turn with the lock, too, only one message is left; if not, another run is read.
    """
    runs = WaitingRuns(session)
    guessed = _candidate(session, guess)
    runs.lock_queue()
    look, order = turn(runs)
    for one in order:
        candidate = (guessed if one.group == guess.group else None) or _candidate(session, one)
        if candidate is not None:
            return _begin(session, candidate, worker_id, lease_seconds, fingerprint, look.clock)
    return look


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
