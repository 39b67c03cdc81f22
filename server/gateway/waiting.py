"""Joins that are held because their runs are not ready.

One task looks at all runs for which something waits, with one query, however many simulators wait. It wakes those whose
run has something to say: its collectors listen, or it has ended.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import structlog

from server.kit.errors import LudusError
from server.kit.principal import Principal
from server.simulators.repository import NotReady, Progress

LOOK_SECONDS: Final = 0.1
"""Pause between two looks, at least."""
LONGEST_SECONDS: Final = 1.0
"""Pause between two looks, at most, and after one that failed."""
SHARE: Final = 20
"""Up to that the pause is so many times as long as the look: looks at many runs take 5 % of a thread."""
ANSWER_SECONDS: Final = 5.0
"""For so long the answer to one simulator, that it has to wait, also serves others that ask the same and are held."""
PAUSE_SHARE: Final = 0.25
"""A join that may not be held comes back after this share of the time for which its run has not been ready ..."""
LONGEST_PAUSE_SECONDS: Final = 15.0
"""... and after that time at most: after a minute. So such a client hears late of a start in proportion to its wait."""
FORGET_SECONDS: Final = 60.0
"""A run for which no such client has asked for so long waits anew."""

_log = structlog.get_logger(__name__)


class Question(NamedTuple):
    """A simulator's question about a run. While the run is not ready, one answer serves all equal questions."""

    run: str
    principal: Principal
    edge: bool


class HeldJoin:
    """A join that is held. It belongs to the event loop."""

    def __init__(self, *, edge: bool) -> None:
        self.edge = edge
        """Whether an edge collector joins, in place of a simulator."""
        self._asked: Progress | None = None
        """How far the run was when placement was asked last: until it moves, the answer is the same."""
        self._progress: Progress | None = None
        self._woken = asyncio.Event()
        self._since = time.monotonic()

    async def ready(self, seconds: float) -> bool:
        """Wait until placement should be asked again. False: `seconds` after the beginning nothing has happened."""
        try:
            async with asyncio.timeout(self._since + seconds - time.monotonic()):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        self._asked = self._progress
        return self._progress is not None

    def tell(self, progress: Progress | None) -> None:
        """Wake the join if its run has moved. None: the gateway shuts down."""
        if progress is None or (progress != self._asked and progress.concerns(edge=self.edge)):
            self._progress = progress
            self._woken.set()


class WaitingJoins:
    """All held joins of a gateway. It belongs to the event loop."""

    def __init__(
        self, look: Callable[[Collection[str]], Mapping[str, Progress]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`look` returns those of some runs that may have something to say; it runs in a thread."""
        self._look = look
        self._clock = clock
        """Of pauses."""
        self._unready: dict[str, tuple[float, float]] = {}
        """By run: the first and the last time at which `pause` was asked. The run that was asked about last is last."""
        self._joins: dict[str, set[HeldJoin]] = {}
        """By run."""
        self._looking: asyncio.Task[None] | None = None
        self._closed = False
        self._answers: dict[Question, tuple[NotReady, float]] = {}
        """With their times on the monotonic clock, the oldest first."""
        self.held = 0
        """Number of joins that are held."""

    @contextmanager
    def enter(self, run_id: str, *, edge: bool) -> Iterator[HeldJoin]:
        """Hold a join of a run."""
        join = HeldJoin(edge=edge)
        if self._closed:
            join.tell(None)
        self._joins.setdefault(run_id, set()).add(join)
        self.held += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on())
        try:
            yield join
        finally:
            joins = self._joins[run_id]
            joins.discard(join)
            self.held -= 1
            if not joins:
                del self._joins[run_id]

    def learn(self, question: Question, answer: NotReady) -> None:
        """Keep an answer of placement for a moment."""
        now = time.monotonic()
        self._answers.pop(question, None)
        self._answers[question] = (answer, now)
        while now - self._answers[oldest := next(iter(self._answers))][1] > ANSWER_SECONDS:
            del self._answers[oldest]

    def recall(self, question: Question) -> NotReady | None:
        """Return the answer that placement gave a moment ago, None if there is none.

        It may be too old for a join that is answered with it, but not for one that is held: looks go on.
        """
        answer, answered_at = self._answers.get(question, (None, 0.0))
        return answer if time.monotonic() - answered_at <= ANSWER_SECONDS else None

    def pause(self, run_id: str) -> float:
        """Return after how many seconds a client asks again whose join may not be held: 0 at first, growing to 15."""
        now = self._clock()
        while self._unready and now - self._unready[oldest := next(iter(self._unready))][1] > FORGET_SECONDS:
            del self._unready[oldest]
        since, _ = self._unready.pop(run_id, (now, now))
        self._unready[run_id] = (since, now)
        return min(PAUSE_SHARE * (now - since), LONGEST_PAUSE_SECONDS)

    def serve(self, run_id: str) -> None:
        """Take note that a run is ready: when it is not any more, its pauses begin anew."""
        self._unready.pop(run_id, None)

    def close(self) -> None:
        """End all waiting, for good."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        for joins in self._joins.values():
            for join in joins:
                join.tell(None)

    async def _look_on(self) -> None:
        """Look as long as something waits."""
        try:
            while self._joins and not self._closed:
                try:
                    answers, took = await asyncio.to_thread(self._timed_look, tuple(self._joins))
                except LudusError as error:
                    _log.warning("waiting_runs_not_read", code=error.code, detail=error.message)
                    answers, took = {}, LONGEST_SECONDS
                for run_id, progress in answers.items():
                    for join in self._joins.get(run_id, ()):
                        join.tell(progress)
                await asyncio.sleep(min(max(LOOK_SECONDS, SHARE * took), LONGEST_SECONDS))
        finally:
            self._looking = None

    def _timed_look(self, run_ids: Collection[str]) -> tuple[Mapping[str, Progress], float]:
        began = time.monotonic()
        return self._look(run_ids), time.monotonic() - began
