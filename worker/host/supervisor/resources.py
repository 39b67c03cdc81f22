"""Records what an attempt uses of its host, as metrics of its run."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from server.lifecycle.attempts.repository import AttemptLedger
from server.metrics.points import MetricPoint
from worker.host.resources import ResourceMeter
from worker.host.supervisor.lease import Lease
from worker.host.supervisor.writes import Writes


class ResourceRecorder:
    """Writes a point of each metric of resources after a summary of the trainer, at the run's step. One thread uses it.

    So there are about as many points as summaries, fewer where summaries come faster than samples, and none of a run
    that stands still.
    """

    def __init__(self, lease: Lease, ledger: AttemptLedger, writes: Writes, gpus: Sequence[str]) -> None:
        """Points up to the lease's present step are those of earlier attempts: the first one lies beyond it."""
        self._lease = lease
        self._ledger = ledger
        self._writes = writes
        self._meter = ResourceMeter(gpus)
        self._recorded = lease.step
        """Step of the newest point."""
        self._due = False

    @property
    def memory(self) -> int:
        """Bytes that trainer and collectors hold together, 0 before the first measurement."""
        return self._meter.memory

    def measuring(self, pid: int) -> AbstractContextManager[None]:
        """Measure a trainer until the end of the block."""
        return self._meter.measuring(pid)

    def record(self, *, summary: bool) -> None:
        """Queue points of the means since the last ones, if they are due.

        That is once after a summary, when the run has made a step and something was measured since then. Call it after
        each summary (`summary`) and after each report of the run's step: these come in any order.
        """
        self._due |= summary
        step = self._lease.step
        if not self._due or step <= self._recorded or not (means := self._meter.take()):
            return
        self._due, self._recorded, at = False, step, time.time()
        points = [MetricPoint(behavior="", key=key, step=step, at=at, value=value) for key, value in means.items()]
        self._writes.add_points(self._ledger.metrics.append, points)
