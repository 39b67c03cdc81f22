"""When a worker ends by itself: after its only run, or when it has been idle for long enough."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The options of `ludus worker` that end it. False if there is none."""

    once: bool = False
    """End after one run."""
    idle_seconds: float | None = None
    """End after so many seconds without a run."""

    def __bool__(self) -> bool:
        return self.once or self.idle_seconds is not None


class WorkerEnd:
    """Decides when the worker ends. One thread uses it."""

    def __init__(self, limits: Limits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._idle_since = monotonic()

    def reason(self, *, busy: bool, finished: bool) -> str | None:
        """Return why the worker ends now; None if it goes on.

        `busy`: a slot executes a run; `finished`: the only run of `once` was executed.
        """
        if self._limits.once and finished:
            return "its only run was executed"
        now = self._monotonic()
        if busy:
            self._idle_since = now
        seconds = self._limits.idle_seconds
        if seconds is not None and now - self._idle_since >= seconds:
            return f"no slot has had a run for {seconds:g} s"
        return None
