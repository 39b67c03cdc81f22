"""Asks runs without games for their slots while the game of another run waits for one.

Only a run that waits for its first simulator in this attempt is asked: it has learned nothing that is not stored. One
whose games have left keeps its slot for `simulators.grace_seconds`, because they may come back, and it would have to
save a checkpoint and to start again. A run that is asked for its slot keeps its place in the queue. But once it has had
the slot for `CHANCE_SECONDS`, what it had waited before counts for half a step of priority at most: else a run that was
queued hours ago would be the next again.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog
from sqlalchemy import and_, exists, or_, select
from sqlalchemy.orm import Session

from ludus.schemas.states import RunKind, RunState
from server.kit.db.clock import now
from server.kit.db.database import Database
from server.kit.scheduling import SchedulingSettings
from server.kit.states import CLAIMABLE, LEASED, Intent
from server.lifecycle.leases.repository import SLOT_LENT
from server.runs.events.repository import Note, lock_run
from server.runs.models import Attempt, Run
from server.runs.repository import RunRepository
from server.runs.scheduling.demand import Offer
from server.runs.scheduling.lending import Lender, idle_takes, lendings
from server.runs.scheduling.order import Account, Waiting
from server.runs.scheduling.repository import WaitingRuns
from server.simulators.models import Simulator
from server.workers.models import Worker
from server.workers.repository import WorkerRepository

CHANCE_SECONDS: Final = 60.0
"""A game that is started when its run has a slot joins in this time."""
_log = structlog.get_logger(__name__)

_CAME = exists().where(Simulator.run_id == Run.id, Simulator.attempt == Run.attempt)
_WITHOUT_GAME = and_(
    Run.state == RunState.STARTING,
    Run.kind != RunKind.CLONE,
    Run.intent.is_(None),
    Run.awaited_until.is_(None) | (Run.awaited_until < now()),  # it would want the slot back at once
    Attempt.edge_collectors.is_(None),
    ~_CAME,
)
_ASKED = and_(Run.state.in_(LEASED), Run.intent == Intent.RELEASE)
_LENDERS = (
    select(
        *(Run.id, Run.project, Run.token_id, Run.owner, Run.demand, Run.priority, Run.queued_at, Run.intent),
        *(Worker.labels, Worker.resources, Worker.cordoned, Attempt.started_at),
    )
    .join(Attempt, (Attempt.run_id == Run.id) & (Attempt.number == Run.attempt) & Attempt.ended_at.is_(None))
    .join(Worker, Worker.id == Attempt.worker_id)
    .where(or_(_WITHOUT_GAME, _ASKED))
    .order_by(Attempt.started_at)
)
_BORROWER = select(Run.id, Run.project, Run.name, Run.kind).where(Run.state.in_(CLAIMABLE))


class SlotLending:
    """Asks for the slots that are to be lent. It remembers only for how long idle slots have left runs waiting."""

    def __init__(
        self,
        database: Database,
        policy: SchedulingSettings,
        lease_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._policy = policy
        self._lease_seconds = lease_seconds
        self._monotonic = monotonic
        self._left: Mapping[str, float] = {}
        """Runs that wait and were left to an idle slot, and since when."""

    def lend(self) -> int:
        """Ask for the slots that are to be lent now, of the runs that have been without a game for longest; return how
        many were.

        The race: slots claim and are cordoned, and a simulator joins, while it is decided. Claims and cordons are kept
        out; a run that is asked is locked, and looked at again.
        """
        with self._database.read() as session:
            if not self._due(session):
                return 0
        lent = 0
        with self._database.write() as session:
            WaitingRuns(session).lock_queue()
            for lender, ready in self._due(session):
                run = lock_run(session, lender.run.run_id, patient=False)
                borrower = session.execute(_BORROWER.where(Run.id == ready.run_id)).one_or_none()
                still = session.execute(_LENDERS.where(Run.id == lender.run.run_id, _WITHOUT_GAME)).first()
                if run is None or still is None or borrower is None:
                    continue
                name = f"run {borrower.name}" if borrower.project == run.project else "a run of another project"
                why = "which needs no game" if borrower.kind == RunKind.CLONE else "whose game waits"
                data = {"run_id": borrower.id} if borrower.project == run.project else {}
                note = Note(SLOT_LENT, f"Slot lent to {name}, {why}; no game has joined this one yet.", data=data)
                RunRepository(session).annotate(run, note, intent=Intent.RELEASE, queued_at=lender.run.queued_at)
                _log.info("slot_lent", run_id=run.id, to=borrower.id)
                lent += 1
        return lent

    def _due(self, session: Session) -> Sequence[tuple[Lender, Waiting]]:
        runs = WaitingRuns(session)
        ready = runs.ready()
        if not ready:
            self._left = {}
            return []
        clock, lenders = runs.clock(), []
        for run_id, *account, demand, priority, queued, intent, labels, resources, cordoned, began in session.execute(
            _LENDERS
        ):
            longest = math.inf if clock - began < CHANCE_SECONDS else self._policy.aging_seconds / 2
            run = Waiting(run_id, Account(*account), demand, priority, max(queued or 0, clock - longest))
            offer = Offer.of(labels, resources, cordoned=cordoned)
            lenders.append(Lender(run, offer, asked=intent is not None))
        if all(lender.asked for lender in lenders):
            return []
        waiting, running = [*ready, *runs.heads()], runs.running()
        slots = WorkerRepository(session).slots(self._lease_seconds)
        takes, clock_of_process = idle_takes(waiting, slots, running, self._policy, clock), self._monotonic()
        self._left = {run.run_id: self._left.get(run.run_id, clock_of_process) for _, run in takes}
        # An idle slot that does not work takes nothing: a run is left to it for as long as to one that fits it better.
        trusted = [
            take for take in takes if clock_of_process - self._left[take[1].run_id] < self._policy.best_fit_seconds
        ]
        return lendings(waiting, lenders, slots, running, self._policy, clock, trusted)
