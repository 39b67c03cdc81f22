"""Reads histories of metrics, from the database, or from the Parquet file of a run that ended long ago."""

from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType

from server.kit.artifacts.seekable import SeekableFile
from server.kit.artifacts.store import ArtifactStore
from server.kit.db.database import Database
from server.kit.errors import ArtifactNotFound, StorageUnavailable
from server.metrics.archive import parquet
from server.metrics.lineage import Lineages, joined, pieces
from server.metrics.points import EVERY_STEP, Place, Points, Series, Window, common_edges
from server.metrics.repository import ByAttempt, MetricRepository
from server.metrics.retention.repository import Archive, MetricRetentionRepository


class MetricReader:
    """Reads histories. Files are read outside of transactions: the artifact store may take its time.

    Raises StorageUnavailable and StorageRefused where a file cannot be read.
    """

    def __init__(self, database: Database, store: ArtifactStore, lineages: Lineages = MappingProxyType({})) -> None:
        """`lineages`: the series of these runs begin with those of their predecessors (`server.metrics.lineage`)."""
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
        whole = {place: joined(parts, recorded) for place, parts in pieces(recorded, run_ids, self._lineages).items()}
        histories = {place: history.within(window) for place, history in whole.items()}
        if not thinned:
            histories = {place: history[:points] for place, history in histories.items()}
        if common_steps:
            edges = common_edges(list(histories.values()), points)
            series = [Series.between(*place, history, edges) for place, history in histories.items()]
        else:
            series = [Series.thin(*place, history, points) for place, history in histories.items()]
        if smoothing:
            series = [each.smooth(history, smoothing) for each, history in zip(series, whole.values(), strict=True)]
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

        def wanted(of_behavior: str, key: str) -> bool:
            return (keys is None or key in keys) and behavior in {None, of_behavior}

        for archive in archives:
            try:
                stored = self._read(archive, wanted, window)
            except ArtifactNotFound:
                with self._database.read() as session:
                    present = MetricRetentionRepository(session).archives([archive.run_id])
                if present == [archive]:
                    raise
                # It was replaced, after its points were thinned; or the run is deleted.
                stored = self._read(present[0], wanted, window) if present else {}
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

    def _read(self, archive: Archive, wanted: Callable[[str, str], bool], window: Window) -> dict[Place, ByAttempt]:
        file = SeekableFile(self._store, archive.path, archive.size)
        try:
            return {**parquet.read(file, archive.run_id, wanted, window)}
        except (OSError, ValueError) as error:  # pyarrow's
            raise StorageUnavailable(f"{archive.path} is damaged: {error}") from error
