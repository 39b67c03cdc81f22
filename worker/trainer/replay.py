"""`ludus replay --learn`: feeds the steps of a recording to the learners of its behaviors, without a game.

The collector is that of `ludus.play.recordings.replay`; the recorded actions act, so that rewards and observations
belong to them. Each behavior is learned from new networks, by its section of the configuration in the recording.

What it shows is a learner's fault: a value that is not finite, an error, measurements that explode. What it does not
show is how the run learned: the weights of then are not in a recording. On-policy trainers take the actions as drawn by
the present policy (a ratio of 1), and continuous actions that were clipped then stay so.
"""

import asyncio
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError

from ludus.collector.arena import Arena
from ludus.collector.heads import LIMIT, Gaussian
from ludus.collector.segments import Segments
from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.behavior import PPOConfig
from ludus.config.run import RunConfig
from ludus.config.trainer import ReinforcementConfig
from ludus.demonstrations import DemonstrationError
from ludus.play.players import Player, RandomPlayer
from ludus.play.recordings.file import Summary
from ludus.play.recordings.reading import Message
from ludus.play.recordings.replay import Replay
from ludus.protocol.batches import ActionBatch, DecisionBatch, Floats, Ints
from ludus.protocol.spec import BehaviorSpec
from worker.experience.rollout import Rollout, gather
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.on_policy import OnPolicy
from worker.learning.build import Demonstrations, build_algorithm

SHOWN = ("Losses/", "Policy/")
"""Beginnings of the measurements that are printed."""
Say = Callable[[str], object]


class RecordedActions(Player):
    """Plays what was played then; what was not answered then is drawn."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self.drawn = 0
        """Actions that the recording lacks."""
        self._random = RandomPlayer(spec.actions)
        self._next: dict[int, tuple[Floats, Ints]] = {}
        """By the row of the message that comes next."""

    def answered(self, asked: Ints, actions: Sequence[ActionBatch]) -> None:
        """Take the actions of the message that comes next; `asked` are its agents."""
        rows = {agent: row for row, agent in enumerate(asked.tolist())}
        self._next = {}
        for batch in actions:
            agents = asked if batch.agent_ids is None else batch.agent_ids
            for agent, continuous, discrete in zip(agents.tolist(), batch.continuous, batch.discrete, strict=False):
                if agent in rows:
                    self._next[rows[agent]] = continuous, discrete

    def act(self, decisions: DecisionBatch) -> tuple[Floats, Ints]:
        """Return the recorded actions."""
        continuous, discrete = self._random.act(decisions)
        for row in range(len(decisions.agent_ids)):
            recorded = self._next.get(row)
            if recorded is None or recorded[0].shape != continuous[row].shape:
                self.drawn += 1
            else:
                continuous[row], discrete[row] = recorded
        return continuous, discrete


class Lesson:
    """What one behavior learns of a recording."""

    def __init__(self, config: ReinforcementConfig, spec: BehaviorSpec, seed: int) -> None:
        """Raise `UnsupportedSpec`, `DemonstrationError` and `ValueError` where it cannot be learned here."""
        self.algorithm: Algorithm = build_algorithm(config, spec, torch.device("cpu"), seed, Demonstrations({}))
        self.actions = RecordedActions(spec)
        self.steps = self.updates = 0
        self._rounds: list[list[Rollout]] = [[]]

    def take(self, arena: Arena, segments: Segments) -> None:
        """Take experience."""
        rollout = gather(arena, segments)
        rollout = replace(rollout, memories=self._memories(rollout) if self.algorithm.actor.memory_size else None)
        if isinstance(self.algorithm.actor.layout.kind.continuous, Gaussian):
            rollout = replace(rollout, continuous=LIMIT * rollout.continuous)
        self._rounds[-1].append(rollout)
        if sum(part.steps for part in self._rounds[-1]) >= self.algorithm.round_steps():
            self._rounds.append([])

    def learn(self, say: Say) -> None:
        """Update with each round; the last one may be short. Raises what an update raises."""
        for parts in self._rounds:
            if not parts:
                continue
            rollout = parts[0].followed_by(*parts[1:])
            if isinstance(self.algorithm, OnPolicy):
                versions = torch.full_like(rollout.versions, self.algorithm.version)
                rollout = replace(rollout, log_probs=self._log_probs(rollout), versions=versions)
            else:  # a recording has none
                rollout = replace(rollout, log_probs=torch.full_like(rollout.log_probs, torch.nan))
            self.steps += rollout.steps
            measured = self.algorithm.update(rollout, self.steps)
            if measured is None:
                continue
            self.updates += 1
            shown = ", ".join(f"{key} {value:.4g}" for key, value in measured.items() if key.startswith(SHOWN))
            say(f"update {self.updates} with {rollout.steps} steps: {shown or 'made'}")

    @torch.no_grad()
    def _memories(self, rollout: Rollout) -> torch.Tensor:
        """Return what the new network remembers before each step, (N, memory); each segment begins with zeros."""
        actor = self.algorithm.actor
        encoded = actor.encode(rollout.observations)
        memories = torch.zeros(rollout.steps, actor.memory_size)
        for place in range(1, int(rollout.lengths.max())):
            rows = rollout.firsts[rollout.lengths > place] + place
            _, memories[rows] = actor([part[rows - 1] for part in encoded], memories[rows - 1])
        return memories

    @torch.no_grad()
    def _log_probs(self, rollout: Rollout) -> torch.Tensor:
        """Return the log-probabilities of the actions as the present policy's, each step's sum in the first column."""
        actor = self.algorithm.actor
        head, _ = actor(actor.encode(rollout.observations), rollout.memories)
        joint = actor.joint(head, rollout.continuous, rollout.discrete, rollout.action_masks)
        log_probs = torch.zeros_like(rollout.log_probs)
        log_probs[:, 0] = joint.log_prob
        return log_probs


def configured(summary: Summary, behavior: str) -> ReinforcementConfig:
    """Return the section that trains a behavior; PPO's defaults where the recording has none. Raises ValueError."""
    if not summary.run:
        return PPOConfig()
    try:
        section = RunConfig.model_validate(summary.run).behavior(behavior)
    except ValidationError as error:
        mistake = error.errors()[0]["msg"]
        raise ValueError(f"the configuration in the recording is of another release: {mistake}") from None
    if section is not None and not isinstance(section, ReinforcementConfig):
        raise ValueError(f"{behavior} is trained by {section.trainer_type}, which learns from no game")
    return section or PPOConfig()


def learn(file: Path, summary: Summary, say: Say) -> int:
    """Feed a recording to its learners; return the exit code: 0, or 1 where a learner fails."""
    lessons: dict[str, Lesson] = {}
    failed = list[str]()

    def make(spec: BehaviorSpec) -> Player:
        try:
            lessons[spec.behavior] = Lesson(configured(summary, spec.behavior), spec, summary.header.seed)
        except (UnsupportedSpec, DemonstrationError, ValueError) as error:
            failed.append(f"{spec.behavior} cannot be learned here: {error}")
            return RandomPlayer(spec.actions)
        return lessons[spec.behavior].actions

    def answered(message: Message, actions: Sequence[ActionBatch]) -> None:
        given = defaultdict[str, list[ActionBatch]](list)
        for batch in actions:
            given[batch.behavior.partition("?")[0]].append(batch)
        for part in message.batches:
            lesson = lessons.get(part.behavior.partition("?")[0])
            if lesson is not None and part.decisions is not None:
                lesson.actions.answered(part.decisions.agent_ids, given[part.behavior.partition("?")[0]])

    def taken(arena: Arena, segments: Segments) -> None:
        lesson = lessons.get(arena.layout.spec.behavior)
        if lesson is not None:
            lesson.take(arena, segments)

    with file.open("rb") as opened:
        result = asyncio.run(Replay(opened, make, taken=taken, answered=answered).run())
    say(f"{result.received} messages played, {result.steps} steps of experience")
    for behavior, lesson in lessons.items():
        try:
            lesson.learn(say)
        except Diverged as error:
            failed.append(f"{behavior}: the update after {lesson.steps} steps diverged: {error}")
        except Exception:  # noqa: BLE001  a learner's fault is what is looked for
            failed.append(f"{behavior}: the update after {lesson.steps} steps failed:\n{traceback.format_exc()}")
        finite = bool(np.isfinite(lesson.algorithm.flat_weights()).all())
        weights = "its weights are finite" if finite else "ITS WEIGHTS ARE NOT FINITE"
        drawn = f", {lesson.actions.drawn} actions were not recorded and drawn" if lesson.actions.drawn else ""
        say(f"{behavior}: {lesson.updates} updates with {lesson.steps} steps, {weights}{drawn}")
        failed += [] if finite else [f"{behavior}: {weights}"]
    for sentence in failed:
        for line in sentence.splitlines():
            say(line)
    return 1 if failed else 0
