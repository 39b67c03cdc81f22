"""One behavior's learning: rounds of experience in, versions of weights out.

A round is a number of agent steps that the algorithm chooses. PPO and POCA ask for `buffer_size`. SAC asks for the
steps until the next gradient step is due by `steps_per_update`, but for at least one of each agent that acts; before
the first gradient step it asks for what is missing until then. The last round is shorter, so that learning ends with
`max_steps` steps. More may be delivered: a message is answered whole, and its steps beyond the round count into the
next one (`ludus.collector.step_quota`), which after the last round is never learned from. They are in `step`, not in
`learned`: a run may end at "3,003 of 3,000".

Deviation from ML-Agents, on purpose: ML-Agents updates when its buffer holds strictly more than `buffer_size`, by
whatever the last trajectories brought. Here a round has a given size (a collector that died and was started again may
add steps that its predecessor had answered in advance), so that which version acted on a step depends on counts only.

With `threaded: false` the next round is granted when the new version is published: collectors hold meanwhile
(lockstep). With `threaded: true` it is granted when the update begins: collection runs one round ahead at most.

Weights are published when an update has changed them; while a replay buffer fills, collectors go on with what they
have. A behavior that is done goes on answering, without learning, while others of the run still train.
"""

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from torch import Tensor

from ludus.collector.arena import Arena
from ludus.collector.segments import Segments
from ludus.config.trainer import ReinforcementConfig, TrainerConfig
from ludus.protocol.spec import BehaviorSpec
from ludus.schemas import OnnxModel
from worker.collectors.behaviors import rank_of
from worker.collectors.events import EpisodesEnded, SegmentsDelivered
from worker.collectors.pool import CollectorPool
from worker.experience.rollout import Rollout, gather
from worker.experience.state import State
from worker.learning.algorithms.algorithm import Algorithm, Learning
from worker.learning.algorithms.numeric_check import Diverged
from worker.onnx.export import exporter
from worker.selfplay.controller import GhostController
from worker.trainer.compilation import BackgroundCompilation, bf16_pictures
from worker.trainer.health.monitor import HealthMonitor
from worker.trainer.ranks import Ranks
from worker.trainer.recorder import POLICY_VERSION, Aggregation, Recorder

log = structlog.get_logger()

SAMPLE_ROWS = 64
"""Observations on which an exported model is checked."""
MAX_ROLLBACKS = 3
"""Updates in a row that may be rolled back before the run has failed."""


class BaseLearner(ABC):
    """What the learners of behaviors share (`worker.trainer.attempt.Learner`)."""

    def __init__(
        self,
        config: TrainerConfig,
        spec: BehaviorSpec,
        algorithm: Learning,
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
        self._rollbacks = 0
        """In a row."""

    @property
    def name(self) -> str:
        """The behavior's key in the configuration."""
        return self.spec.behavior

    @property
    @abstractmethod
    def learned(self) -> int:
        """Steps that a checkpoint that is written now contains."""

    @property
    def checkpoint_due(self) -> bool:
        """Whether a multiple of `checkpoint_interval` has been crossed since the last checkpoint."""
        return self.learned >= self._next_checkpoint

    def checkpointed(self) -> None:
        """Plan the next checkpoint, after one has been written."""
        self._next_checkpoint = next_multiple(self.learned, self.config.checkpoint_interval)

    def _attempt(self, update: Callable[[], None]) -> str | None:
        """Run an update; return why it was rolled back, or None. Raises `Diverged` at `MAX_ROLLBACKS` in a row."""
        try:
            update()
        except Diverged as error:
            self._rollbacks += 1
            if self._rollbacks >= MAX_ROLLBACKS:
                raise
            return str(error)
        self._rollbacks = 0
        return None

    def _publish(self) -> None:
        """Send the collectors the present weights."""
        self._collectors.publish(self.name, self.algorithm.version, self.algorithm.flat_weights())
        log.debug("policy_published", behavior=self.name, version=self.algorithm.version)


def next_multiple(step: int, interval: int) -> int:
    """Return the first multiple of `interval` behind `step`."""
    return (step // interval + 1) * interval


@dataclass
class Progress:
    """How far a behavior is: part of its state in a checkpoint."""

    step: int = 0
    """Agent steps learned from."""
    round: int = 0
    """The round that is being collected, counted from 1."""


def sample_of(rollout: Rollout) -> tuple[list[Tensor], Tensor | None]:
    """Copy the first rows of a rollout: observations, `(B, *shape)` each, and action masks, `(B, choices)`."""
    columns = [*rollout.observations, *([] if rollout.action_masks is None else [rollout.action_masks])]
    if rollout.steps > SAMPLE_ROWS:  # copies: a few rows must not keep a large column alive
        columns = [column[:SAMPLE_ROWS].clone() for column in columns]
    masks = None if rollout.action_masks is None else columns.pop()
    return columns, masks


def arena_steps(config: ReinforcementConfig, round_steps: int) -> int:
    """Return how many steps an arena must hold beside those of its spare blocks.

    Threaded collection runs a round ahead; open segments of either round take room beside the gathered one. A round may
    be shorter than a segment (SAC learns after every few steps): segments are cut at its end all the same.
    """
    return 3 * max(round_steps, config.time_horizon)


@dataclass(frozen=True)
class LearnerOptions:
    """Options of a learner; by default it only learns from rounds."""

    bf16: bool = False
    """Whether pictures are encoded in bfloat16 during updates."""
    compilation: BackgroundCompilation | None = None
    """Compiles the updates."""
    team: GhostController | None = None
    """Of a behavior in self-play: it learns in its turns only, and else waits with its collected steps."""
    health: HealthMonitor | None = None
    """Finds out why the policy does not learn, or not as it should."""
    fresh: Callable[[int], State] | None = None
    """Of an exploiter: returns the state of its algorithm after the reset of a number."""
    ranks: Ranks | None = None
    """The trainer's other ranks, if there are any: they learn from the parts of a round that their collectors play."""


class BehaviorLearner(BaseLearner):
    """Collects segments of one behavior, learns from whole rounds, publishes the result."""

    def __init__(
        self,
        config: ReinforcementConfig,
        spec: BehaviorSpec,
        algorithm: Algorithm,
        arena: Arena,
        recorder: Recorder,
        collectors: CollectorPool,
        progress: Progress,
        options: LearnerOptions | None = None,
    ) -> None:
        """`progress` is how far the behavior is: that of a checkpoint, or none."""
        super().__init__(config, spec, algorithm, recorder, collectors)
        self.config: ReinforcementConfig = config
        self.algorithm: Algorithm = algorithm
        self.progress = progress
        options = options or LearnerOptions()
        self.health = options.health
        self._bf16, self._compilation, self._team = options.bf16, options.compilation, options.team
        self._fresh = options.fresh
        self._ranks, self._rank_count = options.ranks, 1 if options.ranks is None else options.ranks.count
        self._arena = arena
        self._segments: defaultdict[tuple[int, int], list[Segments]] = defaultdict(list)
        """By round, and the rank that learns from them."""
        self._ended: defaultdict[int, list[tuple[int, list[Any]]]] = defaultdict(list)
        """Episodes whose segments are on their way, by collector: how many segments go before, and the episode."""
        self._collected: set[int] = set()
        self._delivered = progress.step
        self._granted = progress.step
        self._max_steps = config.max_steps
        """That of the configuration, or the end of the rounds that are under way, if that is later."""
        self._last_round = progress.round
        self._owes_grant = False
        """Whether to grant a round when its turn comes."""
        self._former: dict[int, Rollout] = {}
        """Steps that a former attempt has collected, by round."""
        self._goes_on = False
        """Whether the round that a former attempt was collecting goes on."""
        self._sample: tuple[list[Tensor], Tensor | None] = [], None
        """Some observations and action masks of the last round, on which an exported model is checked."""

    @property
    def step(self) -> int:
        """Agent steps delivered, learned from or not yet."""
        return self._delivered

    @property
    def learned(self) -> int:
        """Agent steps learned from."""
        return self.progress.step

    @property
    def done(self) -> bool:
        """Whether `max_steps` is reached."""
        return self.progress.step >= self._max_steps

    def restore(self, collection: State) -> None:
        """Go on in the middle of a round, before `start`: from the `collection` of a checkpoint's state."""
        self._former = {int(key): Rollout(**state) for key, state in collection["rounds"].items()}
        self._delivered += sum(rollout.steps for rollout in self._former.values())
        self._goes_on = True

    def start(self) -> None:
        """Publish the weights and grant the first round; or only answer, if everything is learned already."""
        self.checkpointed()
        self._publish()
        if self.done:
            self._collectors.grant_unrecorded(self.name)
        elif self._goes_on:
            delivered = [(number, rollout.steps) for number, rollout in sorted(self._former.items())]
            self._collectors.delivered_before(self.name, self.progress.round, delivered)
            self._last_round -= 1
            self._grant()
        else:
            self._grant()
            self.progress.round += 1

    def take_turn(self) -> None:
        """Grant the round that waits, if the behavior's turn has come."""
        if self._owes_grant and self._has_turn:
            self._grant()

    def add(self, event: SegmentsDelivered) -> None:
        """Take over delivered segments, with the episodes that ended between them.

        The content of a summary must not depend on when collectors deliver, which depends on the clock.
        """
        ended = self._ended.pop(event.collector, [])
        ended.reverse()
        for number, segments in event.segments.by_round():
            self._segments[number, rank_of(event.collector, self._rank_count)].append(segments)
        for number, length in enumerate(event.segments.column("length").tolist(), 1):
            self._delivered += length
            while ended and ended[-1][0] <= number:
                self._episode(*ended.pop()[1])
            self.recorder.advance(self._delivered)

    def episodes_ended(self, event: EpisodesEnded) -> None:
        """Record finished episodes: those that were recorded with their segments, which come next."""
        for closed, *episode in event.records[["closed", "return", "length", "group_return"]].tolist():
            if closed:
                self._ended[event.collector].append((closed, episode))
            else:
                self._episode(*episode)

    def _episode(self, episode_return: float, length: int, group_return: float) -> None:
        self.recorder.episode(episode_return, length, group_return)
        if self.health is not None:
            self.health.evidence.episodes.add(episode_return + group_return, length)

    def collected(self, round_number: int) -> None:
        """Record that a round is complete."""
        self._collected.add(round_number)

    @property
    def ready(self) -> bool:
        """Whether the round to learn from is complete."""
        return not self.done and self.progress.round in self._collected and self._has_turn

    @property
    def _has_turn(self) -> bool:
        return self._team is None or self._team.has_turn(self.name)

    def learn(self) -> str | None:
        """Improve the policy on the round and publish it; return why the update was rolled back, or None.

        Raises `Diverged` at the third rollback in a row, and `LimitCrossed`: the weights are then those of the update.
        Raises `RankLost`.
        """
        number = self.progress.round
        self._collected.discard(number)
        others = [Segments.joined(self._segments.pop((number, rank), [])) for rank in range(1, self._rank_count)]
        steps = sum(segments.steps for segments in others)
        rollout = self._gathered(number)
        self.progress.step += rollout.steps + steps
        self.progress.round += 1
        if self._ranks is not None:
            self._ranks.learn(self.name, others, self.progress.step)
            self._ranks.wait_gathered()
        delivered = Segments.joined([*self._segments.pop((number, 0), []), *others])
        self._collectors.reclaim(self.name, delivered)
        self._former.pop(number, None)
        log.debug(
            "round_gathered",
            behavior=self.name,
            round=number,
            steps=rollout.steps + steps,
            segments=rollout.segments + sum(map(len, others)),
        )
        if self.config.threaded:
            self._grant()
        self._sample = sample_of(rollout)
        if self.health is not None:
            self.health.experienced(rollout, self.progress.step)
        diagnosis = self._attempt(lambda: self._update(rollout))
        if self.health is not None:
            self.health.learned()
        if self._team is not None:
            self._team.learned(self.name, self.progress.step, done=self.done)
            if self._fresh is not None and (resets := self._team.reset(self.name)) is not None:
                version = self.algorithm.version
                self.algorithm.load_state_dict({**self._fresh(resets), "version": version + 1})
                self._publish()
        if self.done:
            self._collectors.grant_unrecorded(self.name)
        elif not self.config.threaded:
            self._grant()
        return diagnosis

    def reconfigure(self, config: TrainerConfig) -> bool:
        """Go on with another section of the configuration from the next update on.

        A smaller `max_steps` ends learning with the rounds that are under way, or with the next one where a team waits
        for its turn. Return False for a behavior that was done and is to learn on: collectors have stopped recording.
        """
        assert isinstance(config, ReinforcementConfig), "the trainer of a behavior never changes"
        self.config = config
        self.algorithm.reconfigure(config)
        if self._ranks is not None:
            self._ranks.reconfigure(self.name, config)
        if self.health is not None:
            self.health.reconfigure(config)
        self.checkpointed()
        if self.done:
            return self.progress.step >= config.max_steps
        owed = self._round_steps() if self._owes_grant else 0
        self._max_steps = max(config.max_steps, self._granted + owed)
        return True

    def state(self) -> dict[str, object]:
        """Return the state for a checkpoint."""
        state: dict[str, object] = {"progress": asdict(self.progress), "algorithm": self.algorithm.state_dict()}
        if self._team is not None:
            state["self_play"] = self._team.state(self.name)
        if self.health is not None:
            state["health"] = self.health.state_dict()
        return state

    def collection(self) -> dict[str, object]:
        """Return the steps that are collected and not learned from, for a checkpoint with snapshots of collectors."""
        rounds = sorted({number for number, _ in self._segments} | self._former.keys())
        return {"rounds": {str(number): self._gathered(number).state_dict() for number in rounds}}

    def _gathered(self, number: int) -> Rollout:
        """Return the steps of a round that this rank learns from, collected in this attempt and in a former one."""
        segments, former = self._segments.get((number, 0)), self._former.get(number)
        if not segments:
            assert former is not None, f"round {number} has no steps"
            return former
        rollout = gather(self._arena, Segments.joined(segments))
        return rollout if former is None else former.followed_by(rollout)

    def exporter(self) -> Callable[[Path], OnnxModel]:
        """Copy the policy; return a function that writes it as an ONNX model, on any thread, and describes that.

        The model is checked on observations of the last round.
        """
        return exporter(self.algorithm.actor, self.spec, *self._sample)

    def _update(self, rollout: Rollout) -> None:
        if self._compilation is not None:
            self._compilation.before_update(rollout, self.progress.step)
        began, version = time.monotonic(), self.algorithm.version
        with bf16_pictures(self._bf16):
            update = self.algorithm.update if self._ranks is None else partial(self._ranks.update, self.algorithm)
            measured = update(rollout, self.progress.step)
        log.debug(
            "update_made",
            behavior=self.name,
            step=self.progress.step,
            version=self.algorithm.version,
            seconds=time.monotonic() - began,
            measured=measured,
        )
        if measured is None:
            return
        if self.algorithm.version > version:
            self.recorder.learned(measured)
            self._publish()
        else:  # all steps were too old
            for key, value in measured.items():
                self.recorder.measure(key, value)
        if self.health is not None:
            self.health.updated(measured, rollout)

    def _round_steps(self) -> int:
        """Return the steps of the next round: those that the algorithm asks for, of each rank."""
        return self._rank_count * self.algorithm.round_steps()

    def _publish(self) -> None:
        self.recorder.measure(POLICY_VERSION, self.algorithm.version, Aggregation.LAST)
        super()._publish()

    def _grant(self) -> None:
        """Permit the collection of one more round, if steps are left; in self-play only in the behavior's turn."""
        self._owes_grant = not self._has_turn
        if self._owes_grant:
            return
        size = min(self._round_steps(), self._max_steps - self._granted)
        if size > 0:
            self._last_round += 1
            self._granted += size
            self._collectors.grant(self.name, self._last_round, size, self.config.rounds_ahead)
            log.debug("round_granted", behavior=self.name, round=self._last_round, steps=size)


class InferenceLearner(BaseLearner):
    """Plays a behavior without learning: `checkpoint_settings.inference`, ML-Agents' `--inference`.

    Its agents are answered with the weights that the run began with, without a limit. Only their episodes are recorded,
    for summaries as in training. Steps count the answered decisions, also within an episode: agents whose episodes end
    together would move them by several summaries at once. The state never changes, so that no checkpoint is ever due.
    The run plays until it is stopped or has no simulators.
    """

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
        self.learned = self.step = step

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
        """Return a function that writes the policy as an ONNX model, on any thread, and describes that."""
        return exporter(self.algorithm.actor, self.spec)
