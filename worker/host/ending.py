"""When a worker ends by itself, when it restarts, and the file that says that it lives.

The parent decides, by what its slots' processes write into the memory that they share. It ends after its only run, or
when it has been idle for long enough. It restarts when it has stopped to take messages although it looks healthy:
Celery can lose its connection to Redis without an error (a network element drops packets, or a reconnection does not
subscribe again). The slots' own processes check for that, over connections of their own; the consumer is not asked.

A probe looks at the age of the file, without an interpreter:

    test -n "$(find "$LUDUS_HOME/worker.alive" -mmin -1)"

It says that every slot gets on: its beat, which touches the file, and the thread that executes its run. It does not
depend on the database and the broker, whose outages a worker survives.
"""

import ctypes
import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger()

OUTAGE_SECONDS = 5.0
"""A pause between two checks that is longer than this, and than half of a stall, was an outage."""
FRESH_SECONDS: Final = 60.0
"""A file that was not touched for so long is no sign of life."""


@dataclass(frozen=True)
class Limits:
    """The options of `ludus worker` that end it. False if there is none."""

    once: bool = False
    """End after one run."""
    idle_seconds: float | None = None
    """End after so many seconds without a run."""

    def __bool__(self) -> bool:
        return self.once or self.idle_seconds is not None


class Flags(ctypes.Structure):
    """The facts that a worker's processes share."""

    stopping: bool
    """Whether the slots shall hand their runs back."""
    restarting: bool
    """Whether the worker starts again after it has stopped."""
    taken: bool
    """Whether the slot has the only run, or is about to claim it."""
    finished: bool
    """Whether the only run was executed, or lost: the worker claims no more."""
    lost: bool
    """Whether the slot's process has died with the only run."""
    _fields_ = tuple((name, ctypes.c_bool) for name in ("stopping", "restarting", "taken", "finished", "lost"))


class SharedState:
    """State that a worker's parent and its slots share, by their numbers from 0. Every process can read and write it.

    It lies in anonymous shared memory, and needs no signals: those would interrupt database calls. Turns are times of
    the monotonic clock, which all processes share.
    """

    def __init__(self, slots: int) -> None:
        turns, busy = ctypes.c_double * slots, ctypes.c_bool * slots
        memory = mmap.mmap(-1, ctypes.sizeof(turns) + ctypes.sizeof(busy) + ctypes.sizeof(Flags))
        self._turns = turns.from_buffer(memory)
        self._busy = busy.from_buffer(memory, ctypes.sizeof(turns))
        self.flags = Flags.from_buffer(memory, ctypes.sizeof(turns) + ctypes.sizeof(busy))

    def finish(self, *, lost: bool = False) -> None:
        """Record that the only run was executed, or that the slot's process has died with it."""
        self.flags.lost |= lost
        self.flags.taken, self.flags.finished = False, True

    @property
    def busy(self) -> bool:
        """Whether any slot executes a run."""
        return any(self._busy)

    def set_busy(self, slot: int, *, busy: bool) -> None:
        """Record whether a slot executes a run."""
        self._busy[slot % len(self._busy)] = busy

    def turn(self, slot: int) -> None:
        """Record that a slot gets on."""
        self._turns[slot % len(self._turns)] = time.monotonic()

    def all_turn(self, seconds: float) -> bool:
        """Return whether every slot has got on within so many seconds."""
        oldest: float = min(self._turns)
        return oldest > time.monotonic() - seconds


class WorkerEnd:
    """Decides when the worker ends. One thread uses it."""

    def __init__(self, limits: Limits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._idle_since = monotonic()

    def reason(self, *, busy: bool, finished: bool, lost: bool = False) -> str | None:
        """Return why the worker ends now; None if it goes on. `busy`: a slot executes a run; see `Flags`."""
        if self._limits.once and lost:
            return "the process of its slot died with its only run"
        if self._limits.once and finished:
            return "its only run was executed"
        now = self._monotonic()
        if busy:
            self._idle_since = now
        seconds = self._limits.idle_seconds
        if seconds is not None and now - self._idle_since >= seconds:
            return f"no slot has had a run for {seconds:g} s"
        return None


class Watchdog:
    """Measures for how long a slot was idle while messages waited. One thread uses it, except for `received`."""

    def __init__(self, stall_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._stall = stall_seconds
        self._monotonic = monotonic
        self._since: float | None = None
        self._looked = monotonic()

    def received(self) -> None:
        """Record that a message has arrived."""
        self._since = None

    def stalled(self, *, idle: bool, pending: int) -> bool:
        """Check the slot and the queue; return whether messages have waited for too long.

        After an outage of the database or of the broker the wait begins again: messages could not be taken either.
        """
        now = self._monotonic()
        gap, self._looked = now - self._looked, now
        if not idle or not pending:
            self._since = None
            return False
        if self._since is None or gap > max(OUTAGE_SECONDS, self._stall / 2):
            self._since = now
        return now - self._since >= self._stall


def touch(file: Path) -> None:
    """Give a sign of life. A file that cannot be written is logged."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        log.warning("sign_of_life_not_written", file=str(file), error=error.strerror)


def is_alive(file: Path) -> bool:
    """Return whether the file was touched recently."""
    try:
        return time.time() - file.stat().st_mtime < FRESH_SECONDS
    except OSError:
        return False
