"""Waiting for a server that does not answer for a while."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

from ludus.backoff import Backoff
from ludus.client.errors import Busy, ServerUnreachable

Answer = TypeVar("Answer")

RETRY_SECONDS: Final = 60.0
"""How long a call without a deadline waits for a server that has not answered it yet, and a download for a byte."""
OUTAGE_FACTOR: Final = 10.0
"""A server that has answered the call before is waited for longer by this factor: it may be upgraded meanwhile."""
FIRST_ANSWER_SECONDS: Final = 4.0
"""The shortest time-out of a request before the first answer, however short the deadline is."""
SHORTEST_SECONDS: Final = 0.2
"""The same after it."""

_log = logging.getLogger(__name__)
_request_seconds: ContextVar[float | None] = ContextVar("request_seconds", default=None)


@contextmanager
def request_limit(seconds: float | None) -> Iterator[None]:
    """Limit the time-outs of the requests of the block; None leaves them as they are."""
    token = _request_seconds.set(seconds)
    try:
        yield
    finally:
        _request_seconds.reset(token)


def request_seconds(usual: float | None) -> float | None:
    """Return the time-out of a request: the usual one, or what the deadline of the waiting call leaves."""
    limit = _request_seconds.get()
    return limit if usual is None or (limit is not None and limit < usual) else usual


class ServerBackoff(Backoff):
    """The patience of one waiting call: until its deadline, or without one for a time without an answer.

    The deadline holds for the requests of `attempt`, too: a server that accepts and never answers does not hold them.
    """

    def __init__(self, timeout: float | None = None, outage_factor: float = OUTAGE_FACTOR) -> None:
        """`timeout` is in seconds from now; None is no deadline."""
        super().__init__(first=0.2, longest=2.0)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._outage_factor = outage_factor
        self._answered = False

    @property
    def left(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return self.left == 0

    @property
    def exhausted(self) -> bool:
        """Whether the server has been away for longer than this call waits."""
        if self._deadline is not None:
            return self.over
        return self.failing_seconds > RETRY_SECONDS * (self._outage_factor if self._answered else 1.0)

    def reset(self) -> None:
        """Note that the server has answered."""
        super().reset()
        self._answered = True

    def wait(self, error: ServerUnreachable | Busy) -> None:
        """Wait before the next attempt, as long as a busy server asks for. Raises `error` when patience has ended."""
        pause = self.pause()
        if self.exhausted:
            raise error
        if self.failures == 1 and isinstance(error, ServerUnreachable):
            _log.warning("%s; trying again", error)
        announced = error.retry_after if isinstance(error, Busy) else None
        self.sleep(pause if announced is None else announced)

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the deadline."""
        remaining = self.left
        time.sleep(seconds if remaining is None else min(seconds, remaining))

    def attempt(self, call: Callable[[], Answer]) -> Answer:
        """Return what `call` returns; its requests end at the deadline."""
        remaining = self.left
        shortest = SHORTEST_SECONDS if self._answered else FIRST_ANSWER_SECONDS
        with request_limit(_request_seconds.get() if remaining is None else max(remaining, shortest)):
            answer = call()
        self.reset()
        return answer

    def persist(self, call: Callable[[], Answer]) -> Answer:
        """Return what `call` returns once the server answers. Raises the last error when patience has ended."""
        while True:
            try:
                return self.attempt(call)
            except (ServerUnreachable, Busy) as error:
                self.wait(error)
