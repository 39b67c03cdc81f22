"""Shared by the commands that play for a run: work until it ends, print what happens, and return the exit code."""

import asyncio
import logging
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ludus.cli.exits import INTERRUPTED, exit_of_end, exit_of_error
from ludus.cli.render import LINES, echo
from ludus.event_loop import run
from ludus.sdk.errors import SimulatorError
from ludus.sdk.join import RunEnd


def run_until_end(work: Coroutine[Any, Any, RunEnd], farewell: str) -> int:
    """Run `work`, which logs to `ludus.games`; print the end, and return the exit code.

    Ctrl-C or SIGTERM cancels it and prints `farewell`; so does each further one.
    """
    try:
        with printed_games():
            end = run(_interruptible(work, farewell))
    except SimulatorError as error:
        return exit_of_error(error.code)
    if end is None:
        return INTERRUPTED
    echo(end.reason, err=True)
    return exit_of_end(end.code)


@contextmanager
def printed_games() -> Iterator[None]:
    """Print what `ludus.games` logs during the block."""
    handler = _Echo()
    logger = logging.getLogger("ludus.games")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


async def _interruptible(work: Coroutine[Any, Any, RunEnd], farewell: str) -> RunEnd | None:
    """Do the work; each Ctrl-C or SIGTERM cancels it. Returns None if it was cancelled."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    interrupts = 0

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            echo(farewell, err=True)
        loop.call_soon_threadsafe(task.cancel)

    # Not the loop's own handlers, which only POSIX has; on Windows the handler runs with the next tick.
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Echo(logging.Handler):
    """Prints the log records of the library."""

    def emit(self, record: logging.LogRecord) -> None:
        echo(record.getMessage(), err=True, kept=LINES)
