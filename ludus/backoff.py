"""Growing pauses between attempts, after failures and before restarts."""

import random
import time
from dataclasses import dataclass, field
from typing import Final

STEADY_SECONDS: Final = 60.0
"""After this time without a failure, the earlier failures are cleared."""


@dataclass
class Backoff:
    """The pause doubles with every failure in a row. The caller sleeps, and says when an attempt succeeded."""

    first: float
    """First pause in seconds."""
    longest: float
    """Upper limit of a pause in seconds."""
    immediate: int = 0
    """Failures at the beginning of a row that are followed by no pause."""
    jitter: float = 0.0
    """Part of each pause that is random, from 0 to 1. Callers that failed together then return at different times."""
    failures: int = field(default=0, init=False)
    """Failures in a row."""
    _since: float = field(default=0.0, init=False)

    def pause(self, worked_seconds: float = 0.0) -> float:
        """Count a failure, after `worked_seconds` without one; return the seconds to wait before the next attempt."""
        if worked_seconds > STEADY_SECONDS:
            self.reset()
        if self.failures == 0:
            self._since = time.monotonic()
        doublings = min(self.failures - self.immediate, 64)
        self.failures += 1
        if doublings < 0:
            return 0.0
        seconds = min(self.first * 2.0**doublings, self.longest)
        return seconds * (1 - self.jitter * random.random())  # noqa: S311  not used for secrets

    def reset(self) -> None:
        """Clear all failures, after a success."""
        self.failures = 0

    @property
    def failing_seconds(self) -> float:
        """Seconds since the first failure of the present row; 0 if there is none."""
        return time.monotonic() - self._since if self.failures else 0.0
