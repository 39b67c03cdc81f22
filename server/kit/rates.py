"""Rate limits per minute, counted in this process over a sliding window (`limits`).

Each process counts by itself: n processes allow n times the rate. A rate of 0 per minute is no limit.
"""

import time
from typing import Final

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

LEAST_SECONDS: Final = 1.0


class Rate:
    """Counts events by key. Safe to share between threads."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._item = RateLimitItemPerMinute(max(1, per_minute))

    def count(self, who: str) -> float | None:
        """Count one event; return None, or, if that was too many, the seconds until the next try."""
        if not self.per_minute or self._limiter.hit(self._item, who):
            return None
        return self._wait(who)

    def exhausted(self, who: str) -> float | None:
        """Return what `count` would, without counting."""
        if not self.per_minute or self._limiter.test(self._item, who):
            return None
        return self._wait(who)

    def _wait(self, who: str) -> float:
        return max(LEAST_SECONDS, self._limiter.get_window_stats(self._item, who).reset_time - time.time())
