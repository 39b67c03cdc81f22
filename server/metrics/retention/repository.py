"""Runs whose metrics are to be archived or thinned, and the rows of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, exists, false, func, or_, select, text
from sqlalchemy.orm import InstrumentedAttribute

from server.kit.db.clock import now
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository
from server.kit.metrics_settings import MetricsSettings
from server.metrics.compaction.repository import chunks_of
from server.metrics.models import STALE_SQL, LatestMetric, MetricArchive, MetricChunk, MetricTail
from server.metrics.points import Place, Points
from server.metrics.superseding.repository import insert_chunks
from server.runs.models import BEING_DELETED, Run

DAY = 86400.0


@dataclass(frozen=True)
class Archive:
    """The Parquet file of a run."""

    run_id: str
    path: str
    """In the artifact store."""
    size: int
    """Bytes."""
    sha256: str
    points: int
    thinned_to: int | None = None
    """Maximum number of points of each metric, None: it has every point."""


@dataclass(frozen=True)
class AgedRun:
    """A run with metrics that are old enough for a rule."""

    id: str
    thinned_before: float | None
    """Time before which its points are thinned, None: never."""
    ended_at: float | None


class MetricRetentionRepository(Repository):
    """Metrics of runs as retention sees them."""

    def archives(self, run_ids: Sequence[str]) -> list[Archive]:
        """Return the files of those of these runs that have one."""
        rows = (
            self._session.execute(select(*_ARCHIVE).where(MetricArchive.run_id.in_(part))) for part in parts(run_ids)
        )
        return [Archive(*row) for part in rows for row in part]

    def to_archive(self, settings: MetricsSettings, limit: int) -> list[AgedRun]:
        """Return ended runs whose metrics are to be archived, those that ended first at the beginning.

        A tail, or extremes that are not known yet, come first: the history is needed for them.
        """
        old = _older(Run.finished_at, settings.archive_days, settings.project_archive_days)
        query = _AGED.where(
            old,
            exists().where(MetricChunk.run_id == Run.id),
            ~exists().where(MetricArchive.run_id == Run.id),
            ~exists().where(MetricTail.run_id == Run.id),
            ~exists().where(LatestMetric.run_id == Run.id, text(f"({STALE_SQL})")),
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

    def long(self, run_id: str, limit: int) -> list[tuple[str, str]]:
        """Return behavior and key of the metrics of a run of which chunks have more than `limit` points."""
        names = (MetricChunk.behavior, MetricChunk.key)
        query = select(*names).where(MetricChunk.run_id == run_id).group_by(*names)
        rows = self._session.execute(query.having(func.sum(MetricChunk.count) > limit))
        return [(behavior, key) for behavior, key in rows]

    def stored(self, run_id: str) -> int:
        """Return how many points the chunks of a run have, superseded ones included."""
        return self._session.scalar(select(func.sum(MetricChunk.count)).where(MetricChunk.run_id == run_id)) or 0

    def replace(self, place: Place, by_attempt: Mapping[int, Points]) -> None:
        """Give a metric of a locked run, whose tail is empty, other chunks."""
        run_id, behavior, key = place
        same = (MetricChunk.run_id == run_id, MetricChunk.behavior == behavior, MetricChunk.key == key)
        self._session.execute(delete(MetricChunk).where(*same))
        rows: list[dict[str, Any]] = []
        for attempt, points in by_attempt.items():
            rows += chunks_of(run_id, (attempt, behavior, key), 0, points)
        insert_chunks(self._session, rows)

    def set_archive(self, archive: Archive) -> None:
        """Enter the file of a locked run, in place of an older one."""
        self._session.merge(MetricArchive(**vars(archive), archived_at=self.clock()))
        self._session.flush()

    def with_leftovers(self) -> list[str]:
        """Return archived runs that still have chunks."""
        archived = exists().where(MetricChunk.run_id == MetricArchive.run_id)
        return list(self._session.scalars(select(MetricArchive.run_id).where(archived)))

    def drop(self, run_id: str) -> bool:
        """Delete the chunks of one metric of a run; return whether there were any."""
        names = (MetricChunk.behavior, MetricChunk.key)
        name = self._session.execute(select(*names).where(MetricChunk.run_id == run_id).limit(1)).one_or_none()
        if name is not None:
            same = (MetricChunk.run_id == run_id, MetricChunk.behavior == name[0], MetricChunk.key == name[1])
            self._session.execute(delete(MetricChunk).where(*same))
        return name is not None

    def _aged(self, query: Select[str, str, float | None, float], settings: MetricsSettings) -> list[AgedRun]:
        runs = []
        for run_id, project, finished_at, clock in self._session.execute(query):
            days = settings.full_days_of(project)
            runs.append(AgedRun(run_id, None if days is None else clock - days * DAY, finished_at))
        return runs


_AGED = select(Run.id, Run.project, Run.finished_at, now()).where(Run.id.not_in(BEING_DELETED))
_ARCHIVE = tuple(MetricArchive.__table__.c[name] for name in Archive.__dataclass_fields__)


def _older(
    column: InstrumentedAttribute[float | None], days: float | None, of_projects: Mapping[str, float | None]
) -> ColumnElement[bool]:
    """Return the condition that a time of a run is as many days ago as the rule of its project says."""
    every = [
        and_(Run.project == name, column <= now() - own * DAY) for name, own in of_projects.items() if own is not None
    ]
    if days is not None:
        every.append(and_(Run.project.not_in(of_projects), column <= now() - days * DAY))
    return or_(false(), *every)
