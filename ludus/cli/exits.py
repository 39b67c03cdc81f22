"""Exit codes of `ludus`: one for each outcome that a script can distinguish."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Final

from ludus.protocol.codes import CloseCode

INTERRUPTED: Final = 130
"""Exit code of a command that was ended by Ctrl-C or SIGTERM."""


class Exit(IntEnum):
    """Exit codes of commands."""

    OK = 0
    """Done; a waited-for run succeeded and met every requirement."""
    REFUSED = 1
    """The server refused the request (unknown run, invalid configuration, ...)."""
    USAGE = 2
    """The command line is wrong."""
    UNREACHABLE = 3
    """The server cannot be reached."""
    RUN_FAILED = 4
    """The run ended as FAILED."""
    RUN_CANCELLED = 5
    """The run ended as CANCELLED."""
    UNMET = 6
    """The run succeeded, but a requirement is not met."""
    TIMED_OUT = 7
    """The time-out passed before the run ended."""
    FAILED_GATE = 8
    """The policy failed its gate or evaluation, or group B of a comparison is not what `--require` demands."""
    UNDECIDED = 9
    """The gate or evaluation could not decide, or there are not enough seeds to tell what `--require` asks."""
    STALLED = 10
    """The run continues only if a person acts: it is paused, or no simulator or worker comes."""
    NO_METRIC = 11
    """A requirement or comparison names no metric of the run, or those of several behaviors: it cannot be judged."""
    WARNED = 12
    """The run succeeded with findings about its learning, and the command was told to fail then."""


OUTCOMES: Mapping[str, Exit] = {"SUCCEEDED": Exit.OK, "FAILED": Exit.RUN_FAILED, "CANCELLED": Exit.RUN_CANCELLED}
"""Final state of a run -> exit code."""

VERDICTS: Mapping[str, Exit] = {"pass": Exit.OK, "fail": Exit.FAILED_GATE, "undecided": Exit.UNDECIDED}
"""Verdict of a gate or evaluation -> exit code."""

_ENDS: Mapping[str, Exit] = {CloseCode.RUN_FINISHED: Exit.OK, CloseCode.RUN_FAILED: Exit.RUN_FAILED}
_UNREACHABLE = {
    *("nothing_listens", "unknown_host", "timeout", "unavailable", "connection_lost"),
    *("not_a_gateway", "tls_mismatch"),
}


def exit_of_end(code: CloseCode) -> Exit:
    """Return the exit code of a command that played in a run until this end."""
    return _ENDS.get(code, Exit.RUN_CANCELLED)


def exit_of_error(code: str) -> Exit:
    """Return the exit code of a command that could not play for this reason (`SimulatorError.code`)."""
    return Exit.UNREACHABLE if code in _UNREACHABLE else Exit.REFUSED


def help_on_codes(meanings: Mapping[int, str]) -> str:
    """Return the text of a command's help about its exit codes."""
    lines = [f"{code:>3}  {meaning}" for code, meaning in sorted(meanings.items())]
    return "\n".join(["\b", "Exit codes:", *lines])


_ENDED = {2: "the command line is wrong", 4: "the run failed", 5: "the run was cancelled"}
_COMMON = {**_ENDED, 3: "the server cannot be reached", 7: "the time-out passed first"}
HELP = help_on_codes(
    {
        **_COMMON,
        0: "the run succeeded and met every requirement",
        1: "the server refused the request",
        6: "the run succeeded, but a requirement is not met",
        10: "the run does not continue by itself: it is paused, or no simulator or worker comes",
        11: "a requirement cannot be judged: the run has no such metric",
        12: "with --fail-on-warning: the run succeeded, with warnings",
    }
)
VERDICT_HELP = help_on_codes(
    {
        **_COMMON,
        0: "it passed",
        1: "the server refused the request, or the promotion",
        8: "it failed",
        9: "undecided",
        10: "the run did not continue by itself: it was paused, or no simulator or worker came",
    }
)
COMPARISON_HELP = help_on_codes(
    {
        0: "compared; with --require: B is shown to be so",
        1: "the server refused the request",
        2: "the command line is wrong, or names runs that cannot be compared",
        3: "the server cannot be reached",
        8: "with --require: B is shown not to be so",
        9: "with --require: not enough seeds to tell",
        11: "a run does not have the metric, or has a value that is not a number",
    }
)
GAMES_HELP = help_on_codes(
    {
        **_ENDED,
        0: "the run finished",
        1: "the server refused the simulators, or they crashed too often",
        3: "the gateway cannot be reached",
        INTERRUPTED: "interrupted",
    }
)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, which CI systems send to end a job. Does nothing outside the main thread.

    An event loop that runs then raises it between two callbacks: uvloop takes one that is raised in a callback of a
    connection for that connection's error, closes the connection, and goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler
        return

    def end() -> None:
        raise KeyboardInterrupt

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        import asyncio  # noqa: PLC0415  most commands run no loop

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            end()
        else:
            loop.call_soon_threadsafe(end)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
