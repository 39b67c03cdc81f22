"""A run's life: the one table of legal moves (design §5, names per AIP-216). Nothing else decides.

In-flight states end in -ING, finished ones in -ED. `RECOVERING` lies between two attempts of a run whose lease ran out.
"""

from collections.abc import Mapping
from enum import StrEnum

from ludus.schemas.states import RunState

S = RunState

TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    S.CREATED: frozenset({S.QUEUED, S.CANCELLED}),
    S.QUEUED: frozenset({S.STARTING, S.PAUSED, S.CANCELLED, S.SUCCEEDED}),
    S.STARTING: frozenset({S.RUNNING, S.QUEUED, S.PAUSING, S.STOPPING, S.RECOVERING, S.FAILED, S.CANCELLED}),
    S.RUNNING: frozenset({S.PAUSING, S.STOPPING, S.RECOVERING, S.SUCCEEDED, S.FAILED, S.CANCELLED}),
    S.PAUSING: frozenset({S.PAUSED, S.STOPPING, S.RECOVERING, S.FAILED, S.CANCELLED}),
    S.PAUSED: frozenset({S.QUEUED, S.STOPPING, S.SUCCEEDED, S.CANCELLED}),
    S.STOPPING: frozenset({S.SUCCEEDED, S.RECOVERING, S.FAILED, S.CANCELLED}),
    S.RECOVERING: frozenset({S.STARTING, S.PAUSED, S.SUCCEEDED, S.FAILED, S.CANCELLED}),
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}

TERMINAL = frozenset(state for state, moves in TRANSITIONS.items() if not moves)
"""States that never change again."""

LEASED = frozenset({S.STARTING, S.RUNNING, S.PAUSING, S.STOPPING})
"""States in which a worker holds a lease on the run."""

CLAIMABLE = frozenset({S.QUEUED, S.RECOVERING})
"""States from which a worker may claim the run."""


class Intent(StrEnum):
    """A request to a supervisor, which reads it with each heartbeat. Each one outranks those above it."""

    NONE = "none"
    RELEASE = "release"
    """Checkpoint, then RECOVERING: another slot takes the run (an operator drains this one). QUEUED if the slot is lent
    (`server.lifecycle.lending`)."""
    PAUSE = "pause"
    """Checkpoint, then PAUSED with reason `user`; the worker is free."""
    STOP = "stop"
    """Final checkpoint and export, then SUCCEEDED with reason `user`."""
    CANCEL = "cancel"
    """CANCELLED, without a checkpoint."""


EVENT_OF: Mapping[RunState, str] = {
    S.QUEUED: "run_queued",
    S.STARTING: "run_claimed",
    S.RUNNING: "run_started",
    S.PAUSING: "run_pausing",
    S.PAUSED: "run_paused",
    S.STOPPING: "run_stopping",
    S.RECOVERING: "run_recovering",
    S.SUCCEEDED: "run_succeeded",
    S.FAILED: "run_failed",
    S.CANCELLED: "run_cancelled",
}
"""Type of the event that comes with the move into a state."""
