"""Metrics and logs of runs: what was measured, and what was written."""

from pathlib import Path

from ludus.client.transport import Transport, segment
from ludus.paths import AnyPath
from ludus.schemas import Log, LogText, Metric, Series


class Metrics(Transport):
    """Requests about metrics and logs."""

    def metrics(self, run: str) -> list[Metric]:
        """Return the newest value of every metric of a run."""
        return self._all(Metric, self._get(f"/v1/runs/{segment(run)}/metrics"), "metrics")

    def series(
        self, run: str, key: str, behavior: str | None = None, points: int = 500, after_step: int | None = None
    ) -> list[Series]:
        """Return a metric over time, one series per behavior, down-sampled by the server to at most `points` each.

        With `after_step` nothing is thinned: they are the first `points` (at most 5000) points beyond that step.
        """
        parameters = {"key": key, "points": str(points)} | ({} if behavior is None else {"behavior": behavior})
        parameters |= {} if after_step is None else {"after_step": str(after_step)}
        answer = self._get(f"/v1/runs/{segment(run)}/metrics/series", parameters)
        return self._all(Series, answer, "series")

    def logs(self, run: str) -> list[Log]:
        """Return the log files of all attempts of a run, oldest attempt first."""
        return self._all(Log, self._get(f"/v1/runs/{segment(run)}/logs"), "logs")

    def read_log(
        self, run: str, epoch: int, name: str, *, offset: int = 0, limit: int | None = None, tail: int | None = None
    ) -> LogText:
        """Read a part of a log: at most `limit` bytes from `offset`, or the last `tail` bytes."""
        parameters = {"tail": str(tail)} if tail is not None else {"offset": str(offset)}
        parameters |= {} if limit is None else {"limit": str(limit)}
        return self._read(
            LogText, self._get(f"/v1/runs/{segment(run)}/attempts/{epoch}/logs/{segment(name)}", parameters)
        )

    def download_log(self, run: str, epoch: int, name: str, target: AnyPath) -> Path:
        """Download a log as it is now to `target` and return it; one that grows meanwhile is begun anew."""
        return self._download(f"/v1/runs/{segment(run)}/attempts/{epoch}/logs/{segment(name)}/file", name, target)
