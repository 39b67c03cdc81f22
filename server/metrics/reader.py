"""Reads histories of metrics, from the database, or from the Parquet file of a run that ended long ago.

The curve of a run that continues others begins with their points, each up to the checkpoint that the next took. What a
predecessor recorded beyond that checkpoint is no part of the curve: those steps were done again. A behavior that the
checkpoint does not have began anew, and has no predecessor.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from server.checkpoints.repository import Takeover
from server.kit.artifacts.store import ArtifactStore, SeekableFile
from server.kit.db.database import Database
from server.kit.errors import ArtifactNotFound, StorageUnavailable
from server.metrics import parquet
from server.metrics.models import MetricArchive
from server.metrics.points import EVERY_STEP, NO_LIMIT, Place, Points, Series, Window, common_edges
from server.metrics.repository import ByAttempt, MetricRepository, MetricRetentionRepository

Lineages = Mapping[str, Sequence[Takeover]]
"""For each run that continues another one, the takeovers that led to it, the newest first."""
Piece = tuple[Place, int]
"""A metric of one run, and the last step of it that counts."""


class MetricReader:
    """Reads histories. Files are read outside of transactions: the artifact store may take its time.

    Raises StorageUnavailable and StorageRefused where a file cannot be read.
    """

    def __init__(self, database: Database, store: ArtifactStore, lineages: Lineages = MappingProxyType({})) -> None:
        """`lineages`: the series of these runs begin with those of their predecessors."""
        self._database = database
        self._store = store
        self._lineages = lineages

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
        metrics = self.by_attempt(self._with_predecessors(run_ids), keys, behavior, read)
        recorded = {place: Points.joined(list(by_attempt.values())) for place, by_attempt in metrics.items()}
        curves = {place: joined(parts, recorded) for place, parts in pieces(recorded, run_ids, self._lineages).items()}
        histories = {place: curve.within(window) for place, curve in curves.items()}
        if not thinned:
            histories = {place: history[:points] for place, history in histories.items()}
        if common_steps:
            edges = common_edges(list(histories.values()), points)
            series = [Series.between(*place, history, edges) for place, history in histories.items()]
        else:
            series = [Series.thin(*place, history, points) for place, history in histories.items()]
        if smoothing:
            series = [metric.smooth(curve, smoothing) for metric, curve in zip(series, curves.values(), strict=True)]
        return series

    def count(self, run_ids: Sequence[str], keys: Sequence[str], behavior: str | None) -> int:
        """Return how many metrics `series` reads, those of predecessors among them."""
        with self._database.read() as session:
            return len(MetricRepository(session).places(self._with_predecessors(run_ids), keys, behavior))

    def by_attempt(
        self,
        run_ids: Sequence[str],
        keys: Sequence[str] | None = None,
        behavior: str | None = None,
        window: Window = EVERY_STEP,
    ) -> dict[Place, ByAttempt]:
        """Return the points in a window of each metric, as `MetricRepository.by_attempt` does of the database.

        A run may be archived meanwhile: its chunks go after its file is entered, so the file is asked for last.
        """
        with self._database.read() as session:
            points = MetricRepository(session).by_attempt(run_ids, keys, behavior, window)
            archives = MetricRetentionRepository(session).archives(run_ids)

        def is_asked(of_behavior: str, key: str) -> bool:
            return (keys is None or key in keys) and behavior in {None, of_behavior}

        for archive in archives:
            try:
                stored = self._read(archive, is_asked, window)
            except ArtifactNotFound:
                with self._database.read() as session:
                    present = MetricRetentionRepository(session).archives([archive.run_id])
                if [now.path for now in present] == [archive.path]:
                    raise
                # It was replaced, after its points were thinned; or the run is deleted.
                stored = self._read(present[0], is_asked, window) if present else {}
            points |= {place: stored.get(place, {}) for place in points if place[0] == archive.run_id}
        return points

    def metrics(self, run_id: str) -> Iterator[parquet.Metric]:
        """Iterate over all metrics of a run in the order of a Parquet file. They are read one after the other."""
        with self._database.read() as session:
            places = MetricRepository(session).places([run_id])
        for _, behavior, key in places:
            for by_attempt in self.by_attempt([run_id], [key], behavior).values():
                yield behavior, key, by_attempt

    def _with_predecessors(self, run_ids: Sequence[str]) -> list[str]:
        takeovers = (takeover for run_id in run_ids for takeover in self._lineages.get(run_id, ()))
        return list(dict.fromkeys([*run_ids, *(takeover.predecessor for takeover in takeovers)]))

    def _read(
        self, archive: MetricArchive, is_asked: Callable[[str, str], bool], window: Window
    ) -> Mapping[Place, ByAttempt]:
        file = SeekableFile(self._store, archive.path, archive.size)
        try:
            return parquet.read(file, archive.run_id, is_asked, window)
        except (OSError, ValueError) as error:  # pyarrow's
            raise StorageUnavailable(f"{archive.path} is damaged: {error}") from error


def pieces(places: Iterable[Place], run_ids: Sequence[str], lineages: Lineages) -> dict[Place, list[Piece]]:
    """Return, for each metric of these runs, the metrics of which its curve consists, the oldest first.

    `places` are those of the runs and of their predecessors. The metrics come run by run, with names sorted.
    """
    names: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for run_id, behavior, key in places:
        names[run_id].add((behavior, key))
    curves: defaultdict[Place, list[Piece]] = defaultdict(list)
    for run_id in run_ids:
        takeovers = lineages.get(run_id, ())
        members = [run_id, *(takeover.predecessor for takeover in takeovers)]
        for behavior, key in sorted(set().union(*(names[member] for member in members))):
            last = NO_LIMIT
            taken_up = (takeover.steps.get(behavior, -1) if behavior else takeover.step for takeover in takeovers)
            limits = [last, *(last := min(last, step) for step in taken_up)]
            for member, limit in reversed(list(zip(members, limits, strict=True))):
                if (behavior, key) in names[member] and limit >= 0:
                    curves[run_id, behavior, key].append(((member, behavior, key), limit))
    return dict(curves)


def joined(parts: Sequence[Piece], histories: Mapping[Place, Points]) -> Points:
    """Return the points of a curve, of which the metrics are in `histories`."""
    return Points.joined([histories[place].within(Window(last=limit)) for place, limit in parts]).increasing()
