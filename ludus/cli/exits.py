"""Exit codes of `ludus`: one for each outcome that a script may want to tell apart."""

from collections.abc import Mapping
from enum import IntEnum


class Exit(IntEnum):
    """What a command's exit code says."""

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


OUTCOMES: Mapping[str, Exit] = {
    "SUCCEEDED": Exit.OK,
    "FAILED": Exit.RUN_FAILED,
    "CANCELLED": Exit.RUN_CANCELLED,
}
"""Final state of a run -> exit code."""

HELP = """\b
Exit codes:
  0  the run succeeded and met every requirement
  1  the server refused the request
  2  the command line is wrong
  3  the server cannot be reached
  4  the run failed
  5  the run was cancelled
  6  the run succeeded, but a requirement is not met
  7  the time-out passed first
"""
