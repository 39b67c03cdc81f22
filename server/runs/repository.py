"""Runs in the database: reads for the API, inserts, and what users ask of a run.

The worker's side (`RunQueue`, `AttemptLedger`) lies in `server.runs.attempts.repository` and is offered here too, so
that one import gives all that concerns runs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Select, delete, exists, func, not_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, defer

from server.checkpoints.refs import CheckpointRef, NewCheckpoint
from server.kit.db.clock import now
from server.kit.db.ids import new_id
from server.kit.db.keyset import Columns, compare, opaque, select_page
from server.kit.db.projects import project_of
from server.kit.errors import LogNotFound, RunNotFound, TooManyTags
from server.kit.listing import Condition, ListQuery, Operator, Order, Page
from server.metrics.listed import ListedMetric
from server.metrics.points import MetricPoint
from server.metrics.repository import values_by_run
from server.runs.attempts.claim import Claim
from server.runs.attempts.repository import AttemptLedger, RunQueue
from server.runs.events.repository import EventRepository, Note, lock_run, move, record
from server.runs.leases.repository import LeaseRepository
from server.runs.models import BEHIND, Attempt, Log, Run, RunTag
from server.runs.scheduling.demand import Demand
from server.runs.states import Intent, RunKind, RunState

__all__ = [
    "AttemptLedger",
    "CheckpointRef",
    "Claim",
    "EventRepository",
    "Intent",
    "LeaseRepository",
    "MetricPoint",
    "NewCheckpoint",
    "RunQueue",
    "RunRepository",
]

NEWEST_FIRST = ListQuery(Order("created_at"))
TAG: Columns = {"tag": RunTag.tag}
METRIC = "metric"
"""Order of a list of runs by a metric."""
MAX_TAGS = 50
"""Of one run."""
FEW = 4000
"""Up to so many hits, a condition leads the query that lists runs."""


class RunRepository:
    """Runs. Reads for everyone; the writes are building blocks of `server.runs.service`."""

    COLUMNS: ClassVar[Columns] = {
        "created_at": Run.created_at,
        "updated_at": Run.updated_at,
        "finished_at": Run.finished_at,
        "name": Run.name,
        "state": Run.state,
        "kind": Run.kind,
        "step": Run.step,
        "stop_reason": Run.stop_reason,
        "priority": Run.priority,
    }
    """What lists can be filtered and sorted by, besides `tag`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, run: str) -> Run:
        """Return the run with this id, else the newest one with this name. Raises RunNotFound."""
        found = self._session.get(Run, run)
        if found is not None:
            return found
        by_name = select(Run).where(Run.name == run).order_by(Run.created_at.desc(), Run.id.desc()).limit(1)
        found = self._session.scalars(by_name).one_or_none()
        if found is None:
            raise RunNotFound(run)
        return found

    def id_of(self, run: str) -> str:
        """Return the id of the run with this id, else of the newest one with this name. Raises RunNotFound."""
        found = self._session.scalar(select(Run.id).where(Run.id == run))
        if found is None:
            by_name = select(Run.id).where(Run.name == run).order_by(Run.created_at.desc(), Run.id.desc()).limit(1)
            found = self._session.scalar(by_name)
        if found is None:
            raise RunNotFound(run)
        return found

    def list(self, query: ListQuery = NEWEST_FIRST, metric: ListedMetric | None = None) -> Page[Run]:
        """Return a page of runs without `BEHIND` (touching `config` of one of them raises).

        Fields: those of `COLUMNS`, and `tag` with = and !=. A text that ends in `*` matches a prefix. Sorted by
        `finished_at`, runs that have not finished are left out; sorted by METRIC, which stands for `metric`, those
        that have no such number.
        """
        statement = select(Run).options(*(defer(column, raiseload=True) for column in BEHIND))
        known: dict[str, ColumnElement[Any] | InstrumentedAttribute[Any]] = dict(self.COLUMNS)
        if metric is not None:
            of_run = values_by_run(metric)
            statement = statement.join(of_run, of_run.c.run_id == Run.id)
            known[METRIC] = of_run.c.value
        if query.order.field == "finished_at":
            statement = statement.where(Run.finished_at.is_not(None))
        rare = self._rarest(query)
        indexed = {query.order.field, "state"}
        if rare is not None:
            statement = statement.where(Run.id.in_(rare))
            indexed = set()
        columns = {field: column if field in indexed else opaque(column) for field, column in known.items()}
        return select_page(self._session, statement, query, columns, Run.id, _tagged)

    def _rarest(self, query: ListQuery) -> Select[str] | None:
        """Select the ids that the rarest condition leaves, if they are few; None when every condition is common.

        SQLite keeps no statistics of values. Left alone it fetches and sorts half the table for a common value, or
        walks all of it for a rare one. So the hits of each condition are counted on its own index first, up to FEW: a
        rare one leads the query; if all are common, a walk in the list's order meets a page of hits soon.
        """
        best, fewest = None, FEW + 1
        for hits in self._hits(query):
            count = self._session.scalar(select(func.count()).select_from(hits.limit(fewest).subquery())) or 0
            if count < fewest:
                best, fewest = hits, count
        return best

    def _hits(self, query: ListQuery) -> Iterator[Select[str]]:
        """Select the ids that each condition leaves by itself: those with an index of their own, and the project."""
        project = project_of(self._session)
        if project is not None:
            yield select(Run.id).where(Run.project == project)
        for condition in query.conditions:
            if condition.operator is Operator.NE or condition.field in {"state", "priority", query.order.field}:
                continue
            hits = select(RunTag.run_id if condition.field == "tag" else Run.id)
            yield hits.where(compare({**self.COLUMNS, **TAG}, condition))

    def count(self, state: RunState | None = None) -> int:
        """Return how many runs there are, or are in a state."""
        query = select(func.count()).select_from(Run)
        return self._session.scalar(query if state is None else query.where(Run.state == state)) or 0

    def attempts(self, run_id: str) -> Sequence[Attempt]:
        """Return a run's attempts, oldest first."""
        return self._session.scalars(select(Attempt).where(Attempt.run_id == run_id).order_by(Attempt.epoch)).all()

    def logs(self, run_id: str, epoch: int | None = None) -> Sequence[Log]:
        """Return the log files of a run, or of one attempt, by attempt and name."""
        query = select(Log).where(Log.run_id == run_id).order_by(Log.epoch, Log.name)
        return self._session.scalars(query if epoch is None else query.where(Log.epoch == epoch)).all()

    def log(self, run_id: str, epoch: int, name: str) -> Log:
        """Return one log file. Raises LogNotFound."""
        log = self._session.get(Log, (run_id, epoch, name))
        if log is None:
            raise LogNotFound(run_id, epoch, name)
        return log

    def insert(
        self,
        config: Mapping[str, Any],
        *,
        seed: int,
        name: str | None,
        tags: Iterable[str],
        priority: int,
        owner: str,
        token_id: str,
        kind: RunKind,
        config_name: str | None,
        config_version: int | None,
    ) -> Run:
        """Insert a run that waits for a worker, with its first event. A run without a name is called like its id."""
        run_id = new_id("run")
        unique_tags = sorted(set(tags))
        run = Run(
            id=run_id,
            kind=kind,
            name=name or run_id,
            tags=unique_tags,
            state=RunState.QUEUED,
            config=dict(config),
            config_name=config_name,
            config_version=config_version,
            seed=seed,
            priority=priority,
            owner=owner,
            token_id=token_id,
            demand=Demand.of(config).text,
            created_at=now(),
            queued_at=now(),
            updated_at=now(),
        )
        self._session.add(run)
        self._session.flush()
        self._session.add_all(RunTag(tag=tag, run_id=run_id) for tag in unique_tags)
        data = {"name": run.name, "kind": kind, "priority": priority, "tags": unique_tags}
        record(self._session, run_id, Note("run_created", "The run was created and waits for a worker.", data=data))
        self._session.refresh(run)
        return run

    def lock(self, run: str) -> Run:
        """Return a run (id or name) that nobody else changes until the commit. Raises RunNotFound."""
        return lock_run(self._session, self.get(run).id)

    def label(self, run: Run, *, name: str | None, add: Collection[str], remove: Collection[str]) -> None:
        """Give a locked run another name, and add and remove tags. What it has already changes nothing.

        Raises TooManyTags.
        """
        if name is not None and name != run.name:
            note = Note("run_renamed", f"The run is called {name} now.", data={"from": run.name, "to": name})
            self.annotate(run, note, name=name)
        tags = sorted({*run.tags, *add} - {*remove})
        if len(tags) > MAX_TAGS:
            raise TooManyTags(run.id, len(tags), MAX_TAGS)
        if tags != sorted(run.tags):
            added, removed = sorted({*tags} - {*run.tags}), sorted({*run.tags} - {*tags})
            self._session.execute(delete(RunTag).where(RunTag.run_id == run.id, RunTag.tag.in_(removed)))
            self._session.add_all(RunTag(tag=tag, run_id=run.id) for tag in added)
            words = [f"added {', '.join(added)}"] if added else []
            words += [f"removed {', '.join(removed)}"] if removed else []
            note = Note("run_tagged", f"Tags: {'; '.join(words)}.", data={"added": added, "removed": removed})
            self.annotate(run, note, tags=tags)

    def move(self, run: Run, to: RunState, note: Note, **columns: Any) -> Run:
        """Move a locked run and record the event. Raises IllegalTransition."""
        move(self._session, run, to, note, **columns)
        return run

    def intend(self, run: Run, intent: Intent, note: Note) -> Run:
        """Tell the supervisor of a locked run what is wanted; it learns so with its next heartbeat."""
        return self.annotate(run, note, intent=intent)

    def annotate(self, run: Run, note: Note, **columns: Any) -> Run:
        """Record an event of a locked run, with changes of its columns that are no move."""
        record(self._session, run.id, note, epoch=run.epoch, **columns)
        self._session.refresh(run)
        return run


def _tagged(condition: Condition) -> ColumnElement[bool] | None:
    """Translate a condition on `tag`: the run has a tag that fits (=), or none that does (!=)."""
    if condition.field != "tag":
        return None
    fits = compare(TAG, Condition("tag", Operator.EQ, condition.value))
    tagged = exists().where(RunTag.run_id == Run.id, fits)
    return tagged if condition.operator is Operator.EQ else not_(tagged)
