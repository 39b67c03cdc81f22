"""Waiting runs in the database: the first run of each group, counts of running ones, and reasons for waiting."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Double,
    Integer,
    Select,
    String,
    bindparam,
    case,
    cast,
    func,
    literal,
    null,
    select,
    text,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.orm import aliased

from server.kit.db.clock import later, now
from server.kit.db.once import UNREAD
from server.kit.db.repository import Repository
from server.runs.events.repository import Note, record
from server.runs.models import CLAIMABLE_SQL, LEASED_SQL, WAITING_SQL, Attempt, Run
from server.runs.scheduling.order import Account, InTraining, Obstacle, Waiting
from server.runs.scheduling.queue import WaitingGroup

CLAIM_LOCK = 0x6C756475_73000001
"""PostgreSQL's advisory lock of claims ("ludus", 1)."""
IDLE_SECONDS = 5
"""A claim whose worker freezes in the middle is rolled back by PostgreSQL after so long."""
_LOCK = select(
    func.set_config("idle_in_transaction_session_timeout", f"{IDLE_SECONDS}s", True),
    func.pg_advisory_xact_lock(CLAIM_LOCK),
)


class OldestRun(NamedTuple):
    """A run that waits, for those who wake workers."""

    run_id: str
    demand: str
    waited: float
    """Seconds for which it has waited."""


class Look(NamedTuple):
    """The queue at one moment, as a slot sees it that wants a run."""

    heads: Sequence[Waiting]
    """`WaitingRuns.heads`; then the first of those that are ready, once more."""
    running: InTraining
    clock: float
    """On the database's clock."""
    barred: bool
    """Whether the slot may take no run."""


class WaitingRuns(Repository):
    """Reads and marks runs that wait for a worker. Belongs to its caller's transaction."""

    def lock_queue(self) -> None:
        """Exclude other claims until the commit: two claims that count at once would both keep within a quota.

        SQLite admits one writer at a time anyway.
        """
        if self._session.get_bind().dialect.name == "postgresql":
            self._session.execute(_LOCK, execution_options={UNREAD: True})

    def look(self, statement: CompoundSelect[Any], worker_id: str) -> Look:
        """Return all that a slot needs to know to choose a run: `statement` is that of `look_at`."""
        heads, running, clock, barred = [], {}, 0.0, False
        for kind, run_id, project, token_id, owner, demand, priority, time, count in self._session.execute(
            statement, {"worker_id": worker_id}
        ):
            account = Account(project, token_id, owner)
            if kind == _WAITS:
                heads.append(Waiting(run_id, account, demand, priority, time or 0, bool(count)))
            elif kind == _TRAINS:
                running[account] = count
            else:
                clock, barred = time, bool(count)
        return Look(heads, InTraining(running), clock, barred)

    def heads(self) -> list[Waiting]:
        """Return, for each account, demand and priority, the run that has waited longest.

        Walks from group to group in the index `ix_runs_share` (a "loose index scan"): the cost is that of the groups,
        however many runs each of them has.
        """
        return [
            Waiting(run_id, Account(*account), demand, priority, queued_at or 0)
            for run_id, *account, demand, priority, queued_at in self._session.execute(_HEADS)
        ]

    def ready(self) -> list[Waiting]:
        """Return all waiting runs that are ready to train, the one that has waited longest first."""
        return [
            Waiting(run_id, Account(*account), demand, priority, queued_at or 0, ready=True)
            for run_id, *account, demand, priority, queued_at in self._session.execute(_READY)
        ]

    def demands(self) -> Sequence[tuple[Account, str]]:
        """Return the demands of waiting runs, by project and token: quotas limit nothing by the owner."""
        query = select(Run.project, Run.token_id, Run.demand).where(text(WAITING_SQL)).distinct()
        return [(Account(project, token_id, ""), demand) for project, token_id, demand in self._session.execute(query)]

    def oldest(self, groups: Iterable[tuple[Account, str]], limit: int) -> Sequence[OldestRun]:
        """Return the waiting runs of highest priority, the oldest first, of some of the groups of `demands`.

        At most `limit` of each demand: runs that others serve must not hide those for which a slot is idle.
        """
        keys = [(account.project, account.token_id, demand) for account, demand in groups]
        first = (Run.priority.desc(), Run.queued_at)
        place = func.row_number().over(partition_by=Run.demand, order_by=first).label("place")
        waits = (now() - func.coalesce(Run.queued_at, now())).label("waited")
        ranked = (
            select(Run.id, Run.demand, waits, Run.priority, Run.queued_at, place)
            .where(text(CLAIMABLE_SQL), tuple_(Run.project, Run.token_id, Run.demand).in_(keys))
            .subquery()
            .c
        )
        query = select(ranked.id, ranked.demand, ranked.waited).where(ranked.place <= limit)
        rows = self._session.execute(query.order_by(ranked.priority.desc(), ranked.queued_at))
        return [OldestRun(*row) for row in rows]

    def running(self) -> InTraining:
        """Return how many runs of each account a worker holds."""
        return InTraining({Account(*account): count for *account, count in self._session.execute(_RUNNING)})

    def groups(self) -> list[WaitingGroup]:
        """Return how many runs of each account and demand wait, and since when."""
        query = select(*_ACCOUNT, Run.demand, func.count(), func.min(Run.queued_at)).where(text(WAITING_SQL))
        rows = self._session.execute(query.group_by(*_ACCOUNT, Run.demand))
        return [WaitingGroup(Account(*account), demand, runs, since or 0) for *account, demand, runs, since in rows]

    def lock(self, run_id: str) -> Run | None:
        """Return a waiting run, locked until the commit; None if it no longer waits, or is locked by another."""
        return self._locked(select(Run).where(Run.id == run_id, text(CLAIMABLE_SQL)), skip_locked=True)

    def uninformed(
        self, account: Account, demand: str, why: Obstacle, *, since_seconds: float, limit: int = 100
    ) -> Sequence[str]:
        """Return runs of an account with a demand that do not say yet that they wait for this.

        Only those that have waited for `since_seconds`: workers may be just starting.
        """
        wrong = Run.waits_for.is_(None) | (Run.waits_for != why.sentence)
        same = (column == value for column, value in zip(_ACCOUNT, account, strict=True))
        query = select(Run.id).where(text(WAITING_SQL), *same, Run.demand == demand, wrong)
        return self._session.scalars(query.where(Run.queued_at < now() - since_seconds).limit(limit)).all()

    def informed(self, limit: int = 1000) -> Sequence[tuple[str, Account, str]]:
        """Return id, account and demand of runs that say what they wait for, beside their turn."""
        query = select(Run.id, *_ACCOUNT, Run.demand).where(text(WAITING_SQL), Run.waits_for.is_not(None))
        rows = self._session.execute(query.limit(limit))
        return [(run_id, Account(*account), demand) for run_id, *account, demand in rows]

    def inform(self, run_id: str, why: Obstacle | None) -> None:
        """Record what a run waits for, with an event the first time. One that waits no longer stays as it is."""
        run = self.lock(run_id)
        if run is None:
            return
        if why is not None and run.waits_for is None:
            data = {"demand": run.demand, "owner": run.owner, "token_id": run.token_id or None}
            record(self._session, run_id, Note(why.event, why.sentence, why.level, data))
        values = {"waits_for": None if why is None else why.sentence}
        self._session.execute(update(Run).where(Run.id == run_id).values(values))


_ACCOUNT = (Run.project, Run.token_id, Run.owner)
_GROUP = (*_ACCOUNT, Run.demand, Run.priority)
_IS_READY = Run.awaited_until > select(now()).scalar_subquery()  # computed once: then the index is asked


def _head(*conditions: ColumnElement[bool]) -> Select[str]:
    """Select the first of the waiting runs, in the order of the index."""
    query = select(Run.id).where(text(f"runs.{WAITING_SQL}"), *conditions)
    return query.order_by(*_GROUP, Run.queued_at, Run.id).limit(1)


def _heads() -> Select[Any]:
    heads = select(_head().scalar_subquery().label("id")).cte("heads", recursive=True)
    former = aliased(Run)
    # One comparison of all columns would say the same, but both databases would walk all of an account's runs.
    # So the columns are compared one by one, the last one first: the next group differs from this one in as late a
    # column as there is one.
    following_groups = [
        _head(
            *(column == getattr(former, column.key) for column in _GROUP[:place]),
            _GROUP[place] > getattr(former, _GROUP[place].key),
        )
        for place in reversed(range(len(_GROUP)))
    ]
    following = func.coalesce(*(query.correlate(former).scalar_subquery() for query in following_groups))
    heads = heads.union_all(select(following).join_from(heads, former, former.id == heads.c.id))
    columns: Sequence[ColumnElement[Any]] = (Run.id, *_GROUP, Run.queued_at)  # type: ignore[assignment]
    return select(*columns).join_from(heads, Run, Run.id == heads.c.id)


# SQLAlchemy takes longer to build them than the databases to answer them.
_HEADS = _heads()
_READY = select(Run.id, *_GROUP, Run.queued_at).where(text(f"runs.{WAITING_SQL}"), _IS_READY).order_by(Run.queued_at)
_RUNNING = select(*_ACCOUNT, func.count()).where(text(LEASED_SQL)).group_by(*_ACCOUNT)
_WAITS, _TRAINS, _MOMENT = range(3)
"""Kinds of rows of `look_at`."""


def look_at(barred: ColumnElement[bool]) -> CompoundSelect[Any]:
    """Build the statement of `WaitingRuns.look`; `barred` says whether the slot `:worker_id` may take no run.

    One statement in place of four: slots claim one after the other, and a claim takes as long as its messages.
    """
    no_text, no_number, no_count = cast(null(), String), cast(null(), Integer), cast(null(), BigInteger)
    no_time = cast(null(), Double)
    place = func.row_number().over(partition_by=_GROUP, order_by=(Run.queued_at, Run.id)).label("place")
    ready = _READY.order_by(None).add_columns(place).subquery().c
    columns = [column for column in ready if column is not ready.place]
    return union_all(
        _HEADS.with_only_columns(literal(_WAITS), Run.id, *_GROUP, Run.queued_at, no_count),
        select(literal(_WAITS), *columns, cast(1, BigInteger)).where(ready.place == 1),
        _RUNNING.with_only_columns(literal(_TRAINS), no_text, *_ACCOUNT, no_text, no_number, no_time, func.count()),
        select(literal(_MOMENT), *[no_text] * 5, no_number, now(), case((barred, 1), else_=0)),
    )


def first_of_group(*, ready: bool) -> Select[Run]:
    """Build the statement for the oldest run of a group that no other transaction has locked; it is locked until the
    commit. `ready`: of those that are ready to train. The parameters are those of `Waiting.group`.
    """
    same = (column == bindparam(column.key) for column in _GROUP)
    query = select(Run).where(text(f"runs.{WAITING_SQL}"), *same)
    if ready:
        query = query.where(_IS_READY)
    return query.order_by(Run.queued_at, Run.id).limit(1).with_for_update(of=Run, skip_locked=True)


_LAST_BEAT = select(Attempt.heartbeat_at).where(Attempt.run_id == Run.id, Attempt.number == Run.attempt)
SINCE = later(func.coalesce(Run.queued_at, now()), func.coalesce(_LAST_BEAT.scalar_subquery(), 0.0))
"""Since when a run waits: since it was queued, or since the last heartbeat of an attempt after that."""
