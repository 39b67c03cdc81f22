"""A behavior that learns from demonstrations alone, with or without simulators.

Simulators that connect play it all the time; when a multiple of
`evaluation_interval` (or the end) is reached, learning waits until `evaluation_episodes` episodes of the weights of
that step have ended, from their first decision on: the same configuration gives the same learning, and evaluations of
exact steps. It waits as long for a simulator as any run does (`simulators.startup_grace_seconds` until the first one
plays, then `grace_seconds`), and `grace_seconds` for the episodes (some games never end). After a wait in which no
simulator came, it does not wait again until one has come. Between evaluations simulators play on with the weights of
the last one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import torch

from ludus.collector.arena import Arena
from ludus.collector.commands import PolicySpec
from ludus.config.run import SimulatorsConfig
from ludus.config.trainer import DemonstratedConfig, TrainerConfig
from ludus.demonstrations import check_fit
from ludus.protocol.spec import BehaviorSpec
from ludus.schemas import OnnxModel
from worker.collectors.events import EpisodesEnded
from worker.collectors.pool import CollectorPool
from worker.experience.demonstrations import DemonstrationBuffer
from worker.learning.algorithms.algorithm import DemonstratedAlgorithm
from worker.onnx.export import exporter
from worker.onnx.graph import acting_graph
from worker.trainer.learner import SAMPLE_ROWS, BaseLearner, next_multiple
from worker.trainer.recorder import Recorder

log = structlog.get_logger()

CHUNK_STEPS = 50
"""Gradient steps of one call of `learn`: a moment for small networks, seconds for large ones."""


@dataclass
class Evaluation:
    """Episodes of one version of the policy."""

    step: int
    ends_at: float
    """Monotonic time at which the wait ends; set again when simulators come or go."""
    played: bool
    """Whether a simulator plays it."""
    limit: float
    """Length in seconds of the wait that ends at `ends_at`."""
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class DemonstratedLearner(BaseLearner):
    """Learns one behavior from demonstrations, in chunks, and has simulators evaluate it."""

    def __init__(
        self,
        spec: BehaviorSpec,
        algorithm: DemonstratedAlgorithm,
        demonstrations: DemonstrationBuffer,
        recorder: Recorder,
        collectors: CollectorPool,
        *,
        simulators: SimulatorsConfig,
        is_played: Callable[[], bool],
        report: Callable[[str, str], None],
    ) -> None:
        """`simulators` says how long evaluations wait, `is_played` whether a simulator plays this behavior now.

        `report(event, message)` reports an evaluation that waits, or that is left out.
        """
        super().__init__(algorithm.config, spec, algorithm, recorder, collectors)
        self.config: DemonstratedConfig = algorithm.config
        self.algorithm: DemonstratedAlgorithm = algorithm
        self._demonstrations = demonstrations
        self._simulators = simulators
        self._is_played = is_played
        self._report = report
        self._evaluation: Evaluation | None = None
        self._registered = False
        self._seen = False
        """Whether a simulator has played it in this attempt."""
        self._was_unplayed = False
        """Whether no simulator played at the end of the last evaluation."""
        self.checkpointed()

    @property
    def step(self) -> int:
        """Gradient steps."""
        return self.algorithm.version

    @property
    def learned(self) -> int:
        """Gradient steps."""
        return self.step

    @property
    def done(self) -> bool:
        """Whether `max_steps` is reached, and evaluated if a simulator came in time."""
        return self.step >= self.config.max_steps and self._evaluation is None

    @property
    def ready(self) -> bool:
        """Whether there is something to learn now, or an evaluation to conclude."""
        evaluation = self._evaluation
        if evaluation is None:
            return not self.done
        now, played = time.monotonic(), self._registered and self._is_played()
        if played != evaluation.played:
            evaluation.played, (evaluation.limit, _) = played, self._limit(played)
            evaluation.ends_at = now + evaluation.limit
        return len(evaluation.returns) >= self.config.evaluation_episodes or now >= evaluation.ends_at

    def register(self, announced: BehaviorSpec, device: str) -> None:
        """Register the behavior that simulators have announced. Raise `DemonstrationError` if it is another one."""
        check_fit(self.spec, announced)
        policy = PolicySpec(
            network_settings=self.config.network_settings,
            weights_size=self.algorithm.flat_weights().size,
            time_horizon=1,
            device=device,
            graph=acting_graph(self.algorithm.actor),
        )
        arena = Arena.create(announced, 1, memory_size=self.algorithm.actor.memory_size)
        self._collectors.admit(announced, policy, arena)
        self._registered = True
        self._publish()
        self._collectors.grant_unrecorded(self.name)

    def episodes_ended(self, event: EpisodesEnded) -> None:
        """Count the episodes that the weights under evaluation have played from their first decision on."""
        evaluation = self._evaluation
        if evaluation is None:
            return
        for version, episode_return, length in event.records[["version", "return", "length"]].tolist():
            if version == evaluation.step and len(evaluation.returns) < self.config.evaluation_episodes:
                evaluation.returns.append(episode_return)
                evaluation.lengths.append(length)

    def learn(self) -> str | None:
        """Conclude an evaluation that is over; else take a chunk of gradient steps, up to the next evaluation.

        Return why it was rolled back, or None. Raises `Diverged` at the third time in a row.
        """
        if self._evaluation is not None:
            self._conclude(self._evaluation)
            return None
        goal = min(
            self.step + CHUNK_STEPS,
            next_multiple(self.step, self.config.evaluation_interval),
            next_multiple(self.step, self.config.summary_freq),
            next_multiple(self.step, self.config.checkpoint_interval),
            self.config.max_steps,
        )

        def improve() -> None:
            measured = self.algorithm.iterate(goal - self.step)
            log.debug("update_made", behavior=self.name, step=self.step, measured=measured)
            self.recorder.learned(measured)
            self.recorder.advance(self.step)

        taken_back = self._attempt(improve)
        due = self.step == goal and (goal % self.config.evaluation_interval == 0 or goal >= self.config.max_steps)
        played = self._registered and self._is_played()
        if due and self.config.evaluation_episodes and (played or not self._was_unplayed):
            seconds, key = self._limit(played)
            self._evaluation = Evaluation(self.step, time.monotonic() + seconds, played, seconds)
            if self._registered:
                self._publish()
            if not played:
                limit = "without limit" if seconds == math.inf else f"for {seconds:g} s"
                self._report(
                    "evaluation_waits",
                    f"The evaluation of {self.name} at step {self.step} waits for a simulator, {limit} ({key}); "
                    "evaluation_episodes: 0 trains without any",
                )
        return taken_back

    def reconfigure(self, config: TrainerConfig) -> bool:
        """Go on with another section of the configuration from the next chunk of gradient steps on."""
        assert isinstance(config, DemonstratedConfig), "the trainer of a behavior never changes"
        self.config = config
        self.algorithm.reconfigure(config)
        self.checkpointed()
        return True

    def state(self) -> dict[str, object]:
        """Return the state for a checkpoint."""
        return {"progress": {"step": self.step}, "algorithm": self.algorithm.state_dict()}

    def exporter(self) -> Callable[[Path], OnnxModel]:
        """As `BehaviorLearner.exporter`; the model is checked on demonstrated observations."""
        rows = torch.arange(
            min(SAMPLE_ROWS, self._demonstrations.steps), device=self._demonstrations.transitions.index.device
        )
        masks = self._demonstrations.masks
        return exporter(
            self.algorithm.actor,
            self.spec,
            [part.cpu() for part in self._demonstrations.observations(rows)],
            None if masks is None else masks[rows].cpu(),
        )

    def _limit(self, played: bool) -> tuple[float, str]:
        """Return for how many seconds an evaluation waits, for a simulator or for its episodes, and the setting."""
        self._seen |= played
        if self._seen:
            return self._simulators.grace_seconds, "simulators.grace_seconds"
        limit = self._simulators.startup_grace_seconds
        return math.inf if limit is None else limit, "simulators.startup_grace_seconds"

    def _conclude(self, evaluation: Evaluation) -> None:
        self._evaluation = None
        self._was_unplayed = not evaluation.played
        if len(evaluation.returns) >= self.config.evaluation_episodes:
            self.recorder.evaluated(evaluation.step, evaluation.returns, evaluation.lengths)
            return
        message = (
            f"The evaluation of {self.name} at step {evaluation.step} had {len(evaluation.returns)} of "
            f"{self.config.evaluation_episodes} episodes when its time was up ({evaluation.limit:g} s)"
        )
        if self._was_unplayed:
            message += "; no simulator was there, and until one comes later evaluations are left out"
        self._report("evaluation_abandoned", message)
