"""The interface of a behavior's learner, and the parts that all learners share."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import structlog

from ludus.config.behavior import TrainerConfig
from ludus.protocol.spec import BehaviorSpec
from ludus.schemas import OnnxModel
from worker.collectors.events import EpisodesEnded
from worker.collectors.pool import CollectorPool
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.bc import Cloning
from worker.learning.algorithms.numeric_check import Diverged
from worker.trainer.recorder import Recorder

log = structlog.get_logger()

SAMPLE_ROWS = 64
"""Observations on which an exported model is checked."""
MAX_ROLLBACKS = 3
"""Updates in a row that may be rolled back before the run has failed."""


class Learner(ABC):
    """Trains one behavior: the interface that the loop uses."""

    def __init__(
        self,
        config: TrainerConfig,
        spec: BehaviorSpec,
        algorithm: Algorithm | Cloning,
        recorder: Recorder,
        collectors: CollectorPool,
    ) -> None:
        self.config = config
        """The behavior's section of the configuration."""
        self.spec = spec
        self.algorithm = algorithm
        self.recorder = recorder
        self._collectors = collectors
        self._next_checkpoint = 0

    @property
    def name(self) -> str:
        """The behavior's key in the configuration."""
        return self.spec.behavior

    @property
    @abstractmethod
    def step(self) -> int:
        """Steps that reports show: delivered ones, learned from or not yet."""

    @property
    @abstractmethod
    def learned(self) -> int:
        """Steps that a checkpoint that is written now contains."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether `max_steps` is reached."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether `learn` has something to do."""

    @property
    def checkpoint_due(self) -> bool:
        """Whether a multiple of `checkpoint_interval` has been crossed since the last checkpoint."""
        return self.learned >= self._next_checkpoint

    def checkpointed(self) -> None:
        """Plan the next checkpoint, after one has been written."""
        self._next_checkpoint = next_multiple(self.learned, self.config.checkpoint_interval)

    @abstractmethod
    def episodes_ended(self, event: EpisodesEnded) -> None:
        """Record finished episodes."""

    @abstractmethod
    def learn(self) -> str | None:
        """Learn for a moment, or make one update.

        Return None, or why an update was rolled back (the run then continues with the weights from before). Raises
        `Diverged` at the third time in a row, and `worker.trainer.health.divergence.LimitCrossed`.
        """

    @abstractmethod
    def reconfigure(self, config: TrainerConfig) -> bool:
        """Go on with another section of the configuration from the next update on.

        Return whether that is possible: a behavior that is done with learning can't begin again in this attempt.
        """

    @abstractmethod
    def state(self) -> dict[str, object]:
        """Return the state for a checkpoint."""

    @abstractmethod
    def exporter(self) -> Callable[[Path], OnnxModel]:
        """Copy the policy; return a function that writes it as an ONNX model, on any thread, while learning goes on.

        The function returns the description of the model.
        """

    def _publish(self) -> None:
        """Send the collectors the present weights."""
        self._collectors.publish(self.name, self.algorithm.version, self.algorithm.flat_weights())
        log.debug("policy_published", behavior=self.name, version=self.algorithm.version)


class Rollbacks:
    """Counts updates that were rolled back one after the other."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def attempt(self, update: Callable[[], None]) -> str | None:
        """Run an update; return why it was rolled back, or None. Raises `Diverged` at `MAX_ROLLBACKS` in a row."""
        try:
            update()
        except Diverged as error:
            self._in_a_row += 1
            if self._in_a_row >= MAX_ROLLBACKS:
                raise
            return str(error)
        self._in_a_row = 0
        return None


def next_multiple(step: int, interval: int) -> int:
    """Return the first multiple of `interval` behind `step`."""
    return (step // interval + 1) * interval
