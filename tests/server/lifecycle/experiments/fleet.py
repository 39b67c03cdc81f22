"""Workers that train by simulated learning curves: everything is real but the learning."""

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


@dataclass
class Fleet:
    """All runs that wait are trained, a summary in each turn."""

    database: Database
    curve: Curve = rises
    fails: Callable[[JsonObject], bool] = lambda _config: False
    trainers: dict[str, AttemptLedger] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def turn(self) -> None:
        """Claim all runs that wait, train each for a summary, and do what was asked of each."""
        while (claim := RunQueue(self.database).claim("host/1/1", LEASE_SECONDS)) is not None:
            ledger = AttemptLedger(self.database, claim)
            ledger.move(RunState.RUNNING)
            self.trainers[claim.run_id] = ledger
            self.steps.setdefault(claim.run_id, 0)
        for run_id, ledger in list(self.trainers.items()):
            with self.database.read() as session:
                run = RunRepository(session).get(run_id)
            if self.fails(run.config):
                self._end(run_id, RunState.FAILED, reason=StopReason.DIVERGED, detail="A loss is not finite.")
                continue
            step = self.steps[run_id] = self.steps[run_id] + SUMMARY
            value = self.curve(run.config, run.seed, step)
            ledger.metrics.append([MetricPoint("CartPole", REWARD, step, float(step), value)])
            intent = ledger.heartbeat(LEASE_SECONDS, step).intent
            if intent == Intent.CANCEL:
                self._end(run_id, RunState.CANCELLED)
            elif intent == Intent.PAUSE:
                ledger.move(RunState.PAUSING)
                self._end(run_id, RunState.PAUSED)
            elif intent == Intent.STOP or step >= STEPS:
                self._end(run_id, RunState.SUCCEEDED)

    def _end(self, run_id: str, state: RunState, **why: Any) -> None:
        self.trainers.pop(run_id).move(state, **why)
