"""Bearing with a server that is not there for a while."""

import time
from typing import Final

from ludus.client.errors import Busy, ServerUnreachable

PATIENCE_SECONDS: Final = 60.0
"""For how long `wait` and `follow_events` bear with a server that doesn't answer: long enough for its restart."""


class Patience:
    """Waits with growing pauses between attempts, and gives up after PATIENCE_SECONDS without a success."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, after a success."""
        self._since: float | None = None
        self._pause = 0.2

    def bear(self, error: ServerUnreachable | Busy) -> None:
        """Wait a little before the next attempt; raise the error when there have been enough."""
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > PATIENCE_SECONDS:
            raise error
        announced = error.retry_after if isinstance(error, Busy) else None
        time.sleep(self._pause if announced is None else announced)
        self._pause = min(self._pause * 2, 2.0)
