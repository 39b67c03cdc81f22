"""Playing a behavior without learning: `checkpoint_settings.inference`, ML-Agents' `--inference`.

Its agents are answered with the weights that the run began with, without a limit. Only their episodes are recorded, for
summaries as in training. Steps count the answered decisions, also within an episode: agents whose episodes end together
would move them by several summaries at once. The state never changes, so that no checkpoint is ever due. The run plays
until it is stopped or has no simulators.
"""

from collections.abc import Callable
from pathlib import Path

from ludus.config.behavior import ReinforcementConfig, TrainerConfig
from ludus.protocol.spec import BehaviorSpec
from ludus.schemas import OnnxModel
from worker.collectors.events import EpisodesEnded
from worker.collectors.pool import CollectorPool
from worker.learning.algorithms.algorithm import Algorithm
from worker.onnx.export import exporter
from worker.trainer.base_learner import Learner
from worker.trainer.recorder import POLICY_VERSION, Aggregation, Recorder


class InferenceLearner(Learner):
    """A learner that does not learn."""

    step = 0
    learned = 0
    done = False
    ready = False
    checkpoint_due = False

    def __init__(
        self,
        config: ReinforcementConfig,
        spec: BehaviorSpec,
        algorithm: Algorithm,
        recorder: Recorder,
        collectors: CollectorPool,
        step: int,
    ) -> None:
        """`step`: how long the policy had learned for."""
        super().__init__(config, spec, algorithm, recorder, collectors)
        self.learned = step
        self.step = step

    def start(self) -> None:
        """Publish the weights, and answer all agents with them."""
        self.recorder.measure(POLICY_VERSION, self.algorithm.version, Aggregation.LAST)
        self._publish()
        self._collectors.grant_unrecorded(self.name)

    def episodes_ended(self, event: EpisodesEnded) -> None:
        """Record finished episodes."""
        for episode_return, length, group_return in event.records[["return", "length", "group_return"]].tolist():
            self.recorder.episode(episode_return, length, group_return)

    def played(self, steps: int) -> None:
        """Count answered decisions, and write the summary that becomes due with them."""
        self.step += steps
        self.recorder.advance(self.step)

    def learn(self) -> None:
        """Do nothing."""

    def reconfigure(self, config: TrainerConfig) -> bool:
        """Take the new section; the keys that can change only concern learning."""
        assert isinstance(config, ReinforcementConfig), "the trainer of a behavior never changes"
        self.config = config
        return True

    def state(self) -> dict[str, object]:
        """Return the state for a checkpoint."""
        return {"progress": {"step": self.learned, "round": 0}, "algorithm": self.algorithm.state_dict()}

    def exporter(self) -> Callable[[Path], OnnxModel]:
        """As `Learner.exporter`."""
        return exporter(self.algorithm.actor, self.spec)
