"""Which points of an attempt still count, and the removal of those that do not."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, case, delete, func, insert, or_, select, tuple_
from sqlalchemy.orm import Session

from server.checkpoints.models import Checkpoint
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository, upsert
from server.metrics.models import LatestMetric, MetricChunk
from server.metrics.points import NO_LIMIT, NewestValue, Points, Window
from server.runs.models import Attempt

EXTREMES = ("highest", "lowest", "extremes_step")
ROWS = 70
"""Chunks of one INSERT: SQLite takes 999 parameters in any build."""


class Restart(NamedTuple):
    """Where an attempt began."""

    attempt: int
    step: int
    """Of the run; 0 from the beginning."""
    steps: Mapping[str, int] | None
    """Of each behavior; None without a checkpoint."""

    def of(self, behavior: str) -> int:
        """Return the step at which it took up a behavior (with no name: the run as a whole)."""
        return self.step if self.steps is None or not behavior else int(self.steps.get(behavior, 0))


class Superseding(Repository):
    """The steps up to which the points of each attempt count. Read when the first one is asked for."""

    def __init__(self, session: Session, run_ids: Sequence[str]) -> None:
        super().__init__(session)
        self._run_ids = run_ids
        self.limit = cache(self._limit)

    @cached_property
    def restarts(self) -> Mapping[str, Sequence[Restart]]:
        """The starts of all attempts of each run, in order."""
        query = (
            select(Attempt.run_id, Attempt.number, Attempt.resume_step, Checkpoint.steps)
            .outerjoin(Checkpoint, Checkpoint.id == Attempt.resumed_from)
            .where(Attempt.run_id.in_(self._run_ids))
            .order_by(Attempt.number)
        )
        found: defaultdict[str, list[Restart]] = defaultdict(list)
        for run_id, number, step, steps in self._session.execute(query):
            found[run_id].append(Restart(number, step, steps))
        return found

    def _limit(self, run_id: str, behavior: str, attempt: int) -> int:
        """Return the step up to which an attempt's points of a behavior count."""
        later = (each.of(behavior) for each in self.restarts[run_id] if each.attempt > attempt)
        return min(later, default=NO_LIMIT)

    def bounded(self, run_id: str, behavior: str) -> Iterator[tuple[int, int, int]]:
        """Iterate over first attempt, last attempt and limit of consecutive attempts with one limit.

        The last ones, of which every point counts, are left out.
        """
        first, limits = (
            1,
            [(each.attempt, self.limit(run_id, behavior, each.attempt)) for each in self.restarts[run_id]],
        )
        for (attempt, limit), (_, after) in pairwise(limits):
            if limit != after:
                yield first, attempt, limit
                first = attempt + 1


class RewindRepository(Repository):
    """Deletes superseded points that are packed, and sets the newest values back to what is left.

    It reads the columns of chunks that say what is in them, and of points only those of the chunks in which a limit
    lies and of the newest ones, two per metric at most, however long the history is.
    """

    def rewind(self, run_id: str) -> None:
        """Delete what is superseded now. The run is locked."""
        superseding = Superseding(self._session, [run_id])
        if len(superseding.restarts[run_id]) < 2:
            return
        changed = {*self._delete(run_id, superseding), *self._cut(run_id, superseding)}
        for some in parts(sorted(changed)):
            self._renew_latest(run_id, some)

    def _delete(self, run_id: str, superseding: Superseding) -> Iterator[tuple[str, str]]:
        """Delete the chunks that are wholly beyond; yield their behaviors and keys."""
        for beyond in self._beyond(run_id, superseding, first=True):
            statement = delete(MetricChunk).where(MetricChunk.run_id == run_id, beyond)
            gone = self._session.execute(statement.returning(MetricChunk.behavior, MetricChunk.key))
            yield from {(row.behavior, row.key) for row in gone}

    def _cut(self, run_id: str, superseding: Superseding) -> Iterator[tuple[str, str]]:
        """Cut the chunks that are partly beyond; yield their behaviors and keys."""
        for beyond in self._beyond(run_id, superseding, first=False):
            ours = (MetricChunk.run_id == run_id, beyond)
            rows = self._session.execute(select(*MetricChunk.__table__.c).where(*ours)).mappings().all()
            left = []
            for row in rows:
                until = Window(last=superseding.limit(run_id, row["behavior"], row["attempt"]))
                points = Points.unpack(row["steps"], row["times"], row["values"]).within(until)
                left.append({**row, **MetricChunk.columns(points)})
                yield row["behavior"], row["key"]
            if left:
                self._session.execute(delete(MetricChunk).where(*ours))
                insert_chunks(self._session, left)

    def _beyond(self, run_id: str, superseding: Superseding, *, first: bool) -> Iterator[ColumnElement[bool]]:
        """Iterate over conditions for the chunks whose first step, or only whose last one, is beyond the limit."""
        behaviors = self._session.scalars(select(LatestMetric.behavior).distinct().where(LatestMetric.run_id == run_id))
        ranges = [(behavior, *each) for behavior in behaviors for each in superseding.bounded(run_id, behavior)]
        for some in parts(ranges):
            yield or_(
                *(
                    and_(
                        MetricChunk.behavior == behavior,
                        MetricChunk.attempt.between(since, until),
                        MetricChunk.first_step > limit if first else MetricChunk.last_step > limit,
                    )
                    for behavior, since, until, limit in some
                )
            )

    def _renew_latest(self, run_id: str, metrics: Sequence[tuple[str, str]]) -> None:
        """Compute the newest values of metrics, and their extremes, from what the chunks say of themselves."""
        names = (MetricChunk.behavior, MetricChunk.key)
        ours = (MetricChunk.run_id == run_id, tuple_(*names).in_(metrics))
        unknown = func.sum(case((MetricChunk.highest.is_(None), 1), else_=0))
        summary = (
            select(
                *names,
                func.max(MetricChunk.last_step).label("step"),
                func.max(MetricChunk.highest).label("highest"),
                func.min(MetricChunk.lowest).label("lowest"),
                unknown.label("unknown"),
            )
            .where(*ours)
            .group_by(*names)
            .subquery()
        )
        newest = (
            select(summary, MetricChunk.steps, MetricChunk.times, MetricChunk.values)
            .join(MetricChunk, and_(MetricChunk.behavior == summary.c.behavior, MetricChunk.key == summary.c.key))
            .where(MetricChunk.run_id == run_id, MetricChunk.last_step == summary.c.step)
            .order_by(MetricChunk.attempt)
        )
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self._session.execute(newest):
            points = Points.unpack(row.steps, row.times, row.values)
            last = NewestValue.of(run_id, row.behavior, row.key, points)
            found[row.behavior, row.key] = {
                **LatestMetric.columns(last),
                "highest": row.highest,
                "lowest": row.lowest,
                "extremes_step": None if row.unknown else last.step,
            }
        if found:
            statement = upsert(self._session, LatestMetric).values(list(found.values()))
            new = {name: statement.excluded[name] for name in ("step", "value", "at", *EXTREMES)}
            keys = (LatestMetric.run_id, LatestMetric.behavior, LatestMetric.key)
            self._session.execute(statement.on_conflict_do_update(index_elements=keys, set_=new))
        gone = [each for each in metrics if each not in found]
        if gone:
            theirs = tuple_(LatestMetric.behavior, LatestMetric.key).in_(gone)
            self._session.execute(delete(LatestMetric).where(LatestMetric.run_id == run_id, theirs))


def insert_chunks(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert chunks, many with one statement."""
    for start in range(0, len(rows), ROWS):
        session.execute(insert(MetricChunk).values(rows[start : start + ROWS]))
