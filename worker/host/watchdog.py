"""Notices that a worker has stopped taking messages although it looks healthy.

Celery can lose its connection to Redis without an error: a network element drops packets, or a reconnection does not
subscribe again. Then the process lives, its slots are idle, and messages stay in the queue. The slots' own processes
check for that, over connections of their own; the consumer is not asked.
"""

import time
from collections.abc import Callable

OUTAGE_SECONDS = 5.0
"""A pause between two checks that is longer than this, and than half of a stall, was an outage."""


class Watchdog:
    """Measures for how long a slot was idle while messages waited. One thread uses it, except for `received`."""

    def __init__(self, stall_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._stall = stall_seconds
        self._monotonic = monotonic
        self._since: float | None = None
        self._looked = monotonic()

    def received(self) -> None:
        """Record that a message has arrived."""
        self._since = None

    def stalled(self, *, idle: bool, pending: int) -> bool:
        """Check the slot and the queue; return whether messages have waited for too long.

        After an outage of the database or of the broker the wait begins again: messages could not be taken either.
        """
        now = self._monotonic()
        gap, self._looked = now - self._looked, now
        if not idle or not pending:
            self._since = None
            return False
        if self._since is None or gap > max(OUTAGE_SECONDS, self._stall / 2):
            self._since = now
        return now - self._since >= self._stall
