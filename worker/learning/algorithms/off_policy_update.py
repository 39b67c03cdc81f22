"""The update of algorithms that learn from a replay buffer: store a round, take the gradient steps that are due.

An algorithm defines one gradient step (`gradient_step`) and the terms that it records of it (`term_names`).

Guards: a round with a value that is not finite is not stored. An update that meets one, or in which value estimates, or
the measurements of signals and cloning, are a million times those of the last good one, is taken back as a whole:
networks, targets, optimizers and signals are those from before. Either way `Diverged` names the term. Rounds stay
stored, and the next update draws other batches.

Where several processes learn as one (`worker.learning.data_parallel`) all store the same rounds and draw the same
batches and noise. Of each batch a process reads and differentiates its own rows or sequences, and their terms are
averaged over the processes too: all check an update alike.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from worker.experience.rollout import Rollout
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.bc import LOSS, BehavioralCloning
from worker.learning.algorithms.numeric_check import GROWTH, Diverged
from worker.learning.algorithms.off_policy import ReplayedExperience
from worker.learning.algorithms.training_state import Changed, Stored, TrainingState
from worker.learning.data_parallel import average
from worker.learning.functional.schedules import LEARNING_RATE_FLOOR, Schedule
from worker.learning.rewards.signals import SignalSet, title


class OffPolicyAlgorithm(Algorithm):
    """An algorithm that learns from a replay buffer."""

    term_names: tuple[str, ...]
    """Names of the terms that a gradient step records, with `Policy/<Signal> Value` of each signal."""

    def __init__(
        self,
        config: Any,
        device: torch.device,
        signals: SignalSet,
        experience: ReplayedExperience,
        cloning: BehavioralCloning | None,
        stored: Mapping[str, Stored],
        changed: Sequence[Changed | None],
    ) -> None:
        """`stored` and `changed` are the algorithm's own parts of `TrainingState`."""
        self.config, self.device, self.version = config, device, 0
        self._signals, self._experience, self._cloning = signals, experience, cloning
        self._values_before = [1.0] * len(signals)
        """Each signal's mean size of the value estimates in the last good update."""
        self._losses_before: dict[str, float] = {}
        """The mean size of measurements of cloning and signals, by metric name, in the last good update with them."""
        self._state = TrainingState(
            {**stored, "signals": signals, "cloning": cloning},
            changed=[*changed, *signals.changed, None if cloning is None else cloning.optimizer],
        )
        self.reconfigure(config)

    @abstractmethod
    def gradient_step(self, learning_rate: float) -> Float[Tensor, " terms"]:
        """Draw a batch and take one gradient step; return the terms of `term_names`."""

    def store(self, rollout: Rollout) -> NDArray[np.int64]:
        """Add a round to the replay buffer; return the rows that hold it."""
        return self._experience.store(rollout)

    def metrics_of(self, means: dict[str, float]) -> dict[str, float]:
        """Return metrics of the terms' means over an update."""
        return means

    def mode(self) -> AbstractContextManager[None]:
        """Return the context of an update, which sets what autograd records by itself."""
        return torch.no_grad()

    def reconfigure(self, config: Any) -> None:
        """Go on with another configuration from the next update on; see `Algorithm`."""
        self.config, hyper = config, config.hyperparameters
        self._experience.hyper = hyper
        self._learning_rate = Schedule(
            hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_FLOOR, config.max_steps
        )
        if self._cloning is not None:
            self._cloning.set_learning_rate(hyper.learning_rate)

    def round_steps(self) -> int:
        """Return how many agent steps the next round has."""
        return self._experience.round_steps()

    def update(self, rollout: Rollout, step: int) -> Mapping[str, float] | None:
        """Store a round and take the gradient steps that are due; None if there were none.

        `step` is the policy's step, at which the schedule is read. Raise `Diverged` as the module says.
        """
        with self.mode():
            experience, rate = self._experience, self._learning_rate.at(step)
            self.store(rollout)
            experience.step = step
            due, signals_due = experience.due()
            if not due and not signals_due:
                return None
            terms, imitation = [], []
            with self._state.undone_if_diverged():
                for _ in range(due):
                    terms.append(self.gradient_step(rate))
                    if self._cloning is not None and (loss := self._cloning.learn(step)) is not None:
                        imitation.append(loss)
                measured = [self._signals.update(experience.real_transitions()) for _ in range(signals_due)]
                metrics = self._concluded(terms, imitation, measured)
            experience.updates += due
            experience.signal_updates += signals_due
            lag = self.version - float(rollout.versions.double().mean())
            self.version += bool(due)
            metrics = {**metrics, **experience.episode_metrics()}
            return metrics | {"Policy/Learning Rate": rate, "Policy/Lag": lag}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next update depends on; of the replay buffer, if it is saved at all, *views*."""
        before = {"values_before": list(self._values_before), "losses_before": dict(self._losses_before)}
        return {"version": self.version, **before, **self._state.state_dict(), **self._experience.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken; without a saved replay buffer, with an empty one."""
        self._state.load_state_dict(state)
        self._experience.load_state_dict(state)
        self.version = state["version"]
        self._values_before, self._losses_before = list(state["values_before"]), dict(state["losses_before"])

    def _concluded(
        self,
        terms: list[Float[Tensor, " terms"]],
        imitation: list[Float[Tensor, ""]],
        measured: list[dict[str, Float[Tensor, ""]]],
    ) -> dict[str, float]:
        """Copy all terms from the device, at once: the mean over processes that share the steps. Return metrics.

        `terms` are those of the gradient steps, `imitation` the losses beside them, `measured` the measurements of the
        reward signals. Raise `Diverged` if something was not finite or exploded.
        """
        columns = {LOSS: imitation} if imitation else {}
        for name in measured[0] if measured else ():
            columns[name] = [one[name] for one in measured]
        finite = [self._signals.is_finite()] if self._experience.signals_learn else []
        if self._cloning is not None:
            finite.append(self._cloning.is_finite())
        flat = torch.cat([*terms, *(torch.stack(column) for column in (*columns.values(), finite) if column)])
        average(flat)
        numbers = iter(flat.tolist())
        table = [dict(zip(self.term_names, islice(numbers, len(row)), strict=True)) for row in terms]
        losses = {name: list(islice(numbers, len(column))) for name, column in columns.items()}
        values = [[abs(row[f"Policy/{title(name)} Value"]) for row in table] for name in self._signals.names]
        self._check(table, values, losses)
        if not all(flag == 1.0 for flag in numbers):
            invalid_signal = self._signals.invalid_signal() if self._experience.signals_learn else None
            raise Diverged("weights by imitation" if invalid_signal is None else f"weights of {invalid_signal}")
        if table:
            self._values_before = [math.fsum(sizes) / len(sizes) for sizes in values]
        self._losses_before |= {name: math.fsum(map(abs, column)) / len(column) for name, column in losses.items()}
        means = {name: math.fsum(row[name] for row in table) / len(table) for name in (table[0] if table else ())}
        measurements = {name: math.fsum(column) / len(column) for name, column in losses.items()}
        return (self.metrics_of(means) if table else {}) | measurements

    def _check(
        self, table: list[dict[str, float]], values: list[list[float]], losses: Mapping[str, list[float]]
    ) -> None:
        """Raise `Diverged` with the first term that was wrong.

        A term is wrong if it is not finite. A value, and one of the `losses`, is also wrong if it is a million times as
        large as before (or as 1); a new loss is compared with its first step. The critics' losses are not compared:
        they may well grow that much when a large reward is drawn, while values move by small steps only. The losses of
        cloning and of signals contain no rewards.
        """
        for step, row in enumerate(table):
            for name, number in row.items():
                if not math.isfinite(number):
                    raise Diverged(name, step)
        for signal, sizes, size in zip(self._signals.names, values, self._values_before, strict=True):
            for step, value in enumerate(sizes):
                if value > GROWTH * max(size, 1.0):
                    raise Diverged(f"value of {signal}", step, grown=(size, value))
        for name, numbers in losses.items():
            size = self._losses_before.get(name, abs(numbers[0]))
            for step, number in enumerate(numbers):
                if not math.isfinite(number):
                    raise Diverged(name, step)
                if abs(number) > GROWTH * max(size, 1.0):
                    raise Diverged(name, step, grown=(size, number))
