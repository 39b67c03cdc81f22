"""The queue of writes to the database: in order, each repeated until it has succeeded."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ParamSpec

Parameters = ParamSpec("Parameters")


class Writes:
    """A queue of calls that may find the database out of reach. One thread uses it."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._waiting)

    def add(
        self, write: Callable[Parameters, object], /, *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> None:
        """Append a call."""
        self._waiting.append(partial(write, *arguments, **named))

    def flush(self, seconds: float) -> None:
        """Make the queued calls, and begin none after `seconds`. Raises Unavailable, with the rest still queued."""
        deadline = time.monotonic() + seconds
        while self._waiting and time.monotonic() < deadline:
            self._waiting[0]()
            self._waiting.popleft()
