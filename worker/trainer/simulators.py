"""The simulators of one attempt: which behaviors each of them plays, and since when there is none."""

import time
from collections.abc import Sequence

from ludus.collector.messages import SimulatorLeft


class ConnectedSimulators:
    """Counts the connected simulators; `len` is their number. Only the trainer's main thread uses it."""

    def __init__(self) -> None:
        self._behaviors: dict[str, set[str]] = {}
        """Session id -> the behaviors that the simulator plays; empty before its first step."""
        self.absent_since = time.monotonic()
        """When the last simulator left; before the first one came, when the attempt began to listen."""
        self.any_came = False
        """Whether a simulator has connected in this attempt."""

    def __len__(self) -> int:
        """Return the number of connected simulators."""
        return len(self._behaviors)

    @property
    def any_plays(self) -> bool:
        """Whether a simulator has sent its first step."""
        return any(self._behaviors.values())

    def is_played(self, behavior: str) -> bool:
        """Whether a simulator has begun to play a behavior."""
        return any(behavior in behaviors for behaviors in self._behaviors.values())

    def begin(self) -> None:
        """Begin to measure how long there is no simulator: the attempt listens now."""
        self.absent_since = time.monotonic()

    def connected(self, session_id: str) -> None:
        """Add a simulator that has opened its session."""
        self._behaviors[session_id] = set()
        self.any_came = True

    def started(self, session_id: str, names: Sequence[str]) -> None:
        """Set the names of behaviors (`NAME?team=N`) that a simulator has announced by now."""
        self._behaviors[session_id] = {name.partition("?")[0] for name in names}

    def left(self, event: SimulatorLeft) -> bool:
        """Remove a simulator. Return False for one that was refused before it was connected."""
        was_connected = self._behaviors.pop(event.session_id, None) is not None
        if was_connected:
            self.absent_since = time.monotonic()
        return was_connected
