"""The queue of writes to the database: in order, each repeated until it has succeeded.

Points of metrics are the one exception from the order: those that wait are one call, which new points join. So nothing
waits for more than one write of metrics, however fast they come, and the points of a checkpoint's steps are written
before the checkpoint, as if each report was a call of its own.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, ParamSpec

from server.metrics.points import MetricPoint

Parameters = ParamSpec("Parameters")
AppendPoints = Callable[[Sequence[MetricPoint]], object]

MOST_POINTS: Final = 1 << 17
"""Points that may wait before they are thinned: 43 MB, more than come at 400 a second in `worker.outage_seconds`."""
AT_ONCE: Final = 8192
"""Points of one append."""


class JoinedPoints:
    """A call that appends the points of all reports that came since the call was queued."""

    def __init__(self, append: AppendPoints) -> None:
        self._append = append
        self._points: list[MetricPoint] = []
        self._newest: dict[tuple[str, str], int] = {}
        """The newest step of each behavior and key."""

    def join(self, points: Sequence[MetricPoint]) -> None:
        """Add the points of one report.

        Points that are not beyond an earlier report's are left out: readers do not see them either if each report is
        appended by itself, so what is seen does not depend on which reports have joined.
        """
        beyond = [each for each in points if each.step > self._newest.get((each.behavior, each.key), -1)]
        for each in beyond:
            name = each.behavior, each.key
            self._newest[name] = max(each.step, self._newest.get(name, -1))
        self._points += beyond
        if len(self._points) > MOST_POINTS:  # thinned evenly, with the newest ones, as the trainer does it
            self._points = self._points[-1::-2][::-1]

    def __call__(self) -> None:
        """Append the points. Raises Unavailable, with the rest still to be appended."""
        while self._points:
            self._append(self._points[:AT_ONCE])
            del self._points[:AT_ONCE]


class Writes:
    """A queue of calls that may find the database out of reach. One thread uses it."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._metrics: JoinedPoints | None = None
        """The queued call that points join; None where none is queued."""
        self.added = 0
        """Calls that were ever queued."""

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._waiting)

    @property
    def made(self) -> int:
        """Calls that have succeeded: the first ones of those that were queued."""
        return self.added - len(self._waiting)

    def add(
        self, write: Callable[Parameters, object], /, *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> None:
        """Append a call."""
        self._waiting.append(partial(write, *arguments, **named))
        self.added += 1

    def add_points(self, append: AppendPoints, points: Sequence[MetricPoint]) -> None:
        """Append points of metrics to those that wait; `append`, the same in each call, writes them."""
        if self._metrics is None:
            self._metrics = JoinedPoints(append)
            self._waiting.append(self._metrics)
            self.added += 1
        self._metrics.join(points)

    def flush(self, seconds: float) -> None:
        """Make the queued calls, and begin none after `seconds`. Raises Unavailable, with the rest still queued."""
        deadline = time.monotonic() + seconds
        while self._waiting and time.monotonic() < deadline:
            self._waiting[0]()
            if self._waiting.popleft() is self._metrics:
                self._metrics = None
