"""Workers: registered slots, their heartbeats, their present runs, and cordons; the queue by demand."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Double,
    ScalarSelect,
    Select,
    bindparam,
    delete,
    exists,
    func,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.orm import aliased

from server.kit.db.clock import later, now
from server.kit.db.database import Database
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository, upsert
from server.kit.errors import WorkerNotFound
from server.kit.scheduling import SchedulingSettings
from server.runs.models import Lease
from server.runs.scheduling.demand import Demand, Offer, Slot
from server.runs.scheduling.queue import QueuedDemand, queue_by_demand
from server.runs.scheduling.repository import WaitingRuns
from server.workers.models import Cordon, Worker


@dataclass(frozen=True)
class WorkerInfo:
    """The registration of a slot when it starts."""

    id: str
    """`host/pid/start` of the slot's process."""
    host: str
    pid: int
    version: str
    labels: Sequence[str] = ()
    resources: Mapping[str, object] = field(default_factory=dict)


class WorkerRegistry:
    """The writes of a worker about itself. Each call is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, worker: WorkerInfo) -> None:
        """Enter a worker, or enter it again."""
        values = {getattr(Worker, name): value for name, value in asdict(worker).items()}
        values |= {Worker.labels: list(worker.labels), Worker.run_id: None, Worker.stopped_at: None}
        values |= {Worker.started_at: now(), Worker.stored_heartbeat_at: now()}
        values[Worker.kind] = Offer.of(worker.labels, worker.resources).kind
        with self._database.write() as session:
            session.execute(
                upsert(session, Worker).values(values).on_conflict_do_update(index_elements=[Worker.id], set_=values)
            )

    def beat(self, worker_id: str) -> bool:
        """Record the heartbeat of an idle worker. That of a busy one is the renewal of its attempt's lease.

        False where it is not in the list any more: it was silent for too long, or the database is a restored one.
        """
        return self._set(worker_id, stored_heartbeat_at=now())

    def stopped(self, worker_id: str) -> None:
        """Record an orderly shutdown."""
        self._set(worker_id, stored_heartbeat_at=now(), run_id=None, stopped_at=now())

    def _set(self, worker_id: str, **values: object) -> bool:
        with self._database.write(once=True) as session:
            row = session.scalar(update(Worker).where(Worker.id == worker_id).values(**values).returning(Worker.id))
        return row is not None


class WorkerRepository(Repository):
    """Reads workers, and forgets old ones."""

    def get(self, worker_id: str) -> Worker:
        """Return one worker. Raises WorkerNotFound."""
        worker = self._session.get(Worker, worker_id)
        if worker is None:
            raise WorkerNotFound(worker_id)
        return worker

    def alive(self, within_seconds: float) -> Sequence[Worker]:
        """Return the workers that were heard of within so many seconds and have not stopped."""
        heard = Worker.stopped_at.is_(None) & (Worker.heartbeat_at > now() - within_seconds)
        return self._session.scalars(select(Worker).where(heard).order_by(Worker.id)).all()

    def slots(self, within_seconds: float) -> Counter[Slot]:
        """Return the live slots: how many there are that are the same. Reads all of them, and returns a row of each."""
        # In place of a look at leases and cordons for each slot, PostgreSQL hashes both tables once.
        lease = (Lease.run_id == Worker.run_id) & (Lease.worker_id == Worker.id)
        heard = later(Worker.stored_heartbeat_at, func.coalesce(Lease.renewed_at, 0.0))
        since = select(now() - within_seconds).scalar_subquery()
        names = select(Cordon.name)
        live = (
            select(
                Worker.id.label("id"),
                Worker.kind.label("kind"),
                or_(Worker.id.in_(names), Worker.host.in_(names)).label("cordoned"),
                Worker.run_id.is_(None).label("idle"),
            )
            .outerjoin(Lease, lease)
            .where(Worker.stopped_at.is_(None), heard > since)
            .subquery()
            .c
        )
        same = select(func.min(live.id).label("id"), live.cordoned, live.idle, func.count().label("count"))
        kind = same.group_by(live.kind, live.cordoned, live.idle).subquery().c
        query = select(Worker.labels, Worker.resources, kind.cordoned, kind.idle, kind.count)
        rows = self._session.execute(query.join(Worker, Worker.id == kind.id))
        return Counter(
            {
                Slot(Offer.of(labels, resources, cordoned=bool(cordoned)), bool(idle)): count
                for labels, resources, cordoned, idle, count in rows
            }
        )

    def offers(self, within_seconds: float) -> Counter[Offer]:
        """Return what the live slots have, and how many of them have the same."""
        offers = Counter[Offer]()
        for slot, count in self.slots(within_seconds).items():
            offers[slot.offer] += count
        return offers

    def others(self, worker_id: str, within_seconds: float) -> Sequence[Slot]:
        """Return what a slot sees of the others: of each kind an idle one, and a busy one, that are not cordoned.

        Looks kind after kind up in the index `ix_workers_kind` (a "loose index scan"): the cost is that of the kinds,
        and of cordoned slots, however many slots there are.
        """
        rows = self._session.execute(_OTHERS, {"worker_id": worker_id, "seconds": within_seconds})
        return [
            Slot(Offer.of(labels, resources), idle)
            for labels, resources, an_idle_one, a_busy_one in rows
            for idle, slot_id in ((True, an_idle_one), (False, a_busy_one))
            if slot_id is not None
        ]

    def silent(self, since_seconds: float) -> int:
        """Return how many slots fell silent within so many seconds, and none has begun on their host since."""
        newer = aliased(Worker)
        replaced = exists().where(newer.host == Worker.host, newer.started_at > Worker.silent_since)
        lost = select(func.count()).where(Worker.silent_since > now() - since_seconds, not_(replaced))
        return self._session.scalar(lost) or 0

    def named(self, name: str) -> Sequence[Worker]:
        """Return the slots of a host, or the one slot with this id, also those that have stopped."""
        query = select(Worker).where(or_(Worker.host == name, Worker.id == name)).order_by(Worker.id)
        return self._session.scalars(query, execution_options={"populate_existing": True}).all()

    def forget(self, silent_seconds: float, limit: int) -> int:
        """Delete the rows of at most `limit` workers that were not heard of for so long, and their cordons; return how
        many.

        Cordons of hosts stay until they are lifted.
        """
        silent = Worker.heartbeat_at < now() - silent_seconds
        chosen = select(Worker.id).where(silent).limit(limit).correlate(None)
        old = delete(Worker).where(silent, Worker.id.in_(chosen)).returning(Worker.id)
        forgotten = self._session.scalars(old).all()
        for part in parts(forgotten):
            self._session.execute(delete(Cordon).where(Cordon.name.in_(part)))
        return len(forgotten)


def _others() -> Select[Any, Any, Any, Any]:
    listed = Worker.stopped_at.is_(None)
    kinds = select(func.min(Worker.kind).label("kind")).where(listed).cte("kinds", recursive=True)
    following = select(func.min(Worker.kind)).where(listed, Worker.kind > kinds.c.kind).correlate(kinds)
    kinds = kinds.union_all(select(following.scalar_subquery()).where(kinds.c.kind.is_not(None)))
    slot = aliased(Worker)
    # Computed once: then an index can be asked.
    since = select(now() - bindparam("seconds", type_=Double())).scalar_subquery()

    def first(column: Any, *conditions: ColumnElement[bool]) -> ScalarSelect[Any]:
        """Select a column of the first slot of the kind; the order is the index's, which therefore is used."""
        query = select(column).where(slot.kind == kinds.c.kind, slot.stopped_at.is_(None), *conditions)
        return query.order_by(slot.run_id, slot.stored_heartbeat_at).limit(1).correlate(kinds).scalar_subquery()

    free = (slot.id != bindparam("worker_id"), not_(slot.cordoned))
    return select(
        first(slot.labels),
        first(slot.resources),
        first(slot.id, *free, slot.run_id.is_(None), slot.stored_heartbeat_at > since),
        first(slot.id, *free, slot.run_id.is_not(None), slot.heartbeat_at > since),
    ).where(kinds.c.kind.is_not(None))


_OTHERS = _others()
"""Made once: to put it together takes SQLAlchemy longer than the databases to answer it."""


def is_cordoned(worker_id: BindParameter[str]) -> ColumnElement[bool]:
    """Build the condition that a slot, or its host, is cordoned."""
    host = select(Worker.host).where(Worker.id == worker_id).scalar_subquery()
    return exists().where(or_(Cordon.name == worker_id, Cordon.name == host))


class CordonRepository(Repository):
    """Cordons of hosts and slots."""

    def get(self, name: str) -> Cordon | None:
        """Return the cordon of a host or slot; None if it has none of its own."""
        return self._session.get(Cordon, name)

    def add(self, name: str, *, draining: bool) -> None:
        """Cordon a host or slot. A drain stays one when it is cordoned again."""
        cordon = self.get(name)
        if cordon is None:
            self._session.add(Cordon(name=name, draining=draining, created_at=self.clock()))
        else:
            cordon.draining |= draining
        self._session.flush()

    def remove(self, names: Sequence[str]) -> None:
        """Lift cordons."""
        for part in parts(names):
            self._session.execute(delete(Cordon).where(Cordon.name.in_(part)))


class QueueRepository(Repository):
    """Reads the queue. Its session has the rows of all projects."""

    def read(
        self, policy: SchedulingSettings, silent_seconds: float, asked: Demand | None = None
    ) -> list[QueuedDemand]:
        """Return the queue by demand. A worker without a heartbeat for `silent_seconds` does not count."""
        runs = WaitingRuns(self._session)
        slots = WorkerRepository(self._session).slots(silent_seconds)
        return queue_by_demand(runs.groups(), runs.running(), slots, policy, runs.clock(), asked)
