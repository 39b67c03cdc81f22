"""Workers that train by simulated learning curves: everything is real but the learning."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ludus.json_values import JsonObject
from ludus.schemas.states import RunState, StopReason
from server.kit.db.database import Database
from server.kit.states import Intent
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.metrics.points import MetricPoint
from server.runs.repository import RunRepository
from tests.factories import make_checkpoint

REWARD = "Environment/Cumulative Reward"
LEASE_SECONDS = 600.0
LR = "behaviors.CartPole.hyperparameters.learning_rate"
EPOCHS = "behaviors.CartPole.hyperparameters.num_epoch"
STEPS, SUMMARY = 9000, 1000

CONFIG: dict[str, Any] = {
    "behaviors": {"CartPole": {"trainer_type": "ppo", "max_steps": STEPS, "summary_freq": SUMMARY}}
}

Curve = Callable[[JsonObject, int, int], float]
"""Takes a run's configuration, its seed and a step; returns the mean return there."""


def rises(config: JsonObject, seed: int, step: int) -> float:
    """Return a curve that rises the faster the nearer the learning rate is to 1e-3; seeds differ by a few points."""
    rate = config["behaviors"]["CartPole"]["hyperparameters"]["learning_rate"]
    quality = 1.0 / (1.0 + abs(1e-3 - rate) / 1e-3)
    return 500.0 * quality * step / STEPS + (seed * 7919 % 13) * 0.1


Learner = Callable[[JsonObject, float, int], float]
"""Takes a run's configuration, the skill so far and a step; returns the skill a summary later. Copies keep it."""


def learns_at_a_falling_rate(config: JsonObject, skill: float, step: int) -> float:
    """Learn the faster the nearer the rate is to one that falls by a factor of 100 over the run."""
    rate = config["behaviors"]["CartPole"]["hyperparameters"]["learning_rate"]
    right = 1e-2 * 1e-2 ** (step / STEPS)
    return skill + 100.0 / (1.0 + math.log10(rate / right) ** 2 * 4.0)


@dataclass
class Fleet:
    """All runs that wait are trained, a summary in each turn."""

    database: Database
    curve: Curve = rises
    learner: Learner | None = None
    """In place of a curve."""
    saves: bool = False
    """Whether runs save checkpoints, as they do with a learner."""
    summary: int = SUMMARY
    """Steps that a run trains in a turn."""
    fails: Callable[[JsonObject], bool] = lambda _config: False
    plays: Callable[[AttemptLedger, str, int, float], None] = lambda _ledger, _run, _step, _skill: None
    """Plays the matches of a summary: takes what they are written to, the run, its step and its skill."""
    trainers: dict[str, AttemptLedger] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    skills: dict[str, float] = field(default_factory=dict)
    checkpoints: defaultdict[str, dict[str, tuple[int, float]]] = field(default_factory=lambda: defaultdict(dict))
    """By run: checkpoint -> step and skill."""

    @staticmethod
    def fixed(learner: Learner, rate: float, summary: int) -> float:
        """Return the skill of a run that keeps one learning rate."""
        config = {"behaviors": {"CartPole": {"hyperparameters": {"learning_rate": rate}}}}
        skill = 0.0
        for step in range(summary, STEPS + 1, summary):
            skill = learner(config, skill, step)
        return skill

    def kill_one(self) -> None:
        """Kill the worker of one run: its lease runs out, and another one goes on from its newest checkpoint."""
        if self.trainers:
            run_id = next(iter(self.trainers))
            self.trainers.pop(run_id).release("lease_expired", "its worker was killed")
            if self.checkpoints[run_id]:
                self.steps[run_id], self.skills[run_id] = max(self.checkpoints[run_id].values())

    def turn(self) -> None:
        """Claim all runs that wait, train each for a summary, and do what was asked of each."""
        while (claim := RunQueue(self.database).claim("host/1/1", LEASE_SECONDS)) is not None:
            ledger = AttemptLedger(self.database, claim)
            ledger.move(RunState.RUNNING)
            self.trainers[claim.run_id] = ledger
            origin = claim.config["checkpoint_settings"]["resume_from"]
            saved = {key: state for of_run in self.checkpoints.values() for key, state in of_run.items()}
            step, skill = saved.get(origin or "", (0, 0.0))
            self.steps.setdefault(claim.run_id, step)
            self.skills.setdefault(claim.run_id, skill)
        for run_id, ledger in list(self.trainers.items()):
            with self.database.read() as session:
                run = RunRepository(session).get(run_id)
            if self.fails(run.config):
                self._end(run_id, RunState.FAILED, reason=StopReason.DIVERGED, detail="A loss is not finite.")
                continue
            step = self.steps[run_id] = self.steps[run_id] + self.summary
            if self.learner is None:
                value = self.curve(run.config, run.seed, step)
            else:
                value = self.skills[run_id] = self.learner(run.config, self.skills[run_id], step)
            if self.saves or self.learner is not None:
                saved = make_checkpoint(step, path=f"runs/{run_id}/{len(self.steps)}/{step}")
                self.checkpoints[run_id][ledger.checkpoints.add(saved)] = (step, value)
            self.plays(ledger, run_id, step, value)
            ledger.metrics.append([MetricPoint("CartPole", REWARD, step, float(step), value)])
            intent = ledger.heartbeat(LEASE_SECONDS, step).intent
            if intent == Intent.CANCEL:
                self._end(run_id, RunState.CANCELLED)
            elif intent == Intent.PAUSE:
                ledger.move(RunState.PAUSING)
                self._end(run_id, RunState.PAUSED)
            elif intent == Intent.STOP:
                self._end(run_id, RunState.SUCCEEDED, reason=StopReason.USER)
            elif step >= STEPS:
                self._end(run_id, RunState.SUCCEEDED)

    def _end(self, run_id: str, state: RunState, **why: Any) -> None:
        self.trainers.pop(run_id).move(state, **why)
