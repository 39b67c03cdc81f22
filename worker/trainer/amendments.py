"""The configuration of an attempt while it goes on: what users change in it takes effect between two updates.

A trainer begins with the configuration as it is by then, all amendments made, and tells those that its checkpoint does
not know. Those that come while it runs are made in their order, each once. A checkpoint says up to which number.
"""

from collections.abc import Mapping
from typing import Any

import structlog

from server.config.amendment import apply_changes
from server.config.config import RunConfig
from worker.trainer.learner import Learner
from worker.trainer.link import Amended, Amendment, Job
from worker.trainer.superior import Superior

log = structlog.get_logger()


class Amendments:
    """Knows the present configuration."""

    def __init__(self, job: Job, superior: Superior, learners: Mapping[str, Learner], saved: int) -> None:
        """`learners` grows as behaviors come; `saved` is the number in the checkpoint, 0 without one."""
        self.config = RunConfig.model_validate(job.config)
        self._superior = superior
        self._learners = learners
        self._made = saved
        """Number of the newest amendment that was told."""
        self._untold = [each for each in job.amendments if each.seq > saved]

    @property
    def made(self) -> int:
        """The number that a checkpoint keeps: up to this one everything is in what it holds."""
        return self._made

    def begin(self, step: int) -> None:
        """Tell what this attempt begins with and its checkpoint did not know. `step`: of all behaviors together."""
        for amendment in self._untold:
            self._tell(amendment, step)
        self._untold = []

    def make(self, amendment: Amendment) -> list[str]:
        """Go on with an amendment; one that is made already is left out.

        Return the behaviors that are done with learning and now have more to learn: they can't in this attempt.
        """
        if amendment.seq <= self._made:
            return []
        before = self.config
        self.config = apply_changes(before, {each.path: each.new for each in amendment.changes})
        begin_anew = [
            name
            for name, section in self.config.behaviors.items()
            if section != before.behaviors[name]
            and name in self._learners
            and not self._learners[name].reconfigure(section)
        ]
        self._tell(amendment, sum(learner.learnt for learner in self._learners.values()))
        return begin_anew

    def _tell(self, amendment: Amendment, step: int) -> None:
        self._made = amendment.seq
        log.info("hyperparameters_changed", seq=amendment.seq, paths=[each.path for each in amendment.changes])
        self._superior.post(Amended(amendment=amendment, step=step))


def saved_number(state: Mapping[str, Any] | None) -> int:
    """Return the number that a checkpoint keeps under its key; 0 where it keeps none."""
    return 0 if state is None else int(state["made"])
