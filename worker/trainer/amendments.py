"""Changes of an attempt's configuration by users. They take effect between two updates.

A trainer begins with a configuration that contains all amendments, and reports those that its checkpoint does not know.
Amendments that arrive later are applied in their order, each once. A checkpoint holds the number of the newest one.
"""

import structlog

from server.config.amendment import apply_changes
from server.runs.amendments.repository import AmendmentRef
from worker.trainer.attempt import Attempt
from worker.trainer.messages import Amended

log = structlog.get_logger()


class Amendments:
    """Changes the configuration of an attempt."""

    def __init__(self, attempt: Attempt, saved: int) -> None:
        """`saved` is the number in the checkpoint, 0 without one."""
        self._attempt = attempt
        self.applied = saved
        """Number of the newest amendment that was reported: a checkpoint contains the effect of all up to it."""

    def begin(self) -> None:
        """Report the amendments that the attempt begins with and that its checkpoint does not know."""
        for amendment in self._attempt.job.amendments:
            if amendment.seq > self.applied:
                self._report(amendment, self._attempt.step)

    def apply(self, amendment: AmendmentRef) -> list[str]:
        """Change the configuration; do nothing for an amendment that is applied already.

        Return the behaviors that were done and now have more to learn: they need a new attempt for it.
        """
        if amendment.seq <= self.applied:
            return []
        before, learners = self._attempt.config, self._attempt.learners
        self._attempt.config = after = apply_changes(before, {each["path"]: each["new"] for each in amendment.changes})
        restart = [
            name
            for name, section in after.behaviors.items()
            if section != before.behaviors[name] and name in learners and not learners[name].reconfigure(section)
        ]
        self._report(amendment, sum(learner.learned for learner in learners.values()))
        return restart

    def _report(self, amendment: AmendmentRef, step: int) -> None:
        self.applied = amendment.seq
        log.info("hyperparameters_changed", seq=amendment.seq, paths=[each["path"] for each in amendment.changes])
        self._attempt.supervisor.post(Amended(amendment=amendment, step=step))
