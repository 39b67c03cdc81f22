"""Metrics in the database: what attempts append, and what readers see.

An append is one row of the tail, whatever number of keys it has (`server.metrics.tail`). The controller packs the tail
into chunks of one metric each, and into the rows of newest values (`server.metrics.compaction`). Readers join both: the
tail first, then what is packed. A compaction that commits in between has moved points from the one to the other; in
this order they are read twice then, which their steps tell, and never missed.

The history carries the attempt that recorded it. An attempt that resumed at step s supersedes what earlier attempts had
recorded beyond s: those points are hidden from every reader at once, so that a curve never runs twice.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, LargeBinary, Subquery, func, literal, select, text, update
from sqlalchemy.orm import InstrumentedAttribute

from server.kit.db.clock import now
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository, upsert
from server.kit.states import LEASED
from server.metrics.listed import ListedMetric
from server.metrics.models import STALE_SQL, LatestMetric, MetricChunk, MetricTail
from server.metrics.points import EVERY_STEP, MetricPoint, NewestValue, Place, Points, Window
from server.metrics.superseding.repository import RewindRepository, Superseding
from server.metrics.tail import pack, unpack
from server.runs.models import Run

ByAttempt = Mapping[int, Points]
"""The points of a metric by the attempt that recorded them, in the order of the attempts."""


class MetricRepository(Repository):
    """Metrics of runs."""

    def append(self, run_id: str, attempt: int, points: Iterable[MetricPoint]) -> bool:
        """Add points of an attempt: one row, one statement. False: it does not hold the run, or its number was taken.

        Points that are not beyond its newest step of a key don't count: adding twice is safe. The races: another
        attempt begins, and sets the metrics back; the statement locks the run as a claim does, and reads its row again
        if it had to wait. Two writers of one attempt append at once; one of them finds the number taken, and adds
        nothing.
        """
        same = (MetricTail.run_id == run_id, MetricTail.attempt == attempt)
        values: dict[Any, Any] = {
            MetricTail.run_id: Run.id,
            MetricTail.attempt: Run.attempt,
            MetricTail.number: select(func.coalesce(func.max(MetricTail.number), 0) + 1).where(*same).scalar_subquery(),
            MetricTail.at: now(),
            MetricTail.points: literal(pack(points), LargeBinary),
        }
        holds = (Run.id == run_id, Run.attempt == attempt, Run.state.in_(LEASED))
        is_held = select(*values.values()).where(*holds).with_for_update(of=Run)
        added = upsert(self._session, MetricTail).from_select(list(values), is_held).on_conflict_do_nothing()
        return self._session.scalar(added.returning(MetricTail.number)) is not None

    def rewind(self, run_id: str) -> None:
        """Delete what the present attempt has superseded (called when it begins, with the run locked)."""
        RewindRepository(self._session).rewind(run_id)

    def latest(self, run_id: str) -> list[NewestValue]:
        """Return the newest value of every key of a run, by behavior and key."""
        return sorted(self.newest([run_id]).values(), key=lambda each: (each.behavior, each.key))

    def scores(self, run_id: str) -> dict[str, dict[str, float]]:
        """Return the newest value of every key of a run that is a finite number, by behavior and key."""
        scores: dict[str, dict[str, float]] = {}
        for metric in self.latest(run_id):
            if metric.value is not None:
                scores.setdefault(metric.behavior, {})[metric.key] = metric.value
        return scores

    def newest(self, run_ids: Sequence[str], keys: Sequence[str] | None = None) -> dict[Place, NewestValue]:
        """Return the newest value of each of these keys (None: of every key) in each run and behavior."""
        found: dict[Place, NewestValue] = {}
        for some in parts(run_ids):
            tail = self._tail(some, keys, None, Superseding(self._session, some))
            columns = [LatestMetric.__table__.c[name] for name in NewestValue.__dataclass_fields__]
            for row in self._session.execute(select(*columns).where(*_of(LatestMetric, some, keys, None))):
                newest = NewestValue(*row)
                found[newest.run_id, newest.behavior, newest.key] = newest
            for place, by_attempt in tail.items():
                newest = NewestValue.of(*place, Points.joined(list(by_attempt.values())))
                found[place] = found[place].joined(newest) if place in found else newest
        return found

    def listed(
        self, run_ids: Sequence[str], wanted: Sequence[ListedMetric]
    ) -> dict[str, dict[ListedMetric, float | None]]:
        """Return the wanted values of many runs at once; None where a run has no such number."""
        found = {run_id: dict[ListedMetric, float | None].fromkeys(wanted) for run_id in run_ids}
        keys = sorted({each.key for each in wanted})
        for (run_id, behavior, key), newest in self.newest(run_ids, keys).items() if keys else ():
            for each in wanted:
                value: float | None = getattr(newest, _FIELD[each.which])
                if key == each.key and each.behavior in {None, behavior} and value is not None:
                    other = found[run_id][each]
                    found[run_id][each] = value if other is None else each.choose(other, value)
        return found

    def history(self, run_id: str, behavior: str, key: str) -> Points | None:
        """Return all points of a metric that no later attempt superseded, or None where there is no such metric."""
        by_attempt = self.by_attempt([run_id], [key], behavior).get((run_id, behavior, key))
        return None if by_attempt is None else Points.joined(list(by_attempt.values()))

    def by_attempt(
        self,
        run_ids: Sequence[str],
        keys: Sequence[str] | None = None,
        behavior: str | None = None,
        window: Window = EVERY_STEP,
    ) -> dict[Place, ByAttempt]:
        """Return the points in a window of each metric, by run, behavior and key, that no later attempt superseded.

        The runs come in their order, with behaviors and keys sorted. `keys` None: of every key; `behavior` None: of
        every behavior.
        """
        inside = (MetricChunk.last_step >= window.first, MetricChunk.first_step <= window.last)
        points_by_place: dict[Place, ByAttempt] = {}
        for part in parts(run_ids):
            superseding = Superseding(self._session, part)
            tail = self._tail(part, keys, behavior, superseding)
            gathered: defaultdict[Place, defaultdict[int, list[Points]]] = defaultdict(lambda: defaultdict(list))
            query = select(*MetricChunk.__table__.c).where(*_of(MetricChunk, part, keys, behavior), *inside)
            for chunk in self._session.execute(query.order_by(MetricChunk.attempt, MetricChunk.number)):
                until = min(window.last, superseding.limit(chunk.run_id, chunk.behavior, chunk.attempt))
                points = Points.unpack(chunk.steps, chunk.times, chunk.values).within(Window(window.first, until))
                gathered[chunk.run_id, chunk.behavior, chunk.key][chunk.attempt].append(points)
            for place, by_attempt in tail.items():
                for attempt, points in by_attempt.items():
                    gathered[place][attempt].append(points.within(window))
            for place in self._places(part, keys, behavior, tail):
                of_place = sorted(gathered[place].items())
                points_by_place[place] = {
                    attempt: Points.joined(parts_of_attempt).increasing() for attempt, parts_of_attempt in of_place
                }
        return points_by_place

    def places(
        self, run_ids: Sequence[str], keys: Sequence[str] | None = None, behavior: str | None = None
    ) -> list[Place]:
        """Return run, behavior and key of the metrics that have points: those of the runs in their order."""
        places: list[Place] = []
        for part in parts(run_ids):
            tail = self._tail(part, keys, behavior, Superseding(self._session, part))
            places += self._places(part, keys, behavior, tail)
        return places

    def keys(self, run_ids: Sequence[str]) -> list[str]:
        """Return the keys that at least one of the runs has recorded, sorted."""
        names: set[str] = set()
        for part in parts(run_ids):
            names |= {key for _, _, key in self._tail(part, None, None, Superseding(self._session, part))}
            query = select(LatestMetric.key).distinct()
            names.update(self._session.scalars(query.where(LatestMetric.run_id.in_(part))))
        return sorted(names)

    def stale(self, limit: int) -> list[Place]:
        """Return run, behavior and key of metrics whose extremes are not known up to their newest step."""
        query = select(LatestMetric.run_id, LatestMetric.behavior, LatestMetric.key).where(text(STALE_SQL))
        return [(row.run_id, row.behavior, row.key) for row in self._session.execute(query.limit(limit))]

    def renew_extremes(self, run_id: str, behavior: str, key: str) -> None:
        """Compute the extremes of a metric from its history. The run is locked: nothing is appended meanwhile."""
        history = self.history(run_id, behavior, key)
        highest, lowest = (None, None) if history is None else history.extremes()
        same = (LatestMetric.run_id == run_id, LatestMetric.behavior == behavior, LatestMetric.key == key)
        values = {"highest": highest, "lowest": lowest, "extremes_step": LatestMetric.step}
        self._session.execute(update(LatestMetric).where(*same).values(values))

    def _tail(
        self, run_ids: Sequence[str], keys: Sequence[str] | None, behavior: str | None, superseding: Superseding
    ) -> dict[Place, ByAttempt]:
        """Return the points in the tail of runs that no later attempt superseded, without metrics that have none."""
        query = select(MetricTail.run_id, MetricTail.attempt, MetricTail.points).where(MetricTail.run_id.in_(run_ids))
        gathered: defaultdict[Place, defaultdict[int, list[Points]]] = defaultdict(lambda: defaultdict(list))
        for run_id, attempt, packed in self._session.execute(query.order_by(MetricTail.attempt, MetricTail.number)):
            for (of_behavior, key), points in unpack(packed).items():
                if (keys is None or key in keys) and behavior in {None, of_behavior}:
                    until = Window(last=superseding.limit(run_id, of_behavior, attempt))
                    gathered[run_id, of_behavior, key][attempt].append(points.within(until))
        joined = {
            place: {attempt: Points.joined(pieces).increasing() for attempt, pieces in by_attempt.items()}
            for place, by_attempt in gathered.items()
        }
        return {place: by_attempt for place, by_attempt in joined.items() if any(map(len, by_attempt.values()))}

    def _places(
        self, run_ids: Sequence[str], keys: Sequence[str] | None, behavior: str | None, tail: Iterable[Place]
    ) -> list[Place]:
        """Return the places of the rows of newest values, and those of the tail, in the order of the runs."""
        columns = (LatestMetric.run_id, LatestMetric.behavior, LatestMetric.key)
        rows = self._session.execute(select(*columns).where(*_of(LatestMetric, run_ids, keys, behavior)))
        order = {run_id: index for index, run_id in enumerate(run_ids)}
        every = {*tail, *((run_id, of_behavior, key) for run_id, of_behavior, key in rows)}
        return sorted(every, key=lambda place: (order[place[0]], place))


_FIELD: Mapping[str, str] = {"last": "value", "max": "highest", "min": "lowest"}
"""The column of `LatestMetric` that has the number of a list's metric, by `ListedMetric.which`."""


def values_by_run(metric: ListedMetric) -> Subquery:
    """Select the number of each run that has one, as `run_id` and `value`: as of the last compaction of its tail."""
    column: InstrumentedAttribute[float | None] = getattr(LatestMetric, _FIELD[metric.which])
    chosen = func.min(column) if metric.which == "min" else func.max(column)
    query = select(LatestMetric.run_id, chosen.label("value"))
    query = query.where(LatestMetric.key == metric.key, column.is_not(None))
    if metric.behavior is not None:
        query = query.where(LatestMetric.behavior == metric.behavior)
    return query.group_by(LatestMetric.run_id).subquery("listed_metric")


def _of(
    model: type[LatestMetric | MetricChunk], run_ids: Sequence[str], keys: Sequence[str] | None, behavior: str | None
) -> list[ColumnElement[bool]]:
    """Return the conditions for the rows of these metrics; None: of any key, of any behavior."""
    same: list[ColumnElement[bool]] = [model.run_id.in_(run_ids)]
    same += [] if keys is None else [model.key.in_(keys)]
    return same if behavior is None else [*same, model.behavior == behavior]
