"""How often somebody may ask: per token, or per address where there is none; and how often one may fail to say who.

Counted in this process over a sliding minute (`limits`); several API processes allow as many times as much together.
"""

import time
from typing import Final

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from server.http.errors import TooManyRequests

_REQUESTS: Final = "requests"
_FAILURES: Final = "failures"


class RateLimits:
    """Counts requests and failed authentications. A limit of 0 is none."""

    def __init__(self, requests_per_minute: int, failures_per_minute: int) -> None:
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._requests = RateLimitItemPerMinute(requests_per_minute) if requests_per_minute else None
        self._failures = RateLimitItemPerMinute(failures_per_minute) if failures_per_minute else None

    def admit(self, who: str) -> None:
        """Count a request of a token or an address. Raises TooManyRequests."""
        if self._requests is not None and not self._limiter.hit(self._requests, _REQUESTS, who):
            raise self._refusal(self._requests, _REQUESTS, who)

    def admit_stranger(self, address: str) -> None:
        """Let an address try a token that is not known yet. Raises TooManyRequests if it has failed too often."""
        if self._failures is not None and not self._limiter.test(self._failures, _FAILURES, address):
            raise self._refusal(self._failures, _FAILURES, address)

    def failed(self, address: str) -> None:
        """Count a failed authentication."""
        if self._failures is not None:
            self._limiter.hit(self._failures, _FAILURES, address)

    def _refusal(self, item: RateLimitItemPerMinute, kind: str, who: str) -> TooManyRequests:
        reset = self._limiter.get_window_stats(item, kind, who).reset_time
        return TooManyRequests(item.amount, reset - time.time())
