"""Metrics: the newest value of each key, and the history in packed chunks.

The history carries the attempt that recorded it. An attempt that resumed at step s supersedes what earlier attempts had
recorded beyond s: those points stay in the database and are hidden from every reader, so that a curve never runs twice.
"""

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Subquery, case, delete, func, insert, or_, select, text, update
from sqlalchemy.orm import InstrumentedAttribute

from server.checkpoints.models import Checkpoint
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository, upsert
from server.metrics.listed import ListedMetric
from server.metrics.models import STALE_SQL, LatestMetric, MetricChunk
from server.metrics.points import CHUNK_POINTS, EVERY_STEP, NO_LIMIT, MetricPoint, Points, Series, Window, common_edges
from server.runs.models import Attempt


class MetricRepository(Repository):
    """Metrics of runs."""

    def latest(self, run_id: str) -> Sequence[LatestMetric]:
        """Return the newest value of every key of a run, by behavior and key."""
        order = (LatestMetric.behavior, LatestMetric.key)
        return self._session.scalars(select(LatestMetric).where(LatestMetric.run_id == run_id).order_by(*order)).all()

    def scores(self, run_id: str) -> dict[str, dict[str, float]]:
        """Return the newest value of every key of a run that is a finite number, by behavior and key."""
        found: dict[str, dict[str, float]] = {}
        for metric in self.latest(run_id):
            if metric.value is not None:
                found.setdefault(metric.behavior, {})[metric.key] = metric.value
        return found

    def series(
        self,
        run_ids: Sequence[str],
        keys: Sequence[str],
        behavior: str | None = None,
        points: int = 500,
        *,
        window: Window = EVERY_STEP,
        thinned: bool = True,
        common_steps: bool = False,
        smoothing: float = 0.0,
    ) -> list[Series]:
        """Return the history of each key in each run and behavior, in at most `points` buckets (`Series`).

        Those without a point in the window are empty. `behavior`: only of this one; "" is the run as a whole. Not
        `thinned`: the first `points` points. With `common_steps`, bucket i covers the same steps in all of them. With
        `smoothing` above 0 they have smoothed values (`server.metrics.points.smoothed`).
        """
        # What lies before the window counts in smoothed values.
        read = Window(last=window.last) if smoothing else window
        whole = self.histories(run_ids, keys, behavior, read)
        histories = {place: history.within(window) for place, history in whole.items()}
        if not thinned:
            histories = {place: history[:points] for place, history in histories.items()}
        if common_steps:
            edges = common_edges(list(histories.values()), points)
            found = [Series.between(*place, history, edges) for place, history in histories.items()]
        else:
            found = [Series.thin(*place, history, points) for place, history in histories.items()]
        if smoothing:
            found = [each.smooth(history, smoothing) for each, history in zip(found, whole.values(), strict=True)]
        return found

    def history(self, run_id: str, behavior: str, key: str) -> Points | None:
        """Return all points of a metric that no later attempt superseded, or None where there is no such metric."""
        return self.histories([run_id], [key], behavior).get((run_id, behavior, key))

    def histories(
        self, run_ids: Sequence[str], keys: Sequence[str], behavior: str | None = None, window: Window = EVERY_STEP
    ) -> dict[tuple[str, str, str], Points]:
        """Return the points in a window of each metric, by run, behavior and key, that no later attempt superseded."""
        found: dict[tuple[str, str, str], list[Points]] = {place: [] for place in self.places(run_ids, keys, behavior)}
        inside = (MetricChunk.last_step >= window.first, MetricChunk.first_step <= window.last)
        for some in parts(run_ids):
            limits = self._limits(some)
            query = select(*MetricChunk.__table__.c).where(*_of(MetricChunk, some, keys, behavior), *inside)
            for chunk in self._session.execute(query.order_by(MetricChunk.attempt, MetricChunk.number)):
                until = min(window.last, limits(chunk.run_id, chunk.behavior, chunk.attempt))
                points = Points.unpack(chunk.steps, chunk.times, chunk.values).within(Window(window.first, until))
                found[chunk.run_id, chunk.behavior, chunk.key].append(points)
        return {place: Points.joined(each) for place, each in found.items()}

    def places(
        self, run_ids: Sequence[str], keys: Sequence[str], behavior: str | None = None
    ) -> list[tuple[str, str, str]]:
        """Return run, behavior and key of the metrics that have points: those of the runs in their order."""
        columns = (LatestMetric.run_id, LatestMetric.behavior, LatestMetric.key)
        found: list[tuple[str, str, str]] = []
        for some in parts(run_ids):
            query = select(*columns).where(*_of(LatestMetric, some, keys, behavior)).order_by(*columns)
            rows = [(run_id, of_behavior, key) for run_id, of_behavior, key in self._session.execute(query)]
            found += sorted(rows, key=lambda place: some.index(place[0]))
        return found

    def keys(self, run_ids: Sequence[str]) -> list[str]:
        """Return the keys that at least one of the runs has recorded, sorted."""
        query = select(LatestMetric.key).distinct()
        found = (self._session.scalars(query.where(LatestMetric.run_id.in_(some))) for some in parts(run_ids))
        return sorted({key for keys in found for key in keys})

    def listed(
        self, run_ids: Sequence[str], wanted: Sequence[ListedMetric]
    ) -> dict[str, dict[ListedMetric, float | None]]:
        """Return the wanted values of many runs at once; None where a run has no such number."""
        found = {run_id: dict[ListedMetric, float | None].fromkeys(wanted) for run_id in run_ids}
        keys = {each.key for each in wanted}
        for some in parts(run_ids) if keys else ():
            query = select(LatestMetric).where(LatestMetric.run_id.in_(some), LatestMetric.key.in_(keys))
            for row in self._session.scalars(query):
                for each in wanted:
                    value: float | None = getattr(row, column_of(each).key)
                    if row.key == each.key and each.behavior in {None, row.behavior} and value is not None:
                        other = found[row.run_id][each]
                        found[row.run_id][each] = value if other is None else each.choose(other, value)
        return found

    def stale(self, limit: int) -> list[tuple[str, str, str]]:
        """Return run, behavior and key of metrics whose extremes are not known up to their newest step."""
        query = select(LatestMetric.run_id, LatestMetric.behavior, LatestMetric.key).where(text(STALE_SQL))
        return [(row.run_id, row.behavior, row.key) for row in self._session.execute(query.limit(limit))]

    def renew_extremes(self, run_id: str, behavior: str, key: str) -> None:
        """Compute the extremes of a metric from its history. The run is locked: nothing is appended meanwhile."""
        history = self.history(run_id, behavior, key)
        same = _same(LatestMetric, run_id, behavior, key)
        values = {"highest": None, "lowest": None} if history is None else _extremes(history)
        self._session.execute(update(LatestMetric).where(*same).values(**values, extremes_step=LatestMetric.step))

    def append(self, run_id: str, attempt: int, points: Iterable[MetricPoint]) -> None:
        """Add points of an attempt. Those not beyond its newest step of a key are dropped: adding twice is safe."""
        by_key: defaultdict[tuple[str, str], list[MetricPoint]] = defaultdict(list)
        for point in points:
            by_key[point.behavior, point.key].append(point)
        latest = []
        for (behavior, key), group in sorted(by_key.items()):
            added = self._append(run_id, attempt, behavior, key, Points.of(group))
            if len(added):
                values = _newest(added) | _extremes(added) | {"extremes_step": int(added.steps[-1])}
                latest.append({"run_id": run_id, "behavior": behavior, "key": key} | values)
        self._upsert_latest(latest)

    def rewind(self, run_id: str) -> None:
        """Set the newest values back to what the present attempt did not supersede (called when it begins)."""
        latest = self.latest(run_id)
        histories = self.histories([run_id], list({metric.key for metric in latest}))
        for metric in latest:
            history = histories[run_id, metric.behavior, metric.key]
            same = _same(LatestMetric, run_id, metric.behavior, metric.key)
            if not len(history):
                self._session.execute(delete(LatestMetric).where(*same))
            elif int(history.steps[-1]) != metric.step:
                values = _newest(history) | _extremes(history) | {"extremes_step": int(history.steps[-1])}
                self._session.execute(update(LatestMetric).where(*same).values(values))

    def _limits(self, run_ids: Sequence[str]) -> Callable[[str, str, int], int]:
        """Return a function of run, behavior and attempt: the step up to which that attempt's points still count."""
        query = (
            select(Attempt.run_id, Attempt.number, Attempt.resume_step, Checkpoint.steps)
            .outerjoin(Checkpoint, Checkpoint.id == Attempt.resumed_from)
            .where(Attempt.run_id.in_(run_ids))
        )
        restarts: defaultdict[str, list[tuple[int, int, Mapping[str, int] | None]]] = defaultdict(list)
        for run_id, number, resume_step, steps in self._session.execute(query):
            restarts[run_id].append((number, resume_step, steps))

        @cache
        def limit(run_id: str, behavior: str, attempt: int) -> int:
            later = (_restored(step, steps, behavior) for number, step, steps in restarts[run_id] if number > attempt)
            return min(later, default=NO_LIMIT)

        return limit

    def _append(self, run_id: str, attempt: int, behavior: str, key: str, points: Points) -> Points:
        """Add to one key's history; return what was new."""
        same = (*_same(MetricChunk, run_id, behavior, key), MetricChunk.attempt == attempt)
        last = self._session.execute(
            select(MetricChunk.number, MetricChunk.steps, MetricChunk.times, MetricChunk.values)
            .where(*same)
            .order_by(MetricChunk.number.desc())
            .limit(1)
        ).one_or_none()
        number, chunk = (0, Points.empty()) if last is None else (last[0], Points.unpack(*last[1:]))
        new = points.after(int(chunk.steps[-1])) if len(chunk) else points
        if not len(new):
            return new
        open_chunk = last is not None and len(chunk) < CHUNK_POINTS
        pending = chunk + new if open_chunk else new
        if open_chunk:
            self._session.execute(
                update(MetricChunk).where(*same, MetricChunk.number == number).values(_columns(pending[:CHUNK_POINTS]))
            )
            pending = pending[CHUNK_POINTS:]
        first = 0 if last is None else number + 1
        rows = [
            {"run_id": run_id, "behavior": behavior, "key": key, "attempt": attempt, "number": first + index}
            | _columns(pending[start : start + CHUNK_POINTS])
            for index, start in enumerate(range(0, len(pending), CHUNK_POINTS))
        ]
        if rows:
            self._session.execute(insert(MetricChunk), rows)
        return new

    def _upsert_latest(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        statement = upsert(self._session, LatestMetric)
        keys = (LatestMetric.run_id, LatestMetric.behavior, LatestMetric.key)
        new: dict[str, Any] = {name: statement.excluded[name] for name in ("step", "value", "at")}
        # Extremes known up to the step before go on; others stay stale, and the controller computes them.
        known = LatestMetric.extremes_step == LatestMetric.step
        for name, beyond in (("highest", operator.gt), ("lowest", operator.lt)):
            old, added = getattr(LatestMetric, name), statement.excluded[name]
            new[name] = case((or_(old.is_(None), beyond(added, old)), func.coalesce(added, old)), else_=old)
        new["extremes_step"] = case((known, statement.excluded["extremes_step"]), else_=LatestMetric.extremes_step)
        self._session.execute(statement.on_conflict_do_update(index_elements=keys, set_=new), rows)


def column_of(metric: ListedMetric) -> InstrumentedAttribute[float | None]:
    """Return the column that has the number of a list's metric."""
    return {"last": LatestMetric.value, "max": LatestMetric.highest, "min": LatestMetric.lowest}[metric.which]


def values_by_run(metric: ListedMetric) -> Subquery:
    """Select the number of each run that has one, as `run_id` and `value`."""
    column = column_of(metric)
    chosen = func.min(column) if metric.which == "min" else func.max(column)
    query = select(LatestMetric.run_id, chosen.label("value"))
    query = query.where(LatestMetric.key == metric.key, column.is_not(None))
    if metric.behavior is not None:
        query = query.where(LatestMetric.behavior == metric.behavior)
    return query.group_by(LatestMetric.run_id).subquery("listed_metric")


def _of(
    model: type[LatestMetric | MetricChunk], run_ids: Sequence[str], keys: Sequence[str], behavior: str | None
) -> list[ColumnElement[bool]]:
    """Return the conditions for the rows of these metrics; `behavior` None: of any behavior."""
    same: list[ColumnElement[bool]] = [model.run_id.in_(run_ids), model.key.in_(keys)]
    return same if behavior is None else [*same, model.behavior == behavior]


def _same(
    model: type[LatestMetric | MetricChunk], run_id: str, behavior: str, key: str
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for the rows of one metric."""
    return model.run_id == run_id, model.behavior == behavior, model.key == key


def _newest(points: Points) -> dict[str, Any]:
    value = float(points.values[-1])
    return {
        "step": int(points.steps[-1]),
        "value": value if math.isfinite(value) else None,
        "at": float(points.times[-1]),
    }


def _extremes(points: Points) -> dict[str, float | None]:
    """Return the highest and lowest of the values that are finite numbers."""
    finite = points.values[np.isfinite(points.values)]
    return {
        "highest": float(finite.max()) if len(finite) else None,
        "lowest": float(finite.min()) if len(finite) else None,
    }


def _columns(points: Points) -> dict[str, Any]:
    steps, times, values = points.pack()
    return {
        "count": len(points),
        "first_step": int(points.steps[0]),
        "last_step": int(points.steps[-1]),
        "steps": steps,
        "times": times,
        "values": values,
    }


def _restored(resume_step: int, steps: Mapping[str, int] | None, behavior: str) -> int:
    """Return the step at which an attempt took up a behavior (with no name: the run as a whole)."""
    if steps is None or not behavior:
        return resume_step
    return int(steps.get(behavior, 0))
