"""Asks runs without games for their slots while the game of another run waits for one.

Only a run that waits for its first simulator in this attempt is asked: it has learned nothing that is not stored. One
whose games have left keeps its slot for `simulators.grace_seconds`, because they may come back, and it would have to
save a checkpoint and to start again. A run that is asked for its slot keeps its place in the queue. But once it has had
the slot for `CHANCE_SECONDS`, what it had waited before counts for half a step of priority at most: else a run that was
queued hours ago would be the next again.
"""

import math
from collections.abc import Sequence
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
from server.runs.scheduling.lending import Lender, lendings
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


def lend_slots(database: Database, policy: SchedulingSettings, lease_seconds: float) -> None:
    """Ask for the slots that are to be lent now, of the runs that have been without a game for longest.

    The race: slots claim and are cordoned, and a simulator joins, while it is decided. Claims and cordons are kept out;
    a run that is asked is locked, and looked at again.
    """
    with database.read() as session:
        if not _due(session, policy, lease_seconds):
            return
    with database.write() as session:
        WaitingRuns(session).lock_queue()
        for lender, ready in _due(session, policy, lease_seconds):
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


def _due(session: Session, policy: SchedulingSettings, lease_seconds: float) -> Sequence[tuple[Lender, Waiting]]:
    runs = WaitingRuns(session)
    ready = runs.ready()
    if not ready:
        return []
    clock, lenders = runs.clock(), []
    for run_id, *account, demand, priority, queued, intent, labels, resources, cordoned, began in session.execute(
        _LENDERS
    ):
        longest = math.inf if clock - began < CHANCE_SECONDS else policy.aging_seconds / 2
        run = Waiting(run_id, Account(*account), demand, priority, max(queued or 0, clock - longest))
        offer = Offer.of(labels, resources, cordoned=cordoned)
        lenders.append(Lender(run, offer, asked=intent is not None))
    if all(lender.asked for lender in lenders):
        return []
    slots = WorkerRepository(session).slots(lease_seconds)
    return lendings([*ready, *runs.heads()], lenders, slots, runs.running(), policy, clock)
