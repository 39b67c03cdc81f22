"""One behavior's learning: rounds of experience in, versions of weights out.

A round is `buffer_size` agent steps (the last one is shorter, so that a run ends at `max_steps` exactly). Deviation
from ML-Agents, on purpose: ML-Agents updates when its buffer holds strictly more than `buffer_size`, by whatever the
last trajectories brought; here a round has an exact size, so that which version acted on a step depends on counts
only.

With `threaded: false` the next round is granted when the new version is published: collectors hold meanwhile
(lockstep). With `threaded: true` it is granted when the update begins: collection runs one round ahead at most.

A behavior that is done goes on answering, without learning, while others of the run still train.
"""

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Self

from torch import Tensor

from ludus.spec import BehaviorSpec
from server.training.config import BehaviorConfig
from worker.algorithms.ppo import PPO, Diverged
from worker.collector.pool import CollectorPool
from worker.experience.arena import Arena
from worker.experience.rollout import Rollout
from worker.experience.segments import Segment
from worker.recorder import POLICY_VERSION, Aggregation, Recorder

SAMPLE_ROWS = 64
MAX_ROLLBACKS = 3
"""Updates in a row that may be rolled back before the run has failed."""


@dataclass
class Progress:
    """What a checkpoint remembers of a behavior beside its algorithm's state."""

    step: int = 0
    """Agent steps learnt from."""
    round: int = 0
    """The round that is being collected, counted from 1."""


@dataclass(frozen=True)
class Sample:
    """Some recorded observations, on which an exported model is checked against the policy."""

    observations: list[Tensor]
    """`(B, *shape)` each; none before the first round."""
    masks: Tensor | None
    """`(B, choices)`."""

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        """Copy the first rows of a rollout."""
        masks = rollout.action_masks
        return cls(
            [column[:SAMPLE_ROWS].clone() for column in rollout.observations],
            None if masks is None else masks[:SAMPLE_ROWS].clone(),
        )


class BehaviorLearner:
    """Collects segments of one behavior, learns from whole rounds, publishes the result."""

    def __init__(
        self,
        config: BehaviorConfig,
        spec: BehaviorSpec,
        algorithm: PPO,
        arena: Arena,
        recorder: Recorder,
        pool: CollectorPool,
        progress: Progress,
    ) -> None:
        self.config = config
        self.spec = spec
        self.algorithm = algorithm
        self.recorder = recorder
        self.progress = progress
        self._arena = arena
        self._pool = pool
        self._segments: defaultdict[int, list[Segment]] = defaultdict(list)
        self._collected: set[int] = set()
        self._delivered = progress.step
        self._granted = progress.step
        self._last_round = progress.round
        self._rollbacks = 0
        self.sample = Sample([], None)
        self._next_checkpoint = 0

    @property
    def name(self) -> str:
        """The behavior's key in the configuration."""
        return self.spec.behavior

    @property
    def step(self) -> int:
        """Agent steps delivered, learnt from or not yet."""
        return self._delivered

    @property
    def done(self) -> bool:
        """Whether `max_steps` is reached."""
        return self.progress.step >= self.config.max_steps

    @property
    def checkpoint_due(self) -> bool:
        """Whether a multiple of `checkpoint_interval` has been crossed since the last checkpoint."""
        return self.progress.step >= self._next_checkpoint

    def start(self) -> None:
        """Publish the weights and grant the first round; or only answer, if everything is learnt already."""
        self.checkpointed()
        self._publish()
        if self.done:
            self._pool.grant_unrecorded(self.name)
        else:
            self._grant()
            self.progress.round = self._last_round

    def checkpointed(self) -> None:
        """Take note that everything up to now is in a checkpoint."""
        interval = self.config.checkpoint_interval
        self._next_checkpoint = (self.progress.step // interval + 1) * interval

    def add(self, segments: tuple[Segment, ...], steps: int) -> None:
        """Take over delivered segments."""
        for segment in segments:
            self._segments[segment.round].append(segment)
        self._delivered += steps
        self.recorder.advance(self._delivered)

    def collected(self, round_number: int) -> None:
        """Take note that a round is complete."""
        self._collected.add(round_number)

    @property
    def ready(self) -> bool:
        """Whether the round to learn from is complete."""
        return not self.done and self.progress.round in self._collected

    def learn(self) -> str | None:
        """Improve the policy on the round and publish it.

        Return None, or why the update was taken back (the run then goes on with the weights that it had). Raises
        `Diverged` at the third time in a row.
        """
        self._collected.discard(self.progress.round)
        segments = self._segments.pop(self.progress.round)
        rollout = self._arena.gather(segments)
        self._pool.reclaim(self.name, segments)
        self.progress.step += rollout.steps
        self.progress.round += 1
        if self.config.threaded:
            self._grant()
        diagnosis = self._update(rollout)
        if self.done:
            self._pool.grant_unrecorded(self.name)
        elif not self.config.threaded:
            self._grant()
        return diagnosis

    def state(self) -> dict[str, object]:
        """Return what a checkpoint must hold to go on from here."""
        return {"progress": asdict(self.progress), "algorithm": self.algorithm.state_dict()}

    def _update(self, rollout: Rollout) -> str | None:
        self.sample = Sample.of(rollout)
        try:
            stats = self.algorithm.update(rollout, self.progress.step)
        except Diverged as error:
            self._rollbacks += 1
            if self._rollbacks >= MAX_ROLLBACKS:
                raise
            return str(error)
        self._rollbacks = 0
        self.recorder.learned(stats.metrics())
        self._publish()
        return None

    def _publish(self) -> None:
        self.recorder.measure(POLICY_VERSION, self.algorithm.version, Aggregation.LAST)
        self._pool.publish(self.name, self.algorithm.version, self.algorithm.flat_weights())

    def _grant(self) -> None:
        """Permit the collection of one more round, if there is anything left to collect."""
        size = min(self.config.hyperparameters.buffer_size, self.config.max_steps - self._granted)
        if size > 0:
            self._last_round += 1
            self._granted += size
            self._pool.grant(self.name, self._last_round, size)
