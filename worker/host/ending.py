"""When a worker ends by itself: after its only run, or when it has been idle for long enough.

The parent decides, by what its slots' processes write into the memory that they share.
"""

import mmap
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

_TIME = struct.Struct("d")


@dataclass(frozen=True)
class Limits:
    """The options of `ludus worker` that end it. False if there is none."""

    once: bool = False
    """End after one run."""
    idle_seconds: float | None = None
    """End after so many seconds without a run."""

    def __bool__(self) -> bool:
        return self.once or self.idle_seconds is not None


class SharedState:
    """State that a worker's parent and its slots share. Every process can read and write it.

    It is one byte for each fact, in anonymous shared memory, and no signals: those would interrupt database calls. For
    each slot it has the time of its newest turn, too, on the monotonic clock, which all processes share.
    """

    _STOPPING, _RESTARTING, _TAKEN, _FINISHED, _LOST, _SLOTS = range(6)

    def __init__(self, slots: int) -> None:
        self._turns_at = self._SLOTS + slots
        self._bytes = mmap.mmap(-1, self._turns_at + slots * _TIME.size)
        self._slots = slots

    @property
    def stopping(self) -> bool:
        """Whether the slots shall hand their runs back."""
        return self._bytes[self._STOPPING] != 0

    def stop(self) -> None:
        """Have the slots hand their runs back."""
        self._bytes[self._STOPPING] = 1

    @property
    def restarting(self) -> bool:
        """Whether the worker starts again after it has stopped."""
        return self._bytes[self._RESTARTING] != 0

    def restart(self) -> None:
        """Have the worker start again after it has stopped."""
        self._bytes[self._RESTARTING] = 1

    @property
    def taken(self) -> bool:
        """Whether the slot has the only run, or is about to claim it."""
        return self._bytes[self._TAKEN] != 0

    def set_taken(self, *, taken: bool) -> None:
        """Record whether the slot has the only run, or is about to claim it."""
        self._bytes[self._TAKEN] = int(taken)

    @property
    def finished(self) -> bool:
        """Whether the only run was executed, or lost: the worker claims no more."""
        return self._bytes[self._FINISHED] != 0

    def finish(self) -> None:
        """Record that the only run was executed."""
        self.set_taken(taken=False)
        self._bytes[self._FINISHED] = 1

    @property
    def lost(self) -> bool:
        """Whether the slot's process has died with the only run."""
        return self._bytes[self._LOST] != 0

    def lose(self) -> None:
        """Record that the slot's process has died with the only run."""
        self._bytes[self._LOST] = 1
        self.finish()

    @property
    def busy(self) -> bool:
        """Whether any slot executes a run."""
        return any(self._bytes[self._SLOTS : self._turns_at])

    def set_busy(self, slot: int, *, busy: bool) -> None:
        """Record whether a slot, by its number from 0, executes a run."""
        self._bytes[self._SLOTS + slot % self._slots] = int(busy)

    def turn(self, slot: int) -> None:
        """Record that a slot, by its number from 0, gets on."""
        _TIME.pack_into(self._bytes, self._turns_at + slot % self._slots * _TIME.size, time.monotonic())

    def all_turn(self, seconds: float) -> bool:
        """Return whether every slot has got on within so many seconds."""
        oldest: float = min(at for (at,) in _TIME.iter_unpack(self._bytes[self._turns_at :]))
        return oldest > time.monotonic() - seconds


class WorkerEnd:
    """Decides when the worker ends. One thread uses it."""

    def __init__(self, limits: Limits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._idle_since = monotonic()

    def reason(self, *, busy: bool, finished: bool, lost: bool = False) -> str | None:
        """Return why the worker ends now; None if it goes on.

        `busy`: a slot executes a run; `finished`: the only run of `once` was executed; `lost`: its slot died with it.
        """
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
