"""Runs in the database: queries of the API, inserts, and the building blocks of commands."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, TypeVarTuple

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Subquery,
    delete,
    exists,
    func,
    not_,
    select,
    tuple_,
    union,
    union_all,
    update,
)
from sqlalchemy.orm import defer, load_only
from sqlalchemy.orm.attributes import set_committed_value

from ludus.config.run import RunConfig
from ludus.schemas.states import RunKind, RunState
from server.kit.db.clock import DAY_SECONDS, now
from server.kit.db.ids import new_id
from server.kit.db.keyset import Columns, compare, in_page, last_without, opaque, parts, rarest, select_page
from server.kit.db.projects import project_of
from server.kit.db.repository import Repository
from server.kit.db.texts import JsonObject
from server.kit.errors import Conflict, LogNotFound, Problem, RunEnded, RunNotFound, TooManyTags
from server.kit.listing import Condition, ListQuery, Operator, Order, Page
from server.kit.states import TERMINAL, Intent
from server.runs.diagnosis import TimeSpent
from server.runs.events.repository import Note, lock_run, record
from server.runs.models import BEHIND, BEING_DELETED, Attempt, Lease, Log, Run, RunTag
from server.runs.scheduling.demand import Demand


class RunNotRunning(Conflict, code="run_not_running"):
    """Something was asked of a run that only one that is running does."""

    run_id: str
    state: str
    action: str
    """A verb with its object."""
    hint: str = ""
    details = ("run_id", "state")
    sentence = "Run {run_id} is {state}: only a RUNNING run can {action}. Wait for RUNNING (`?wait=RUNNING`){hint}."


Found = TypeVar("Found")
Values = TypeVarTuple("Values")
NEWEST_FIRST = ListQuery(Order("created_at"))
_MOVING = frozenset({"step", "updated_at"})
"""Fields that heartbeats move: of a run with a lease, they are in the lease."""
_SHOWN = Run.id.not_in(BEING_DELETED)
METRIC = "metric"
"""Order of a list of runs by a metric."""
MAX_TAGS = 50
"""Of one run."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be created."""

    config: RunConfig
    """Resolved; a `seed` of None is drawn when the run is created."""
    name: str | None = None
    tags: Sequence[str] = ()
    priority: int = 0
    owner: str = ""
    """A label; empty: the project."""
    token_id: str = ""
    """The token by which quotas count the run; empty: none."""
    config_name: str | None = None
    """The stored configuration that the run was created from, with its version."""
    config_version: int | None = None
    demonstrations: Sequence[str] = ()
    """Ids of existing demonstrations that the configuration names."""
    checkpoints: Sequence[str] = ()
    """Ids of existing checkpoints that the configuration names."""
    ladder: str | None = None
    """Id of the existing shared ladder that the configuration names."""
    warnings: Sequence[Problem] = ()
    """Warnings about the configuration; they become events."""


class RunRepository(Repository):
    """Runs. Reads for everyone; the writes are building blocks of `server.lifecycle.service`."""

    COLUMNS: ClassVar[Columns] = {
        "state": Run.state,
        "tags": RunTag.tag,
        "name": Run.name,
        "kind": Run.kind,
        "stop_reason": Run.stop_reason,
        "step": Run.step,
        "priority": Run.priority,
        "created_at": Run.created_at,
        "updated_at": Run.updated_at,
        "finished_at": Run.finished_at,
    }
    """Columns by which lists can be filtered and, except for `tags`, sorted."""
    AT_REST: ClassVar[Columns] = {**COLUMNS, "step": Run.stored_step, "updated_at": Run.stored_updated_at}
    """The same of runs without a lease: `step` and `updated_at` have indexes."""

    def get(self, run: str) -> Run:
        """Return the run with this id, else the newest one with this name. Raises RunNotFound."""
        return self._found(select(Run), run)

    def id_of(self, run: str) -> str:
        """Return the id of the run with this id, else of the newest one with this name. Raises RunNotFound."""
        return self._found(select(Run.id), run)

    def ids_of(self, runs: Sequence[str]) -> Sequence[str]:
        """Return the ids of several runs by their ids or names, each once. Raises RunNotFound."""
        ids = {
            run_id
            for part in parts(runs)
            for run_id in self._session.scalars(select(Run.id).where(Run.id.in_(part), _SHOWN))
        }
        return list(dict.fromkeys(run if run in ids else self.id_of(run) for run in runs))

    def without_config(self, run: str) -> Run:
        """Return the same as `get`, without its configuration. Raises RunNotFound."""
        return self._found(select(Run).options(defer(Run.config)), run)

    def with_clock(self, run: str) -> tuple[Run, float]:
        """Return the same as `without_config`, and the database's time. Raises RunNotFound."""
        row, clock = self._row(select(Run, now()).options(defer(Run.config)), run)
        return row, clock

    def ended_before(self, days: float, after: tuple[float, str], limit: int) -> Sequence[tuple[float, str]]:
        """Return end and id of at most `limit` runs that ended so many days ago, in this order, beyond `after`."""
        place = tuple_(Run.finished_at, Run.id)
        query = select(Run.finished_at, Run.id).where(Run.finished_at < now() - days * DAY_SECONDS, place > after)
        rows = self._session.execute(query.where(_SHOWN).order_by(Run.finished_at, Run.id).limit(limit))
        return [(finished_at or 0, run_id) for finished_at, run_id in rows]

    def ids_after(self, run_id: str, limit: int) -> Sequence[str]:
        """Return at most `limit` ids of runs beyond this one, in the order of ids."""
        return self._session.scalars(select(Run.id).where(Run.id > run_id).order_by(Run.id).limit(limit)).all()

    def newest_named(self, name: str) -> str | None:
        """Return the id of the newest run of this name; None where there is none."""
        return self._session.scalar(_newest_of(select(Run.id), name))

    def named(self, run_ids: Collection[str]) -> dict[str, Run]:
        """Return runs by their ids, without `BEHIND`."""
        query = select(Run).where(_SHOWN).options(*_without_behind())
        pages = (self._session.scalars(query.where(Run.id.in_(part))) for part in parts(sorted({*run_ids})))
        return {run.id: run for runs in pages for run in runs}

    def configs(self, run_ids: Sequence[str]) -> dict[str, JsonObject]:
        """Return the resolved configurations of runs by their ids."""
        query = select(Run.id, Run.config).where(_SHOWN)
        pages = (self._session.execute(query.where(Run.id.in_(part))) for part in parts(run_ids))
        return {run_id: config for rows in pages for run_id, config in rows}

    def _found(self, query: Select[Found], run: str) -> Found:
        return self._row(query, run)[0]

    def _row(self, query: Select[*Values], run: str) -> Row[*Values]:
        for named in (query.where(Run.id == run, _SHOWN), _newest_of(query, run)):
            row = self._session.execute(named).one_or_none()
            if row is not None:
                return row
        raise RunNotFound(run)

    def list(
        self, query: ListQuery = NEWEST_FIRST, metric: Subquery | None = None, more: Columns = MappingProxyType({})
    ) -> Page[Run]:
        """Return a page of runs without `BEHIND` (touching `config` of one of them raises).

        Fields: those of `COLUMNS`, `tags` with = and !=, and `more`, which are filters only. A text that ends in `*`
        matches a prefix. METRIC sorts by `metric` (`run_id`, `value`). Runs without the value that sorts come last.
        """
        statement = select(Run).where(_SHOWN).options(*_without_behind())
        columns = {**self.COLUMNS, **more}
        if metric is not None:
            statement = statement.outerjoin(metric, metric.c.run_id == Run.id)
            columns[METRIC] = last_without(metric.c.value, query.order)
        rare = rarest(self._session, self._hits(query))
        indexed = {query.order.field, "state"} if rare is None else set()
        if query.order.field in _MOVING:
            statement = statement.where(Run.id.in_(self._first(query, rare, indexed, more)))
        elif rare is not None:
            statement = statement.where(Run.id.in_(rare))
        return select_page(self._session, statement, query, _but(columns, indexed), Run.id, _tagged)

    def _first(
        self, query: ListQuery, rare: Select[str] | None, indexed: Collection[str], more: Columns
    ) -> Select[str]:
        """Select the ids of the first runs without and of the first with a lease: a page sorted by `step` is of them.

        An index has the order of the many at rest; those with a lease are few.
        """
        leases = select(Lease.run_id)
        at_rest, leased = (
            select(Run.id).where(_SHOWN, condition) for condition in (Run.id.not_in(leases), Run.id.in_(leases))
        )
        if rare is not None:
            at_rest, leased = (query_of_ids.where(Run.id.in_(rare)) for query_of_ids in (at_rest, leased))
        pages = (
            in_page(at_rest, query, _but({**self.AT_REST, **more}, indexed), Run.id, _tagged),
            in_page(leased, query, _but({**self.COLUMNS, **more}, ()), Run.id, _tagged),
        )
        return union_all(*(select(page.subquery().c.id) for page in pages)).subquery().select()

    def _hits(self, query: ListQuery) -> Iterator[Select[str]]:
        """Select the ids that each condition leaves by itself: those with an index of their own, and the project."""
        project = project_of(self._session)
        if project is not None:
            yield select(Run.id).where(Run.project == project)
        for condition in query.conditions:
            common = condition.field in {"state", "priority", query.order.field}
            if common or condition.operator is Operator.NE or condition.field not in self.COLUMNS:
                continue
            hits = select(RunTag.run_id if condition.field == "tags" else Run.id)
            hits = hits.where(compare(self.AT_REST, condition))
            if condition.field in _MOVING:  # of a run with a lease, the lease tells
                hits = select(union(hits, select(Lease.run_id)).subquery().c.id)
            yield hits

    def count(self, state: RunState | None = None) -> int:
        """Return how many runs there are, or are in a state."""
        query = select(func.count()).select_from(Run).where(_SHOWN)
        return self._session.scalar(query if state is None else query.where(Run.state == state)) or 0

    def attempts(self, run_id: str) -> Sequence[Attempt]:
        """Return a run's attempts, oldest first; the live one as its last heartbeat left it."""
        same = (Lease.run_id == Attempt.run_id) & (Lease.attempt == Attempt.number)
        query = select(Attempt, Lease).outerjoin(Lease, same).where(Attempt.run_id == run_id).order_by(Attempt.number)
        return [_live(attempt, lease) for attempt, lease in self._session.execute(query)]

    def logs(self, run_id: str, attempt: int | None = None) -> Sequence[Log]:
        """Return the log files of a run, or of one attempt, by attempt and name."""
        query = select(Log).where(Log.run_id == run_id).order_by(Log.attempt, Log.name)
        return self._session.scalars(query if attempt is None else query.where(Log.attempt == attempt)).all()

    def log(self, run_id: str, attempt: int, name: str) -> Log:
        """Return one log file. Raises LogNotFound."""
        log = self._session.get(Log, (run_id, attempt, name))
        if log is None:
            raise LogNotFound(run_id, attempt, name)
        return log

    def insert(self, new: NewRun) -> Run:
        """Insert a run that waits for a worker, with its first event. A run without a name is named by its id."""
        assert new.config.seed is not None
        run_id = new_id("run")
        tags, config = sorted(set(new.tags)), new.config.model_dump(mode="json")
        run = Run(
            id=run_id,
            kind=new.config.kind,
            name=new.name or run_id,
            tags=tags,
            state=RunState.QUEUED,
            config=config,
            config_name=new.config_name,
            config_version=new.config_version,
            seed=new.config.seed,
            priority=new.priority,
            owner=new.owner,
            token_id=new.token_id,
            demand=Demand.of(config).text,
            max_steps=new.config.max_steps,
            created_at=now(),
            queued_at=now(),
            awaited_until=math.inf if new.config.kind is RunKind.CLONE else None,
            stored_updated_at=now(),
        )
        self._session.add(run)
        self._session.flush()
        self._session.add_all(RunTag(tag=tag, run_id=run_id) for tag in tags)
        data = {"name": run.name, "kind": run.kind, "priority": run.priority, "tags": tags}
        record(self._session, run_id, Note("run_created", "The run was created and waits for a worker.", data=data))
        self._session.refresh(run)
        return run

    def lock(self, run: str) -> Run:
        """Return a run (id or name), locked until the commit. Raises RunNotFound."""
        return lock_run(self._session, self.get(run).id)

    def lock_live(self, run: str, hint: str = "") -> Run:
        """Lock a run that has not ended. Raises RunNotFound, RunEnded, whose sentence ends with `hint`."""
        locked = self.lock(run)
        if locked.state in TERMINAL:
            raise RunEnded(locked.id, locked.state, hint)
        return locked

    def label(
        self,
        run: Run,
        *,
        name: str | None = None,
        tags: Collection[str] | None = None,
        add: Collection[str] = (),
        remove: Collection[str] = (),
    ) -> None:
        """Give a locked run another name and other tags (None: those that it has); then add and remove some.

        Raises TooManyTags.
        """
        if name is not None and name != run.name:
            note = Note("run_renamed", f"The run is called {name} now.", data={"from": run.name, "to": name})
            self.annotate(run, note, name=name)
        tags = sorted({*(run.tags if tags is None else tags), *add} - {*remove})
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

    def rename_tag(self, run_ids: Sequence[str], tag: str, to: str) -> None:
        """Give those of these runs that have a tag another one in its place, without an event of each."""
        for part in parts(run_ids):
            tagged = select(RunTag.run_id).where(RunTag.tag == tag, RunTag.run_id.in_(part))
            query = select(Run).where(Run.id.in_(tagged)).options(load_only(Run.id, Run.tags)).order_by(Run.id)
            for run in self._session.scalars(query.with_for_update()):
                run.tags = sorted({*run.tags, to} - {tag})
            self._session.execute(update(RunTag).where(RunTag.tag == tag, RunTag.run_id.in_(part)).values(tag=to))

    def worker_of(self, run: Run) -> str | None:
        """Return the id of the worker that executes the present attempt of a run; None if that has ended."""
        live = (Attempt.run_id == run.id) & (Attempt.number == run.attempt) & Attempt.ended_at.is_(None)
        return self._session.scalar(select(Attempt.worker_id).where(live))

    def intend(self, run: Run, intent: Intent, note: Note) -> Run:
        """Set the intent of a locked run; its supervisor reads it with the next heartbeat."""
        return self.annotate(run, note, intent=intent)

    def annotate(self, run: Run, note: Note, **columns: object) -> Run:
        """Record an event of a locked run, with changes of its columns that are no move."""
        record(self._session, run.id, note, attempt=run.attempt, **columns)
        self._session.refresh(run)
        return run


def _live(attempt: Attempt, lease: Lease | None) -> Attempt:
    """Return an attempt with the values of its lease. They are not written."""
    if lease is not None:
        spent = None if lease.time_spent is None else TimeSpent.unpack(lease.time_spent)
        live = {"lease_expires_at": lease.expires_at, "heartbeat_at": lease.renewed_at, "step": lease.step}
        for name, value in {**live, "time_spent": None if spent is None else asdict(spent)}.items():
            set_committed_value(attempt, name, value)
    return attempt


def _but(columns: Columns, indexed: Collection[str]) -> Columns:
    """Return the columns, opaque but for those of which an index may be used."""
    return {field: column if field in indexed else opaque(column) for field, column in columns.items()}


def _without_behind() -> list[Any]:
    return [defer(column, raiseload=True) for column in BEHIND]


def _newest_of(query: Select[*Values], name: str) -> Select[*Values]:
    return query.where(Run.name == name, _SHOWN).order_by(Run.created_at.desc(), Run.id.desc()).limit(1)


def _tagged(condition: Condition) -> ColumnElement[bool] | None:
    """Translate a condition on `tags`: the run has a tag that fits (=), or none that does (!=)."""
    if condition.field != "tags":
        return None
    fits = compare(RunRepository.COLUMNS, Condition("tags", Operator.EQ, condition.value))
    tagged = exists().where(RunTag.run_id == Run.id, fits)
    return tagged if condition.operator is Operator.EQ else not_(tagged)
