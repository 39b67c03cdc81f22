"""`ludus collect`, and what commands share that play for a run: their end, and an edge collector of their own."""

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, Self

import click

from ludus.cli.exits import GAMES_HELP, INTERRUPTED, exit_of_end, exit_of_error
from ludus.cli.options import ca_file_option, connect_timeout_option, gateway_option, option, token_option
from ludus.cli.render import LINES, echo
from ludus.event_loop import run
from ludus.games.settings import LAST_PORT
from ludus.sdk.errors import SimulatorError
from ludus.sdk.join import RunEnd, Target


def run_until_end(work: Awaitable[RunEnd], farewell: str) -> int:
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


async def _interruptible(work: Awaitable[RunEnd], farewell: str) -> RunEnd | None:
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


CLIENT: Final = "ludus-simulate"
START_SECONDS: Final = 60.0


class OwnCollector:
    """An edge collector that works during the block, which ends with it."""

    def __init__(self, target: Target) -> None:
        self.outcome: RunEnd | SimulatorError | None = None
        """How its run ended, or why it gave up; None while it works."""
        self.address = ""
        """`host:port` where simulators connect; they need no token."""
        self._target = target
        self._thread = threading.Thread(target=lambda: run(self._run()), name="edge-collector", daemon=True)
        self._listens = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._listens.wait(START_SECONDS):
            raise RuntimeError(f"the edge collector of this command did not start within {START_SECONDS:.0f} s")
        return self

    def __exit__(self, *_error: object) -> None:
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    async def _run(self) -> None:
        # What it needs, a light installation lacks.
        from ludus.collector.edge import edge_collector  # noqa: PLC0415

        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            async with edge_collector(self._target, logger.log, observes=False) as edge:
                self.address = edge.address
                self._listens.set()
                self.outcome = await edge.run()
                await asyncio.Event().wait()  # simulators that ask now are told how the run ended
        except SimulatorError as error:
            logger.log(logging.ERROR, error)
            self.outcome = error
        except asyncio.CancelledError:
            pass


DEFAULT_PORT: Final = 7071
logger = logging.getLogger("ludus.games")


@click.command(epilog=GAMES_HELP)
@click.argument("run")
@option(
    "--port",
    type=click.IntRange(0, LAST_PORT),
    default=DEFAULT_PORT,
    help="Port of this machine that simulators dial; 0: any free one.",
)
@option("--host", default="127.0.0.1", help="Address to listen on. Simulators need no token here.")
@gateway_option
@token_option
@ca_file_option
@connect_timeout_option
def collect(
    *, run: str, port: int, host: str, server: str, token: str | None, ca_file: Path | None, connect_timeout: float
) -> None:
    """Collect experience for RUN (an id or a name) beside the games, until it ends.

    The games of this machine connect here, as in `ludus simulate gymnasium:CartPole-v1 --run RUN --server
    127.0.0.1:7071`. Their actions are computed here, too, so they do not wait for the network. Every run takes 16 of
    them unless its configuration says otherwise (`simulators.collectors.edge`). When the run pauses or its server
    restarts, the games wait.
    """
    target = Target(server, run, token, "", ca_file, connect_timeout)
    sys.exit(run_until_end(_collect(target, host, port), "ending; the games are told to wait for another collector"))


async def _collect(target: Target, host: str, port: int) -> RunEnd:
    # What it needs, a light installation lacks; `ludus --help` works there.
    from ludus.collector.edge import edge_collector  # noqa: PLC0415

    try:
        async with edge_collector(target, logger.log, host=host, port=port) as edge:
            logger.info("simulators connect to %s", edge.address)
            return await edge.run()
    except SimulatorError as error:
        logger.log(logging.ERROR, error)
        raise
