"""What waits to be written to the database: in order, each until it has succeeded."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ParamSpec

from server.errors import Unavailable

RETRY_SECONDS = 0.5
"""Pause between attempts to reach a database that is out of reach."""

Parameters = ParamSpec("Parameters")


class Writes:
    """A queue of calls that may find the database out of reach. One thread uses it."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def add(
        self, write: Callable[Parameters, object], /, *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> None:
        """Append a call."""
        self._waiting.append(partial(write, *arguments, **named))

    def flush(self) -> None:
        """Write what waits, as far as the database lets us. Raises Unavailable, with the rest still waiting."""
        while self._waiting:
            self._waiting[0]()
            self._waiting.popleft()

    def settle(self, patience_seconds: float) -> None:
        """Write everything, and wait for the database so long. Raises Unavailable after that."""
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                return self.flush()
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)
