"""Which points of an attempt still count, and the removal of those that do not."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, and_, case, delete, func, insert, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from server.checkpoints.models import Checkpoint
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository, upsert
from server.metrics.models import LatestMetric, MetricChunk
from server.metrics.points import NO_LIMIT, NewestValue, Points, Window
from server.runs.models import Attempt

EXTREMES = ("highest", "lowest", "extremes_step")
NAMES = 300
"""Metrics of one condition: SQLite takes 999 parameters in any build."""
Name = tuple[str, str]
"""Behavior and key."""
Range = tuple[str, int, int, int]
"""Behavior, first and last attempt, and the step up to which their points of the behavior count."""
Part = TypeVar("Part")


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
        by_run: defaultdict[str, list[Restart]] = defaultdict(list)
        for run_id, number, step, steps in self._session.execute(query):
            by_run[run_id].append(Restart(number, step, steps))
        return by_run

    def _limit(self, run_id: str, behavior: str, attempt: int) -> int:
        """Return the step up to which an attempt's points of a behavior count."""
        later = (restart.of(behavior) for restart in self.restarts[run_id] if restart.attempt > attempt)
        return min(later, default=NO_LIMIT)

    def bounded(self, run_id: str, behavior: str) -> Iterator[tuple[int, int, int]]:
        """Iterate over first attempt, last attempt and limit of consecutive attempts with one limit.

        The last ones, of which every point counts, are left out.
        """
        first, limits = (
            1,
            [(restart.attempt, self.limit(run_id, behavior, restart.attempt)) for restart in self.restarts[run_id]],
        )
        for (attempt, limit), (_, after) in pairwise(limits):
            if limit != after:
                yield first, attempt, limit
                first = attempt + 1


class RewindRepository(Repository):
    """Deletes superseded points that are packed, and sets the newest values back to what is left.

    However long the history is, it reads the chunks with superseded points, which an index finds, and of others at most
    what they say of themselves: of metrics that may have lost an extreme, or of which no chunk is cut.
    """

    def rewind(self, run_id: str) -> None:
        """Delete what is superseded now. The run is locked."""
        superseding = Superseding(self._session, [run_id])
        if len(superseding.restarts[run_id]) < 2:
            return
        rows = self._session.scalars(select(LatestMetric).where(LatestMetric.run_id == run_id)).all()
        latest = {(row.behavior, row.key): row for row in rows}
        ranges = [
            (behavior, *each)
            for behavior in sorted({behavior for behavior, _ in latest})
            for each in superseding.bounded(run_id, behavior)
        ]
        lost: set[Name] = set()
        newest: dict[Name, NewestValue] = {}
        changed: set[Name] = set()
        for part in parts(ranges):
            for name, highest, lowest in self._delete(run_id, part):
                changed.add(name)
                if _may_be_extreme(latest.get(name), highest, lowest):
                    lost.add(name)
            for name, points, step in self._cut(run_id, part):
                changed.add(name)
                if _may_be_extreme(latest.get(name), *points.after(step).extremes()):
                    lost.add(name)
                last = NewestValue.of(run_id, *name, points.within(Window(last=step)))
                newest[name] = max(newest.get(name, last), last, key=lambda each: each.step)
        self._renew_latest(run_id, {name: latest[name] for name in sorted(changed) if name in latest}, newest, lost)

    def _delete(self, run_id: str, ranges: Sequence[Range]) -> list[tuple[Name, float | None, float | None]]:
        """Delete the chunks that are wholly beyond; return their metrics with highest and lowest value."""
        columns = (MetricChunk.behavior, MetricChunk.key, MetricChunk.highest, MetricChunk.lowest)
        statement = delete(MetricChunk).where(*_beyond(run_id, ranges, MetricChunk.first_step))
        deleted = self._session.execute(statement.returning(*columns))
        return [((row.behavior, row.key), row.highest, row.lowest) for row in deleted]

    def _cut(self, run_id: str, ranges: Sequence[Range]) -> list[tuple[Name, Points, int]]:
        """Cut the chunks that are partly beyond; return their metrics, the points of each, and where it was cut."""
        ours = _beyond(run_id, ranges, MetricChunk.last_step)
        found, left = [], []
        for row in self._session.execute(select(*MetricChunk.__table__.c).where(*ours)).mappings().all():
            points = Points.unpack(row["steps"], row["times"], row["values"])
            step = min(
                limit
                for behavior, first, last, limit in ranges
                if behavior == row["behavior"] and first <= row["attempt"] <= last
            )
            found.append(((row["behavior"], row["key"]), points, step))
            left.append({**row, **MetricChunk.columns(points.within(Window(last=step)))})
        if left:
            self._session.execute(delete(MetricChunk).where(*ours))
            insert_chunks(self._session, left)
        return found

    def _renew_latest(
        self,
        run_id: str,
        latest: Mapping[Name, LatestMetric],
        newest: Mapping[Name, NewestValue],
        lost: Collection[Name],
    ) -> None:
        """Set newest values back. `newest`: the last points of chunks that were cut; `lost`: extremes may be gone."""
        summaries = self._summaries(run_id, [name for name in latest if name in lost or name not in newest])
        steps = {name: summary.step for name, summary in summaries.items() if name not in newest}
        oldest = min((each.step for each in newest.values()), default=NO_LIMIT)
        # A later attempt may have gone on, so that its points are the newest ones.
        names = (MetricChunk.behavior, MetricChunk.key)
        later = select(*names, func.max(MetricChunk.last_step)).group_by(*names)
        for behavior, key, step in self._session.execute(
            later.where(MetricChunk.run_id == run_id, MetricChunk.last_step > oldest)
        ):
            if (behavior, key) in newest and step > newest[behavior, key].step:
                steps[behavior, key] = step
        left = {**newest, **self._last(run_id, steps)}
        rows = []
        for name, row in latest.items():
            if name in left:
                summary, step = summaries.get(name), left[name].step
                known = row.extremes_step == row.step if summary is None else not summary.unknown
                highest, lowest = (row.highest, row.lowest) if summary is None else (summary.highest, summary.lowest)
                extremes = {"highest": highest, "lowest": lowest, "extremes_step": step if known else None}
                rows.append({**LatestMetric.columns(left[name]), **extremes})
        if rows:
            statement = upsert(self._session, LatestMetric)
            new = {name: statement.excluded[name] for name in ("step", "value", "at", *EXTREMES)}
            keys = (LatestMetric.run_id, LatestMetric.behavior, LatestMetric.key)
            self._session.execute(statement.on_conflict_do_update(index_elements=keys, set_=new), rows)
        for some in _slices([name for name in latest if name not in left]):
            theirs = tuple_(LatestMetric.behavior, LatestMetric.key).in_(some)
            self._session.execute(delete(LatestMetric).where(LatestMetric.run_id == run_id, theirs))

    def _summaries(self, run_id: str, names: Sequence[Name]) -> dict[Name, "_Summary"]:
        """Return the summaries of all chunks of metrics, without those that have none."""
        unknown = func.sum(case((MetricChunk.highest.is_(None), 1), else_=0))
        extremes = (func.max(MetricChunk.highest), func.min(MetricChunk.lowest))
        columns = (MetricChunk.behavior, MetricChunk.key)
        query = select(*columns, func.max(MetricChunk.last_step), *extremes, unknown).group_by(*columns)
        summaries: dict[Name, _Summary] = {}
        for part in _slices(names):
            of_names = query.where(MetricChunk.run_id == run_id, tuple_(*columns).in_(part))
            summaries |= {(row[0], row[1]): _Summary(*row[2:]) for row in self._session.execute(of_names)}
        return summaries

    def _last(self, run_id: str, steps: Mapping[Name, int]) -> dict[Name, NewestValue]:
        """Return the newest values of metrics whose newest points are at these steps."""
        newest: dict[Name, NewestValue] = {}
        for part in _slices([(*name, step) for name, step in steps.items()]):
            ends = tuple_(MetricChunk.behavior, MetricChunk.key, MetricChunk.last_step).in_(part)
            query = select(*MetricChunk.__table__.c).where(MetricChunk.run_id == run_id, ends)
            for row in self._session.execute(query.order_by(MetricChunk.attempt)):
                points = Points.unpack(row.steps, row.times, row.values)
                newest[row.behavior, row.key] = NewestValue.of(run_id, row.behavior, row.key, points)
        return newest


class _Summary(NamedTuple):
    """All chunks of a metric."""

    step: int
    """Of the last point."""
    highest: float | None
    lowest: float | None
    unknown: int
    """Chunks that have no extremes: they have no finite number, or are of the release before `0026`."""


def _beyond(run_id: str, ranges: Sequence[Range], step: InstrumentedAttribute[int]) -> list[ColumnElement[bool]]:
    """Return the conditions for the chunks of which this step is beyond the limit of their attempts."""
    beyond = or_(
        *(
            and_(MetricChunk.behavior == behavior, MetricChunk.attempt.between(first, last), step > limit)
            for behavior, first, last, limit in ranges
        )
    )
    # The index of the last step leads to the few chunks that may be meant.
    return [MetricChunk.run_id == run_id, MetricChunk.last_step > min(limit for *_, limit in ranges), beyond]


def _may_be_extreme(latest: LatestMetric | None, highest: float | None, lowest: float | None) -> bool:
    """Return whether points with these extremes may have been the extremes of a metric; None: unknown."""
    if latest is None or latest.highest is None or latest.lowest is None or highest is None or lowest is None:
        return True
    return highest >= latest.highest or lowest <= latest.lowest


def _slices(values: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Cut a list of names for `IN (...)`: each takes up to three parameters."""
    yield from (values[start : start + NAMES] for start in range(0, len(values), NAMES))


def insert_chunks(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert chunks."""
    if rows:
        session.execute(insert(MetricChunk), rows)
