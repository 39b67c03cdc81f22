"""Notices that a worker has stopped taking messages although it looks healthy.

Celery can lose its connection to Redis without a word: a network element that swallows packets, a reconnection that
forgets to listen. The process lives, its slots are idle, and messages lie in the queue that nobody fetches. That is
what is looked for, from the slots' own processes and over connections of their own; nothing is asked of the consumer.
"""

import time
from collections.abc import Callable

OUTAGE_SECONDS = 5.0
"""A pause between two looks that is longer, and longer than half of what counts as a stall, was an outage."""


class Watchdog:
    """Knows for how long a slot was idle while messages waited. Used from one thread, but for `heard`."""

    def __init__(self, stall_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._stall = stall_seconds
        self._monotonic = monotonic
        self._since: float | None = None
        self._looked = monotonic()

    def heard(self) -> None:
        """Note that a message has come."""
        self._since = None

    def stalled(self, *, idle: bool, pending: int) -> bool:
        """Note a look at the slot and at the queue; tell whether messages have been left lying for too long.

        After an outage of the database or of the broker, in which nobody could look, the wait begins anew: messages
        could not be taken either.
        """
        now = self._monotonic()
        gap, self._looked = now - self._looked, now
        if not idle or not pending:
            self._since = None
            return False
        if self._since is None or gap > max(OUTAGE_SECONDS, self._stall / 2):
            self._since = now
        return now - self._since >= self._stall
