"""A run's life: the one table of legal moves (design §5, names per AIP-216). Nothing else decides.

In-flight states end in -ING, finished ones in -ED. `RECOVERING` lies between two attempts of a run whose lease ran out.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class RunKind(StrEnum):
    """What a run does."""

    TRAIN = "train"
    CLONE = "clone"
    """Imitates demonstrations alone, in every behavior: it needs no simulator."""
    MATCH = "match"
    """Lets two frozen policies play against each other, until it is known whether one is stronger."""
    EVALUATE = "evaluate"
    """Lets a frozen policy play, and compares what it earns with a threshold."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "RunKind":
        """Return what a run with this resolved configuration does."""
        for assessment in (cls.MATCH, cls.EVALUATE):
            if config.get(assessment):
                return assessment
        trainers = {behavior.get("trainer_type") for behavior in config.get("behaviors", {}).values()}
        return cls.CLONE if trainers == {"clone"} else cls.TRAIN


class RunState(StrEnum):
    """Where a run is in its life."""

    CREATED = "CREATED"
    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    RECOVERING = "RECOVERING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StopReason(StrEnum):
    """Why a run stopped or paused: a column, never guessed from logs."""

    COMPLETED = "completed"
    """Every behavior reached its `max_steps`."""
    USER = "user"
    """Somebody asked for it (`:stop`, `:cancel`, `:pause`)."""
    WORKER_LOST = "worker_lost"
    """The lease ran out and the restart budget without progress is spent."""
    SIMULATORS_LOST = "simulators_lost"
    """No simulator has come within `simulators.startup_grace_seconds`, or all were gone for `grace_seconds`."""
    BEHAVIOR_MISSING = "behavior_missing"
    """All that connected simulators play has been learnt, and none plays the behaviors that are left."""
    DIVERGED = "diverged"
    INVALID_CONFIG = "invalid_config"
    """The worker refused the configuration (for instance: a demonstration does not fit the behavior)."""
    STORAGE_FULL = "storage_full"
    """A checkpoint could not be written for want of space."""
    STORAGE_UNAVAILABLE = "storage_unavailable"
    """The artifact store refused the last checkpoint (no bucket, no right to write), or failed."""
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    """Every checkpoint that the run could go on from is damaged or missing; the events say which files."""
    MEMORY_LIMIT = "memory_limit"
    """Trainers outgrew `worker.trainer_memory_bytes`, or the kernel killed them for want of memory, again and again,
    without a new checkpoint in between."""
    TRAINER_LOST = "trainer_lost"
    """Trainers died, hung or did not start, again and again, without a new checkpoint in between."""
    TRAINER_ERROR = "trainer_error"
    """The trainer failed with an error of its own; the log of the attempt has the traceback."""


S = RunState

TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    S.CREATED: frozenset({S.QUEUED, S.CANCELLED}),
    S.QUEUED: frozenset({S.STARTING, S.PAUSED, S.CANCELLED, S.SUCCEEDED}),
    S.STARTING: frozenset({S.RUNNING, S.PAUSING, S.STOPPING, S.RECOVERING, S.FAILED, S.CANCELLED}),
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
    """What a supervisor shall do, as it learns with each heartbeat. A later one outranks those before it here."""

    NONE = "none"
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
