"""Log files of attempts."""

from collections.abc import Sequence
from pathlib import Path

from ludus.client.transport import Resource, segment, without_none
from ludus.paths import AnyPath
from ludus.schemas import Log, LogText


class Logs(Resource):
    """Requests about logs."""

    def list(self, run: str) -> Sequence[Log]:
        """Return the log files of all attempts of a run, oldest attempt first."""
        return [*self._transport.pages(Log, f"/v1/runs/{segment(run)}/logs")]

    def read(
        self, run: str, attempt: int, name: str, *, offset: int = 0, limit: int | None = None, tail: int | None = None
    ) -> LogText:
        """Read a part of a log: at most `limit` bytes from `offset`, or the last `tail` bytes."""
        part = without_none(tail=tail, limit=limit) | ({"offset": offset} if tail is None else {})
        return self._transport.get(LogText, _path(run, attempt, name), part)

    def download(self, run: str, attempt: int, name: str, target: AnyPath) -> Path:
        """Download a log as it is now to `target` and return it; the download restarts if the log grows meanwhile."""
        return self._transport.download(f"{_path(run, attempt, name)}/file", name, target)


def _path(run: str, attempt: int, name: str) -> str:
    return f"/v1/runs/{segment(run)}/attempts/{attempt}/logs/{segment(name)}"
