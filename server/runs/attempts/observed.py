"""Facts about an attempt for its observers: `worker.host.telemetry` counts them, `worker.host.tracing` sends spans."""

from collections.abc import Callable
from typing import NamedTuple

from ludus.schemas.states import RunState


class Renewed(NamedTuple):
    """A renewal of the lease has ended: `ok`, or with the code of an error."""

    seconds: float
    outcome: str


class Listening(NamedTuple):
    """Simulators can connect."""


class SimulatorChanged(NamedTuple):
    """A simulator has `connected` or `plays`, or its session has ended, or was refused, with a code."""

    session_id: str
    change: str


class Recorded(NamedTuple):
    """An event of the trainer has its number."""

    type: str


class CheckpointCopied(NamedTuple):
    """The files of a checkpoint are in the artifact store. Told on the thread that copies."""

    path: str
    seconds: float


class CheckpointSaved(NamedTuple):
    """A checkpoint was entered; its files have `size` bytes."""

    path: str
    reason: str
    step: int
    size: int


class Moved(NamedTuple):
    """The attempt has moved its run."""

    to: RunState
    reason: str | None
    detail: str | None


class Released(NamedTuple):
    """The attempt has ended and left the run to another worker."""

    outcome: str
    detail: str


Observed = Renewed | Listening | SimulatorChanged | Recorded | CheckpointCopied | CheckpointSaved | Moved | Released
Observer = Callable[[Observed], None]
"""Called after the commit of a write. It must neither raise nor wait."""
