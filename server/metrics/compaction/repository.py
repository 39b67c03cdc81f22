"""Packs the tail of a run into chunks, and brings its newest values up to date.

A compaction adds a small chunk to each metric. The small ones are joined when they make a full one, or when there are
`SMALL` of them: so a point is written two or three times in its life, not once for each later one, and a history of any
length has few small chunks.
"""

import operator
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, case, delete, exists, func, or_, select, text, tuple_

from server.kit.db.clock import now
from server.kit.db.repository import Repository, upsert
from server.kit.states import LEASED
from server.metrics.models import OPEN_SQL, LatestMetric, MetricChunk, MetricTail
from server.metrics.points import CHUNK_POINTS, NO_LIMIT, NewestValue, Points, Window
from server.metrics.superseding.repository import Superseding, insert_chunks
from server.metrics.tail import unpack
from server.runs.models import Run

APPENDS = 32
"""A run's tail with so many rows is compacted."""
SECONDS = 60.0
"""A tail whose oldest row is so old is compacted: lists are sorted by values of that age at most."""
LARGEST = 256
"""Rows of the tail in one compaction."""
SMALL = 8
"""Small chunks of a metric that are joined."""
METRICS = 300
"""In one condition: each takes three of the 999 parameters that SQLite has in any build."""

Metric = tuple[int, str, str]
"""Attempt, behavior and key."""


class CompactionRepository(Repository):
    """The tails of runs."""

    def due(self, limit: int) -> list[str]:
        """Return runs whose tail is long or old, or that have no attempt any more, or no newest values yet; the oldest
        first.
        """
        tail = (
            select(MetricTail.run_id, func.count().label("appends"), func.min(MetricTail.at).label("at"))
            .group_by(MetricTail.run_id)
            .subquery()
        )
        listed = exists().where(LatestMetric.run_id == tail.c.run_id)
        is_due = or_(tail.c.appends >= APPENDS, tail.c.at <= now() - SECONDS, Run.state.not_in(LEASED), ~listed)
        query = select(tail.c.run_id).join(Run, Run.id == tail.c.run_id).where(is_due)
        return list(self._session.scalars(query.order_by(tail.c.at).limit(limit)))

    def compact(self, run_id: str) -> int:
        """Pack the oldest appends of a locked run; return how many rows of the tail there were."""
        query = select(MetricTail.attempt, MetricTail.number, MetricTail.points).where(MetricTail.run_id == run_id)
        rows = self._session.execute(query.order_by(MetricTail.attempt, MetricTail.number).limit(LARGEST)).all()
        if not rows:
            return 0
        superseding = Superseding(self._session, [run_id])
        gathered: defaultdict[Metric, list[Points]] = defaultdict(list)
        for row in rows:
            for (behavior, key), points in unpack(row.points).items():
                until = Window(last=superseding.limit(run_id, behavior, row.attempt))
                gathered[row.attempt, behavior, key].append(points.within(until))
        joined = {metric: Points.joined(each).increasing() for metric, each in sorted(gathered.items())}
        added = self._add(run_id, {metric: points for metric, points in joined.items() if len(points)})
        self._add_to_latest(run_id, added)
        last = and_(MetricTail.attempt == rows[-1].attempt, MetricTail.number <= rows[-1].number)
        packed = or_(MetricTail.attempt < rows[-1].attempt, last)
        self._session.execute(delete(MetricTail).where(MetricTail.run_id == run_id, packed))
        return len(rows)

    def _add(self, run_id: str, points: Mapping[Metric, Points]) -> dict[Metric, Points]:
        """Add points to the chunks of metrics; return those that were new."""
        ends = self._ends(run_id, points)
        new, rows, joined = {}, [], list[Metric]()
        for metric, theirs in points.items():
            end = ends.get(metric, _End())
            some = theirs.after(end.step)
            if not len(some):
                continue
            new[metric] = some
            if end.open and (end.open + 1 >= SMALL or end.points + len(some) >= CHUNK_POINTS):
                joined.append(metric)
            else:
                rows += chunks_of(run_id, metric, end.number + 1, some)
        for metric, (number, open_points) in self._take_open(run_id, joined).items():
            rows += chunks_of(run_id, metric, number, open_points + new[metric])
        insert_chunks(self._session, rows)
        return new

    def _ends(self, run_id: str, metrics: Collection[Metric]) -> dict[Metric, "_End"]:
        """Return the ends of the histories of metrics, without those that have none.

        Chunks that are not full are at the end, and have an index. Of a metric without any, all chunks are looked at:
        a new one, or one whose last chunk is exactly full.
        """
        count, points = func.count(), func.sum(MetricChunk.count)
        ends = (func.max(MetricChunk.number), func.max(MetricChunk.last_step))
        attempts = sorted({attempt for attempt, _, _ in metrics})
        query = select(*_METRIC, *ends, count, points).where(MetricChunk.run_id == run_id)
        opened = query.where(MetricChunk.attempt.in_(attempts), text(OPEN_SQL)).group_by(*_METRIC)
        found = {(row[0], row[1], row[2]): _End(*row[3:]) for row in self._session.execute(opened)}
        for part in _parts([metric for metric in metrics if metric not in found]):
            full = select(*_METRIC, *ends).where(MetricChunk.run_id == run_id, tuple_(*_METRIC).in_(part))
            found |= {
                (row[0], row[1], row[2]): _End(*row[3:]) for row in self._session.execute(full.group_by(*_METRIC))
            }
        return found

    def _take_open(self, run_id: str, metrics: Sequence[Metric]) -> dict[Metric, tuple[int, Points]]:
        """Delete the chunks of metrics that are not full; return the number of the first of each, and their points."""
        taken: defaultdict[Metric, list[tuple[int, Points]]] = defaultdict(list)
        columns = (MetricChunk.number, MetricChunk.steps, MetricChunk.times, MetricChunk.values)
        for some in _parts(metrics):
            theirs = (MetricChunk.run_id == run_id, tuple_(*_METRIC).in_(some), text(OPEN_SQL))
            rows = self._session.execute(select(*_METRIC, *columns).where(*theirs).order_by(MetricChunk.number))
            for row in rows:
                points = Points.unpack(row.steps, row.times, row.values)
                taken[row.attempt, row.behavior, row.key].append((row.number, points))
            self._session.execute(delete(MetricChunk).where(*theirs))
        return {metric: (each[0][0], Points.joined([points for _, points in each])) for metric, each in taken.items()}

    def _add_to_latest(self, run_id: str, added: Mapping[Metric, Points]) -> None:
        """Bring the newest values up to date.

        A point that is not beyond the newest one counts for the extremes alone: an attempt of the release before `0026`
        may have written a later one meanwhile, or the newest one is superseded, and its attempt will rewind.
        """
        newest: dict[tuple[str, str], NewestValue] = {}
        for (_, behavior, key), points in added.items():
            found = NewestValue.of(run_id, behavior, key, points)
            newest[behavior, key] = newest[behavior, key].joined(found) if (behavior, key) in newest else found
        rows = [LatestMetric.columns(value) for value in newest.values()]
        if rows:
            statement = upsert(self._session, LatestMetric)
            later = statement.excluded["step"] > LatestMetric.step
            values: dict[str, Any] = {
                name: case((later, statement.excluded[name]), else_=getattr(LatestMetric, name))
                for name in ("step", "value", "at")
            }
            # Extremes known up to the step before go on; others stay stale, and the controller computes them.
            stored = and_(later, LatestMetric.extremes_step == LatestMetric.step)
            values["extremes_step"] = case((stored, statement.excluded["step"]), else_=LatestMetric.extremes_step)
            for name, beyond in (("highest", operator.gt), ("lowest", operator.lt)):
                old, new = getattr(LatestMetric, name), statement.excluded[name]
                values[name] = case((or_(old.is_(None), beyond(new, old)), func.coalesce(new, old)), else_=old)
            keys = (LatestMetric.run_id, LatestMetric.behavior, LatestMetric.key)
            self._session.execute(statement.on_conflict_do_update(index_elements=keys, set_=values), rows)


@dataclass(frozen=True)
class _End:
    """The end of a metric's history within an attempt."""

    number: int = -1
    """Of the last chunk; -1 where there is none."""
    step: int = -NO_LIMIT
    """Of the last point."""
    open: int = 0
    """How many chunks are not full."""
    points: int = 0
    """In those."""


_METRIC = (MetricChunk.attempt, MetricChunk.behavior, MetricChunk.key)


def _parts(metrics: Sequence[Metric]) -> Iterator[Sequence[Metric]]:
    """Cut a list of metrics for `IN (...)`."""
    yield from (metrics[start : start + METRICS] for start in range(0, len(metrics), METRICS))


def chunks_of(run_id: str, metric: Metric, number: int, points: Points) -> list[dict[str, Any]]:
    """Return the rows of chunks that hold points, numbered from `number` on."""
    attempt, behavior, key = metric
    place = {"run_id": run_id, "behavior": behavior, "key": key, "attempt": attempt}
    starts = range(0, len(points), CHUNK_POINTS)
    return [
        {**place, "number": number + index, **MetricChunk.columns(points[start : start + CHUNK_POINTS])}
        for index, start in enumerate(starts)
    ]
