"""Waiting for a server that does not answer for a while."""

import time
from typing import Final

from ludus.backoff import Backoff
from ludus.client.errors import Busy, ServerUnreachable

RETRY_SECONDS: Final = 60.0
"""Time for which `runs.wait`, `events.follow` and downloads retry while the server does not answer."""


class ServerBackoff(Backoff):
    """Waits between the attempts to reach a server, for at most RETRY_SECONDS without a success."""

    def __init__(self) -> None:
        super().__init__(first=0.2, longest=2.0)

    def wait(self, error: ServerUnreachable | Busy) -> None:
        """Wait before the next attempt, as long as a busy server asks for. Raises `error` after RETRY_SECONDS."""
        pause = self.pause()
        if self.failing_seconds > RETRY_SECONDS:
            raise error
        announced = error.retry_after if isinstance(error, Busy) else None
        time.sleep(pause if announced is None else announced)
