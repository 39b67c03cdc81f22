"""Kinds and states of runs, and the reasons for which they stop."""

from enum import StrEnum


class RunKind(StrEnum):
    """Kind of a run."""

    TRAIN = "train"
    CLONE = "clone"
    """Imitates demonstrations alone, in every behavior: it needs no simulator."""
    MATCH = "match"
    """Two frozen policies play against each other until it is known whether one is stronger."""
    EVALUATE = "evaluate"
    """A frozen policy plays; its return is compared with a threshold."""


class RunState(StrEnum):
    """The state of a run."""

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
    """A user asked for it (`:stop`, `:cancel`, `:pause`)."""
    WORKER_LOST = "worker_lost"
    """The lease ran out and the restart budget without progress is spent."""
    SIMULATORS_LOST = "simulators_lost"
    """No simulator has come within `simulators.startup_grace_seconds`, or all were gone for `grace_seconds`."""
    BEHAVIOR_MISSING = "behavior_missing"
    """All that connected simulators play has been learned, and none plays the behaviors that are left."""
    BEHAVIOR_REFUSED = "behavior_refused"
    """It was stopped before any behavior was trained, and all that its games announced were refused."""
    DIVERGED = "diverged"
    INVALID_CONFIG = "invalid_config"
    """The worker refused the configuration (for instance: a demonstration does not fit the behavior)."""
    STORAGE_FULL = "storage_full"
    """A checkpoint could not be written for want of space."""
    STORAGE_UNAVAILABLE = "storage_unavailable"
    """The artifact store refused the last checkpoint (no bucket, no right to write), or failed."""
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    """Every checkpoint that the run could go on from, or one that its configuration names, is damaged or missing; the
    events say which files."""
    MEMORY_LIMIT = "memory_limit"
    """Trainers outgrew `worker.trainer_memory_bytes`, or the kernel killed them for want of memory, again and again,
    without a new checkpoint in between."""
    TRAINER_LOST = "trainer_lost"
    """Trainers died, hung or did not start, again and again, without a new checkpoint in between."""
    TRAINER_ERROR = "trainer_error"
    """The trainer failed with an error of its own; the log of the attempt has the traceback."""
