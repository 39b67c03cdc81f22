"""Reports of the games on this machine: to the local log, and as events of the run.

Both get the same sentence. Reports to the run are sent in the background, best effort: no game waits for them.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ludus.sdk.errors import Failure
from ludus.sdk.join import JoinClient, Report, Target

REPEAT_SECONDS: Final = 10.0
"""A sentence about the run that one worker logged is not logged for another worker within this time."""
MOST_PENDING: Final = 30
"""Reports that wait to be sent; further ones are dropped. The gateway accepts as many in a minute."""
CLOSE_SECONDS: Final = 3.0
"""Time-out of the last reports after everything else has ended."""

Tell = Callable[[Failure], None]


class Refusal(Failure):
    """The reason that the server gave when it ended a session: the run knows it already."""


class RunReporter:
    """Sends problems to the run, one after the other."""

    def __init__(self, join_client: JoinClient) -> None:
        self._join_client = join_client
        self._pending: deque[tuple[str, Failure]] = deque()
        self._task: asyncio.Task[None] | None = None

    def report(self, session_id: str, problem: Failure) -> None:
        """Report a problem soon. Needs a running event loop."""
        if len(self._pending) == MOST_PENDING:
            return
        self._pending.append((session_id, problem))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._send_all())

    async def close(self) -> None:
        """Wait up to CLOSE_SECONDS for pending reports."""
        if self._task is None:
            return
        try:
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        finally:
            self._task.cancel()

    async def _send_all(self) -> None:
        while self._pending:
            await self._join_client.report(*self._pending.popleft())


class GameReporter:
    """Reports for one worker, under the session id of its present game."""

    def __init__(self, run_reporter: RunReporter, target: Target, log: Report, log_of_run: Report) -> None:
        self.log = log
        """Logs a sentence about this worker."""
        self.log_of_run = log_of_run
        """Logs a sentence about the run, which all workers receive alike."""
        self._target = target
        """The run, with the session id of the present or next game."""
        self._run_reporter = run_reporter
        self._used = False
        """Whether a game has played under this session id."""

    def begin_session(self) -> Target:
        """Return the target of a game that begins a session."""
        self.expect_session()
        self._used = True
        return self._target

    def expect_session(self) -> None:
        """Use a new session id: problems before the next game calls do not belong to the last game."""
        if self._used:
            self._target, self._used = self._target.with_new_session(), False

    def tell(self, problem: Failure, then: str = "") -> None:
        """Log a problem, with the action that follows it, and report it to the run."""
        self.log(logging.WARNING, f"{problem.sentence}\n{then}" if then else problem.sentence)
        self.report(problem)

    def report(self, problem: Failure) -> None:
        """Report a problem to the run, unless the run reported it itself."""
        if not isinstance(problem, Refusal):
            self._run_reporter.report(self._target.session_id, problem)


def game_reporters(count: int, run_reporter: RunReporter, target: Target, log: Report) -> list[GameReporter]:
    """Return a reporter for each worker; the first game of the first one has the target's own session id."""
    if count == 1:
        return [GameReporter(run_reporter, target, log, log)]
    logged: dict[str, tuple[int, float]] = {}
    """Sentence about the run -> the worker that logged it last, and when."""

    def reporter(worker: int) -> GameReporter:
        def of_worker(level: int, sentence: str) -> None:
            log(level, f"worker {worker}: {sentence}")

        def of_run(level: int, sentence: str) -> None:
            now = time.monotonic()
            last, logged_at = logged.get(sentence, (worker, now))
            if last == worker or now - logged_at > REPEAT_SECONDS:
                logged[sentence] = (worker, now)
                of_worker(level, sentence)

        return GameReporter(run_reporter, target.with_new_session() if worker else target, of_worker, of_run)

    return [reporter(worker) for worker in range(count)]
