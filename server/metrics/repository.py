"""Metrics in the database: what attempts append, what readers see, and what the controller makes of it.

An append is one row of the tail, whatever number of keys it has. The controller packs the tail into chunks of one
metric each, and into the rows of newest values. Readers join both: the tail first, then what is packed. A packing that
commits in between has moved points from the one to the other; in this order they are read twice then, which their steps
tell, and never missed.

The history carries the attempt that recorded it. An attempt that resumed at step s supersedes what earlier attempts had
recorded beyond s: those points are hidden from every reader at once, so that a curve never runs twice, and deleted when
the new attempt begins to write.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    Select,
    Subquery,
    and_,
    delete,
    exists,
    false,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.orm import InstrumentedAttribute, Session

from server.checkpoints.models import Checkpoint
from server.kit.db.clock import now
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository, upsert
from server.kit.db.texts import storable
from server.kit.settings import MetricsSettings
from server.kit.states import LEASED
from server.metrics.models import OPEN_SQL, LatestMetric, MetricArchive, MetricChunk, MetricTail
from server.metrics.points import (
    CHUNK_POINTS,
    EVERY_STEP,
    NO_LIMIT,
    ListedMetric,
    MetricPoint,
    NewestValue,
    Place,
    Points,
    Window,
)
from server.runs.attempts import AttemptFence
from server.runs.models import BEING_DELETED, Attempt, Run

NAME_LENGTH = 200
"""Of a behavior and of a key, in the columns of the database. Longer ones are cut when they are appended: they must not
stop the packing of a run's other metrics later."""
APPENDS = 32
"""A run's tail with so many rows is packed."""
SECONDS = 60.0
"""A tail whose oldest row is so old is packed: lists are sorted by values of that age at most."""
LARGEST = 256
"""Rows of the tail that are packed at once."""
SMALL = 8
"""Small chunks of a metric that are joined."""
NAMES = 300
"""Metrics in one condition: each takes up to three of the 999 parameters that SQLite has in any build."""
DAY = 86400.0
Part = TypeVar("Part")

Name = tuple[str, str]
"""Behavior and key."""
AttemptMetric = tuple[int, str, str]
"""Attempt, behavior and key."""
ByAttempt = Mapping[int, Points]
"""The points of a metric by the attempt that recorded them, in the order of the attempts."""

_NAME = (MetricChunk.behavior, MetricChunk.key)
_ATTEMPT_METRIC = (MetricChunk.attempt, *_NAME)


def pack(points: Iterable[MetricPoint]) -> bytes:
    """Pack the points of one append, by behavior and key; of several with one step the last one counts.

    A line of JSON names behaviors, keys and their numbers of points in order; steps (int64), times (float64) and values
    (float64) of all points follow as three little-endian columns. All of it is compressed with zlib: names, steps and
    times of a summary repeat themselves, so that a point takes about 24 bytes with its name.
    """
    by_name: defaultdict[str, defaultdict[str, list[MetricPoint]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        by_name[storable(point.behavior, NAME_LENGTH)][storable(point.key, NAME_LENGTH)].append(point)
    metrics = [
        (behavior, [(key, Points.of(of_key)) for key, of_key in keys.items()]) for behavior, keys in by_name.items()
    ]
    names = [[behavior, [[key, len(of_key)] for key, of_key in keys]] for behavior, keys in metrics]
    columns = Points.joined([of_key for _, keys in metrics for _, of_key in keys]).pack()
    header = json.dumps(names, separators=(",", ":"), ensure_ascii=False).encode()
    return zlib.compress(header + b"\n" + b"".join(columns), level=1)


def unpack(data: bytes) -> Iterator[tuple[Name, Points]]:
    """Iterate over the metrics of an append, and the points of each."""
    header, _, columns = zlib.decompress(data).partition(b"\n")
    size = len(columns) // 3
    points = Points.unpack(columns[:size], columns[size : 2 * size], columns[2 * size :])
    start = 0
    for behavior, keys in json.loads(header):
        for key, count in keys:
            yield (behavior, key), points[start : start + count]
            start += count


class MetricWriter:
    """Writes metrics of one attempt."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def append(self, points: Sequence[MetricPoint]) -> None:
        """Append points with one statement. Appending the same points twice is safe. Raises LeaseLost, RunNotFound."""
        while points:
            with self._fence.database.write(once=True) as session:
                if MetricRepository(session).append(self._fence.run_id, self._fence.number, points):
                    return
            self._fence.check()  # else an append of the same attempt took the number in the same moment: take the next


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

    def limits(self, run_id: str, behavior: str) -> Iterator[tuple[int, int]]:
        """Iterate over attempts and limits: an attempt up to this one has nothing beyond the limit that counts.

        Of attempts with one limit only the last one comes, and none of which every point counts. Limits ascend.
        """
        attempts = (restart.attempt for restart in self.restarts[run_id])
        for limit, alike in groupby(attempts, lambda attempt: self.limit(run_id, behavior, attempt)):
            if limit < NO_LIMIT:
                yield max(alike), limit


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

    def latest(self, run_id: str) -> list[NewestValue]:
        """Return the newest value of every key of a run, by behavior and key."""
        return sorted(self.newest([run_id]).values(), key=lambda newest: (newest.behavior, newest.key))

    def scores(self, run_id: str) -> dict[str, dict[str, float]]:
        """Return the newest value of every key of a run that is a finite number, by behavior and key."""
        scores: dict[str, dict[str, float]] = {}
        for metric in self.latest(run_id):
            if metric.value is not None:
                scores.setdefault(metric.behavior, {})[metric.key] = metric.value
        return scores

    def newest(self, run_ids: Sequence[str], keys: Sequence[str] | None = None) -> dict[Place, NewestValue]:
        """Return the newest value of each of these keys (None: of every key) in each run and behavior."""
        newest: dict[Place, NewestValue] = {}
        for part in parts(run_ids):
            tail = self._tail(part, keys, None, Superseding(self._session, part))
            newest |= _packed_newest(self._session, _of(LatestMetric, part, keys, None))
            for place, by_attempt in tail.items():
                value = NewestValue.of(*place, Points.joined(list(by_attempt.values())))
                newest[place] = newest[place].joined(value) if place in newest else value
        return newest

    def listed(
        self, run_ids: Sequence[str], metrics: Sequence[ListedMetric]
    ) -> dict[str, dict[ListedMetric, float | None]]:
        """Return these numbers of many runs at once; None where a run has no such number."""
        numbers = {run_id: dict[ListedMetric, float | None].fromkeys(metrics) for run_id in run_ids}
        keys = sorted({metric.key for metric in metrics})
        for (run_id, behavior, key), newest in self.newest(run_ids, keys).items() if keys else ():
            for metric in metrics:
                value = {"last": newest.value, "max": newest.highest, "min": newest.lowest}[metric.which]
                if key == metric.key and metric.behavior in {None, behavior} and value is not None:
                    former = numbers[run_id][metric]
                    numbers[run_id][metric] = value if former is None else metric.choose(former, value)
        return numbers

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
                points_by_place[place] = {attempt: Points.joined(pieces).increasing() for attempt, pieces in of_place}
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

    def _tail(
        self, run_ids: Sequence[str], keys: Sequence[str] | None, behavior: str | None, superseding: Superseding
    ) -> dict[Place, ByAttempt]:
        """Return the points in the tail of runs that no later attempt superseded, without metrics that have none."""
        query = select(MetricTail.run_id, MetricTail.attempt, MetricTail.points).where(MetricTail.run_id.in_(run_ids))
        gathered: defaultdict[Place, defaultdict[int, list[Points]]] = defaultdict(lambda: defaultdict(list))
        for run_id, attempt, packed in self._session.execute(query.order_by(MetricTail.attempt, MetricTail.number)):
            for (of_behavior, key), points in unpack(packed):
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
        places = {*tail, *((run_id, of_behavior, key) for run_id, of_behavior, key in rows)}
        return sorted(places, key=lambda place: (order[place[0]], place))


def values_by_run(metric: ListedMetric) -> Subquery:
    """Select the number of each run that has one, as `run_id` and `value`: as of the last packing of its tail."""
    column = {"last": LatestMetric.value, "max": LatestMetric.highest, "min": LatestMetric.lowest}[metric.which]
    chosen = func.min(column) if metric.which == "min" else func.max(column)
    query = select(LatestMetric.run_id, chosen.label("value"))
    query = query.where(LatestMetric.key == metric.key, column.is_not(None))
    if metric.behavior is not None:
        query = query.where(LatestMetric.behavior == metric.behavior)
    return query.group_by(LatestMetric.run_id).subquery("listed_metric")


class _End(NamedTuple):
    """The end of a metric's history within an attempt."""

    number: int = -1
    """Of the last chunk; -1 where there is none."""
    step: int = -NO_LIMIT
    """Of the last point."""
    open: int = 0
    """How many chunks are not full."""
    points: int = 0
    """In those."""


class PackingRepository(Repository):
    """Packs the tails of runs into chunks, keeps newest values, and deletes what is superseded. The run is locked.

    A packing adds a small chunk to each metric. The small ones are joined when they make a full one, or when there are
    `SMALL` of them: so a point is written two or three times in its life, not once for each later one, and a history of
    any length has few small chunks.
    """

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

    def pack(self, run_id: str) -> int:
        """Pack the oldest appends of a run; return how many rows of the tail there were."""
        query = select(MetricTail.attempt, MetricTail.number, MetricTail.points).where(MetricTail.run_id == run_id)
        rows = self._session.execute(query.order_by(MetricTail.attempt, MetricTail.number).limit(LARGEST)).all()
        if not rows:
            return 0
        superseding = Superseding(self._session, [run_id])
        gathered: defaultdict[AttemptMetric, list[Points]] = defaultdict(list)
        for row in rows:
            for (behavior, key), points in unpack(row.points):
                until = Window(last=superseding.limit(run_id, behavior, row.attempt))
                gathered[row.attempt, behavior, key].append(points.within(until))
        ends = self._ends(run_id, gathered)
        added = {}
        for metric, pieces in sorted(gathered.items()):
            points = Points.joined(pieces).increasing().after(ends.get(metric, _End()).step)
            if len(points):
                added[metric] = points
        self._add(run_id, added, ends)
        newest: dict[Place, NewestValue] = {}
        for part in parts(sorted({key for _, _, key in added})):
            newest |= _packed_newest(self._session, _of(LatestMetric, [run_id], part, None))
        changed: dict[Place, NewestValue] = {}
        for (_, behavior, key), points in added.items():
            place, value = (run_id, behavior, key), NewestValue.of(run_id, behavior, key, points)
            former = changed.get(place) or newest.get(place)
            changed[place] = value if former is None else former.joined(value)
        self._set_latest(changed.values())
        last = and_(MetricTail.attempt == rows[-1].attempt, MetricTail.number <= rows[-1].number)
        packed = or_(MetricTail.attempt < rows[-1].attempt, last)
        self._session.execute(delete(MetricTail).where(MetricTail.run_id == run_id, packed))
        return len(rows)

    def _ends(self, run_id: str, metrics: Collection[AttemptMetric]) -> dict[AttemptMetric, _End]:
        """Return the ends of the histories of metrics, without those that have none.

        Chunks that are not full are at the end, and have an index. Of a metric without any, all chunks are looked at:
        a new one, or one whose last chunk is exactly full.
        """
        columns = (func.max(MetricChunk.number), func.max(MetricChunk.last_step))
        query = select(*_ATTEMPT_METRIC, *columns, func.count(), func.sum(MetricChunk.count))
        query = query.where(MetricChunk.run_id == run_id).group_by(*_ATTEMPT_METRIC)
        opened = query.where(MetricChunk.attempt.in_({attempt for attempt, _, _ in metrics}), text(OPEN_SQL))
        ends = {(row[0], row[1], row[2]): _End(*row[3:]) for row in self._session.execute(opened)}
        for part in _slices([metric for metric in metrics if metric not in ends]):
            for attempt, behavior, key, number, step, *_ in self._session.execute(
                query.where(tuple_(*_ATTEMPT_METRIC).in_(part))
            ):
                ends[attempt, behavior, key] = _End(number, step)
        return ends

    def _add(self, run_id: str, added: Mapping[AttemptMetric, Points], ends: Mapping[AttemptMetric, _End]) -> None:
        """Add points to the chunks of metrics."""
        joined = [
            metric
            for metric, points in added.items()
            if (end := ends.get(metric, _End())).open
            and (end.open + 1 >= SMALL or end.points + len(points) >= CHUNK_POINTS)
        ]
        taken: dict[AttemptMetric, tuple[int, list[Points]]] = {}
        """Of chunks that are not full, which are deleted: the number of the first one, and their points."""
        for part in _slices(joined):
            chunks = (MetricChunk.run_id == run_id, tuple_(*_ATTEMPT_METRIC).in_(part), text(OPEN_SQL))
            for row in self._session.execute(
                select(*MetricChunk.__table__.c).where(*chunks).order_by(MetricChunk.number)
            ):
                _, pieces = taken.setdefault((row.attempt, row.behavior, row.key), (row.number, []))
                pieces.append(Points.unpack(row.steps, row.times, row.values))
            self._session.execute(delete(MetricChunk).where(*chunks))
        rows: list[dict[str, object]] = []
        for metric, points in added.items():
            number, earlier = taken.get(metric, (ends.get(metric, _End()).number + 1, []))
            rows += _chunks(run_id, metric, number, Points.joined([*earlier, points]))
        _insert_chunks(self._session, rows)

    def _set_latest(self, newest: Collection[NewestValue]) -> None:
        if newest:
            statement = upsert(self._session, LatestMetric)
            columns = ("step", "value", "at", "highest", "lowest", "extremes_step")
            self._session.execute(
                statement.on_conflict_do_update(
                    index_elements=(LatestMetric.run_id, LatestMetric.behavior, LatestMetric.key),
                    set_={name: statement.excluded[name] for name in columns},
                ),
                [LatestMetric.columns(value) for value in newest],
            )

    def rewind(self, run_id: str) -> None:
        """Delete packed points that the present attempt has superseded, and set newest values back to what is left.

        However long the history is, it reads the points of superseded chunks alone, which an index finds, and of the
        other chunks of their metrics what they say of themselves.
        """
        superseding = Superseding(self._session, [run_id])
        if len(superseding.restarts[run_id]) < 2:
            return
        behaviors = select(LatestMetric.behavior).where(LatestMetric.run_id == run_id).distinct()
        limits = [
            (behavior, *limit)
            for behavior in self._session.scalars(behaviors.order_by(LatestMetric.behavior)).all()
            for limit in superseding.limits(run_id, behavior)
        ]
        changed: set[Name] = set()
        for part in _slices(limits):
            # The index of the last step leads to the few chunks that may be meant.
            superseded = [MetricChunk.run_id == run_id, MetricChunk.last_step > min(limit for *_, limit in part)]
            of_attempts = [
                (and_(MetricChunk.behavior == behavior, MetricChunk.attempt <= attempt), limit)
                for behavior, attempt, limit in part
            ]
            beyond = or_(*(and_(whose, MetricChunk.last_step > limit) for whose, limit in of_attempts))
            partly = or_(*(and_(whose, MetricChunk.first_step <= limit) for whose, limit in of_attempts))
            cut = []
            for row in self._session.execute(
                select(*MetricChunk.__table__.c).where(*superseded, beyond, partly)
            ).mappings():
                until = superseding.limit(run_id, row["behavior"], row["attempt"])
                points = Points.unpack(row["steps"], row["times"], row["values"]).within(Window(last=until))
                if len(points):
                    cut.append({**row, **MetricChunk.columns(points)})
            deleted = self._session.execute(delete(MetricChunk).where(*superseded, beyond).returning(*_NAME))
            changed |= {(behavior, key) for behavior, key in deleted}
            _insert_chunks(self._session, cut)
        for names in _slices(sorted(changed)):
            self._renew_latest(run_id, names)

    def _renew_latest(self, run_id: str, names: Sequence[Name]) -> None:
        """Compute the newest values of metrics anew from their chunks."""
        of_run = MetricChunk.run_id == run_id
        summary = (
            select(
                *_NAME,
                func.max(MetricChunk.last_step).label("last_step"),
                func.max(MetricChunk.highest).label("highest"),
                func.min(MetricChunk.lowest).label("lowest"),
            )
            .where(of_run, tuple_(*_NAME).in_(names))
            .group_by(*_NAME)
            .subquery()
        )
        is_last = and_(*(MetricChunk.__table__.c[name] == summary.c[name] for name in ("behavior", "key", "last_step")))
        columns = (*_NAME, MetricChunk.steps, MetricChunk.times, MetricChunk.values)
        query = select(*columns, summary.c.highest, summary.c.lowest).join(summary, is_last).where(of_run)
        newest: dict[Name, NewestValue] = {}
        for behavior, key, steps, times, values, highest, lowest in self._session.execute(
            query.order_by(MetricChunk.attempt)
        ):
            last = NewestValue.of(run_id, behavior, key, Points.unpack(steps, times, values))
            newest[behavior, key] = replace(last, highest=highest, lowest=lowest)
        self._set_latest(newest.values())
        lost = [name for name in names if name not in newest]
        if lost:
            of_names = tuple_(LatestMetric.behavior, LatestMetric.key).in_(lost)
            self._session.execute(delete(LatestMetric).where(LatestMetric.run_id == run_id, of_names))


class AgedRun(NamedTuple):
    """A run with metrics that are old enough for a rule."""

    id: str
    thinned_before: float | None
    """Time before which its points are thinned, None: never."""
    ended_at: float | None


class MetricRetentionRepository(Repository):
    """Metrics of runs as retention sees them: which are to be archived or thinned, and the rows of both."""

    def archives(self, run_ids: Sequence[str]) -> list[MetricArchive]:
        """Return the files of those of these runs that have one."""
        return [
            archive
            for part in parts(run_ids)
            for archive in self._session.scalars(select(MetricArchive).where(MetricArchive.run_id.in_(part)))
        ]

    def to_archive(self, settings: MetricsSettings, limit: int) -> list[AgedRun]:
        """Return ended runs whose metrics are to be archived, those that ended first at the beginning.

        A tail is packed before.
        """
        old = _older(Run.finished_at, settings.archive_days, settings.project_archive_days)
        query = _AGED.where(
            old,
            exists().where(MetricChunk.run_id == Run.id),
            ~exists().where(MetricArchive.run_id == Run.id),
            ~exists().where(MetricTail.run_id == Run.id),
        )
        return self._aged(query.order_by(Run.finished_at).limit(limit), settings)

    def archived_to_thin(self, settings: MetricsSettings, limit: int) -> list[AgedRun]:
        """Return ended runs whose every point is old, and whose file was not thinned enough."""
        thinned = and_(MetricArchive.thinned_to.is_not(None), MetricArchive.thinned_to <= settings.thinned_points)
        old = _older(Run.finished_at, settings.full_days, settings.project_full_days)
        query = _AGED.join(MetricArchive, MetricArchive.run_id == Run.id).where(old, ~thinned)
        return self._aged(query.order_by(Run.finished_at).limit(limit), settings)

    def to_thin(self, settings: MetricsSettings, after: str, limit: int) -> list[AgedRun]:
        """Return the next runs behind `after`, in the order of their ids, that may have old points in the database."""
        old = _older(Run.started_at, settings.full_days, settings.project_full_days)
        query = _AGED.where(Run.id > after, old, exists().where(MetricChunk.run_id == Run.id))
        return self._aged(query.order_by(Run.id).limit(limit), settings)

    def long(self, run_id: str, limit: int) -> list[Name]:
        """Return behavior and key of the metrics of a run of which chunks have more than `limit` points."""
        query = select(*_NAME).where(MetricChunk.run_id == run_id).group_by(*_NAME)
        rows = self._session.execute(query.having(func.sum(MetricChunk.count) > limit))
        return [(behavior, key) for behavior, key in rows]

    def stored(self, run_id: str) -> tuple[str | None, int]:
        """Return where the points of a run are: the path of its file, and how many points its chunks have."""
        path = self._session.scalar(select(MetricArchive.path).where(MetricArchive.run_id == run_id))
        count = self._session.scalar(select(func.sum(MetricChunk.count)).where(MetricChunk.run_id == run_id))
        return path, count or 0

    def replace(self, place: Place, by_attempt: ByAttempt) -> None:
        """Give a metric of a locked run, whose tail is empty, other chunks."""
        run_id, behavior, key = place
        self._session.execute(delete(MetricChunk).where(*_of(MetricChunk, [run_id], [key], behavior)))
        for attempt, points in by_attempt.items():
            _insert_chunks(self._session, _chunks(run_id, (attempt, behavior, key), 0, points))

    def set_archive(self, archive: MetricArchive) -> None:
        """Enter the file of a locked run, in place of an older one."""
        archive.archived_at = self.clock()
        self._session.merge(archive)
        self._session.flush()

    def with_leftovers(self) -> list[str]:
        """Return archived runs that still have chunks."""
        archived = exists().where(MetricChunk.run_id == MetricArchive.run_id)
        return list(self._session.scalars(select(MetricArchive.run_id).where(archived)))

    def drop(self, run_id: str) -> bool:
        """Delete the chunks of one metric of a run; return whether there were any."""
        name = self._session.execute(select(*_NAME).where(MetricChunk.run_id == run_id).limit(1)).one_or_none()
        if name is not None:
            self._session.execute(delete(MetricChunk).where(*_of(MetricChunk, [run_id], [name.key], name.behavior)))
        return name is not None

    def _aged(self, query: Select[str, str, float | None, float], settings: MetricsSettings) -> list[AgedRun]:
        runs = []
        for run_id, project, finished_at, clock in self._session.execute(query):
            days = settings.full_days_of(project)
            runs.append(AgedRun(run_id, None if days is None else clock - days * DAY, finished_at))
        return runs


_AGED = select(Run.id, Run.project, Run.finished_at, now()).where(Run.id.not_in(BEING_DELETED))


def _older(
    column: InstrumentedAttribute[float | None], days: float | None, of_projects: Mapping[str, float | None]
) -> ColumnElement[bool]:
    """Return the condition that a time of a run is as many days ago as the rule of its project says."""
    rules = [
        and_(Run.project == project, column <= now() - of_project * DAY)
        for project, of_project in of_projects.items()
        if of_project is not None
    ]
    if days is not None:
        rules.append(and_(Run.project.not_in(of_projects), column <= now() - days * DAY))
    return or_(false(), *rules)


def _of(
    model: type[LatestMetric | MetricChunk], run_ids: Sequence[str], keys: Sequence[str] | None, behavior: str | None
) -> list[ColumnElement[bool]]:
    """Return the conditions for the rows of these metrics; None: of any key, of any behavior."""
    same: list[ColumnElement[bool]] = [model.run_id.in_(run_ids)]
    same += [] if keys is None else [model.key.in_(keys)]
    return same if behavior is None else [*same, model.behavior == behavior]


def _packed_newest(session: Session, conditions: Sequence[ColumnElement[bool]]) -> dict[Place, NewestValue]:
    """Return newest values as of the last packing."""
    columns = [LatestMetric.__table__.c[name] for name in NewestValue.__dataclass_fields__]
    rows = (NewestValue(*row) for row in session.execute(select(*columns).where(*conditions)))
    return {(newest.run_id, newest.behavior, newest.key): newest for newest in rows}


def _chunks(run_id: str, metric: AttemptMetric, number: int, points: Points) -> list[dict[str, object]]:
    """Return the rows of chunks that hold points, numbered from `number` on."""
    attempt, behavior, key = metric
    place = {"run_id": run_id, "behavior": behavior, "key": key, "attempt": attempt}
    return [
        {**place, "number": number + index, **MetricChunk.columns(points[start : start + CHUNK_POINTS])}
        for index, start in enumerate(range(0, len(points), CHUNK_POINTS))
    ]


def _insert_chunks(session: Session, rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        session.execute(insert(MetricChunk), rows)


def _slices(values: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Cut a list of metrics for one condition."""
    return (values[start : start + NAMES] for start in range(0, len(values), NAMES))
