"""Algorithms that learn from a replay buffer: rounds are stored, and the gradient steps that are due are taken.

`ReplayedExperience` computes how many gradient steps are due, the length of the next round, and the rewards of a batch
by the present reward signals. An algorithm defines one gradient step (`gradient_step`) and the terms that it records of
it (`term_names`).

With `reset_interval` networks and optimizers begin anew after so many gradient steps: parameters, targets and moments,
as they would be in a new algorithm. The replay buffer, the statistics of the normalizer, what agents explore with, and
the reward signals stay (Nikishin et al. 2022, "The Primacy Bias in Deep Reinforcement Learning",
https://arxiv.org/abs/2205.07802; there SAC's networks are reset as a whole, too).

Guards: a round with a value that is not finite is not stored. An update that meets one, or in which value estimates, or
the measurements of signals and cloning, are a million times those of the last good one, is taken back as a whole:
networks, targets, optimizers and signals are those from before. Either way `Diverged` names the term. Rounds stay
stored, and the next update draws other batches.

Ranks that learn as one (`worker.learning.data_parallel`) store their own rounds in their own buffers and draw their own
batches and noise. `steps_per_update`, `buffer_init_steps` and the sizes of buffer and batch are a rank's; steps count
as the mean over the ranks, so that as many gradient steps are due in all. Terms are averaged over the ranks, too: all
check an update alike.

Dimensions: `R` rows of a batch, others as in `worker.learning.functional`.
"""

import copy
import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from ludus.config.trainer import OffPolicyConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.replay import ReplayBuffer, Replayed
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.experience.transitions import Transitions, transitions_of
from worker.learning.algorithms.acting_kl import ACTING_INTERVAL, acting_kl
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.bc import LOSS, BehavioralCloning
from worker.learning.algorithms.numeric_check import GROWTH, OF_ANOTHER_RANK, Diverged, first_infinite
from worker.learning.algorithms.ppo_stats import ACTING_KL
from worker.learning.algorithms.training_state import Changed, Stored, TrainingState
from worker.learning.data_parallel import average, count_ranks, least
from worker.learning.fast.adam import FlatAdam
from worker.learning.functional.distributions import branch_bounds
from worker.learning.functional.schedules import LEARNING_RATE_FLOOR, Schedule
from worker.learning.networks.actor import Actor
from worker.learning.networks.encoder import Encoded
from worker.learning.rewards.episodes import EpisodeReturns, episode_rewards, segment_sums
from worker.learning.rewards.signals import SignalSet, title

LARGEST_ROUND = 1024
"""Most steps of a round that `steps_per_update` does not ask for."""
REMEMBERED_ROUNDS = 4
BEGINNINGS = 64
"""Most first observations of episodes that are kept."""


class Batch(NamedTuple):
    """Steps to learn from, on the device."""

    encoded: Encoded
    """`R` rows."""
    following: Encoded
    """`R` rows: the observations that followed."""
    continuous: Float[Tensor, "R C"]
    choices: Int[Tensor, "R D"]
    """The choice of each branch, counted over all branches."""
    masks: Bool[Tensor, "R M"] | None
    memory: Float[Tensor, "Q memory"] | None
    length: int
    rewards: Float[Tensor, "R S"]
    """After each signal's strength."""
    discounts: Float[Tensor, "R S"]
    """Each signal's gamma; 0 where nothing comes after."""
    terminated: Bool[Tensor, " R"]
    weight: Float[Tensor, "R 1"]
    """Of each row in a mean; 0 for padding."""


class ReplayedExperience:
    """The replay buffer of one behavior, with its counters and statistics."""

    def __init__(
        self,
        config: OffPolicyConfig,
        spec: BehaviorSpec,
        device: torch.device,
        actor: Actor,
        signals: SignalSet,
        generator: torch.Generator,
    ) -> None:
        """`generator` draws the batches."""
        hyper, memory = config.hyperparameters, config.network_settings.memory
        self.hyper, self.signals = hyper, signals
        self.signals_learn = signals.learns
        self.length = memory.sequence_length if memory is not None else 1
        self.drawn = max(hyper.batch_size // self.length, 1)
        """Sequences of a batch; steps, without a memory."""
        self.replay = ReplayBuffer(spec, hyper.buffer_size, memory_size=actor.memory_size)
        self.step, self.updates, self.signal_updates = 0, 0, 0
        """The policy's step, and gradient steps that were taken."""
        self.own_step = 0.0
        """Of `step` the part of one rank."""
        self.beginnings = [
            torch.empty((0, *part.shape), dtype=getattr(torch, part.dtype)) for part in spec.observations
        ]
        """The newest first observations of episodes, if any signal goes on beyond their end."""
        self.ignores_end = bool(signals.ignores_termination.any())
        self._device, self._actor, self._generator = device, actor, generator
        self.statistics = copy.deepcopy(actor.normalizer)
        """Of all observations that were stored. The actor's are those of its version, which collectors have, too."""
        self._last_discounts = signals.gamma * signals.ignores_termination  # (S,) where the task ended
        starts = [start for start, _ in branch_bounds(spec.actions.discrete_branches)]
        self.first_choices = torch.tensor(starts, dtype=torch.int64, device=device)
        """(D,): where the choices of each branch begin among all choices."""
        self._even_weight = torch.full((self.drawn, 1), 1.0 / self.drawn, device=device)
        self._recent: deque[set[tuple[int, int]]] = deque(maxlen=REMEMBERED_ROUNDS)
        self.episodes = EpisodeReturns(len(signals))
        self._earned: list[NDArray[np.float64]] = []
        """By episodes that ended since the last metrics: (F, S) each."""

    def round_steps(self) -> int:
        """Return how many agent steps the next round has.

        While the buffer fills: the missing steps. Then those that one gradient step asks for, but at least one of every
        agent: answering a dozen agents one by one would cost a dozen round trips, and make none of them fresher.
        """
        hyper = self.hyper
        rates = [hyper.steps_per_update, *([hyper.reward_signal_steps_per_update] if self.signals_learn else [])]
        missing = max(hyper.batch_size - len(self.replay), hyper.buffer_init_steps - math.floor(self.own_step))
        agents = len(set().union(*self._recent))
        return int(max(math.ceil(min(rates)), min(max(missing, agents), LARGEST_ROUND)))

    def store(self, rollout: Rollout) -> NDArray[np.int64]:
        """Add a round to the buffer and its observations to the statistics; raise `Diverged` if it is not finite.

        Return the rows of the buffer that hold it.
        """
        columns = {
            **{f"observations {index}": part for index, part in enumerate(rollout.observations)},
            **{f"next observations {index}": part for index, part in enumerate(rollout.next_observations)},
            "continuous": rollout.continuous,
            "rewards": rollout.rewards,
            "group rewards": rollout.group_rewards,
        }
        columns = {name: part for name, part in columns.items() if part.is_floating_point()}
        # A sum is cheap, and finite only if all is: only when it is not, the one column is looked for.
        diverged = None
        if not math.isfinite(float(torch.stack([part.sum() for part in columns.values()]).sum())):
            diverged = first_infinite(columns.items())
        if not least(int(diverged is None)):
            raise diverged or Diverged(OF_ANOTHER_RANK)
        rows = self.replay.store(rollout)
        if self.ignores_end and bool(rollout.starts_episode.any()):
            firsts = rollout.firsts[rollout.starts_episode]
            self.beginnings = [
                torch.cat([earlier, part[firsts]])[-BEGINNINGS:]
                for earlier, part in zip(self.beginnings, rollout.observations, strict=True)
            ]
        if self.signals_learn or self.signals.normalizes:  # the game's rewards are added up where they are played
            transitions = transitions_of(rollout, self._device, self._actor.layout.kind)
            earned = self.signals.observe(rollout, transitions).earned
            self._earned.append(self.episodes.add(rollout, segment_sums(earned, rollout).cpu().numpy()))
        self._recent.append(set(zip(rollout.simulators.tolist(), rollout.agents.tolist(), strict=True)))
        if self.statistics is not None:
            observed = [part.to(self._device) for part in rollout.observations]
            self._actor.body.update_normalizer(observed, self.statistics)
        return rows

    def adopt_statistics(self) -> None:
        """Copy the statistics of all stored observations into the actor, which normalises with them."""
        if self.statistics is not None and self._actor.normalizer is not None:
            self._actor.normalizer.load_state_dict(self.statistics.state_dict())

    def advance(self, step: int) -> None:
        """Go on to the policy's `step`. What came since the last one is shared by the ranks that are there now."""
        self.own_step += (step - self.step) / count_ranks()
        self.step = step

    def due(self) -> tuple[int, int]:
        """Return how many gradient steps of the networks and of the reward signals are due."""
        hyper = self.hyper
        steps = self.own_step - hyper.buffer_init_steps
        if least(len(self.replay)) < min(hyper.batch_size, hyper.buffer_size) or steps <= 0:
            return 0, 0
        due = int(steps / hyper.steps_per_update) - self.updates
        signals_due = int(steps / hyper.reward_signal_steps_per_update) - self.signal_updates
        return max(due, 0), max(signals_due, 0) if self.signals_learn else 0

    def batch(self) -> Batch:
        """Draw steps, with their rewards as the signals see them now."""
        drawn = self._draw()
        transitions = self.transitions(drawn)
        encoded = self._actor.encode(transitions.observations)
        rows = len(drawn.index)
        if drawn.real is None:  # observations, then those that followed
            now, following = [part[:rows] for part in encoded], [part[rows:] for part in encoded]
            weight = self._even_weight
        else:
            now = [part.index_select(0, transitions.index) for part in encoded]
            following = [part.index_select(0, transitions.next_index) for part in encoded]
            real = drawn.real.to(self._device)
            weight = (real / real.sum()).unsqueeze(1)
        return Batch(
            encoded=now,
            following=following,
            continuous=transitions.continuous,
            choices=transitions.discrete + self.first_choices if len(self.first_choices) else transitions.discrete,
            masks=None if drawn.masks is None else drawn.masks.to(self._device),
            memory=None if drawn.memories is None else drawn.memories.to(self._device),
            length=drawn.length,
            rewards=self.signals.evaluate(transitions),
            discounts=torch.where(transitions.terminated.unsqueeze(1), self._last_discounts, self.signals.gamma),
            terminated=transitions.terminated,
            weight=weight,
        )

    def noise(self, columns: int, rows: int | None = None) -> Float[Tensor, "R C"] | None:
        """Draw standard normal noise for the rows of a batch, or for so many; None without columns."""
        if not columns:
            return None
        count = self.drawn * self.length if rows is None else rows
        return torch.randn(count, columns, generator=self._generator).to(self._device)

    def real_transitions(self) -> Transitions:
        """Draw steps for the reward signals to learn from: without padding."""
        drawn = self._draw()
        transitions = self.transitions(drawn)
        return transitions if drawn.real is None else transitions.select(drawn.real.nonzero().squeeze(1))

    def encoded_beginnings(self) -> Encoded:
        """Return the newest first observations of episodes as networks see them."""
        return self._actor.encode([part.to(self._device) for part in self.beginnings])

    def episode_metrics(self) -> dict[str, float]:
        """Return the mean return of whole episodes by signal since the last call; nothing without an episode."""
        if not self._earned:
            return {}
        earned = np.concatenate(self._earned)
        self._earned.clear()
        return episode_rewards(self.signals.names, earned)

    def state_dict(self) -> State:
        """Return everything; of the replay buffer, if it is saved at all, *views*."""
        return {
            "counters": [self.step, self.updates, self.signal_updates, self.own_step],
            "agents": [sorted(map(list, agents)) for agents in self._recent],
            "beginnings": list(self.beginnings),
            "episodes": self.episodes.state_dict(),
            "replay": self.replay.state_dict() if self.hyper.save_replay_buffer else None,
            "statistics": self._statistics_to_come(),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken; without a saved replay buffer, with an empty one."""
        self.step, self.updates, self.signal_updates, *own = state["counters"]
        self.own_step = float(own[0] if own else self.step)  # checkpoints of earlier releases lack it
        self._recent.clear()
        self._recent.extend({(simulator, agent) for simulator, agent in agents} for agents in state["agents"])
        self.beginnings = list(state["beginnings"])
        self.episodes.load_state_dict(state["episodes"])
        if state["replay"] is not None and self.hyper.save_replay_buffer:
            self.replay.load_state_dict(state["replay"])
        if self.statistics is not None and self._actor.normalizer is not None:
            # Also where only networks come from another run's checkpoint, and in checkpoints of earlier releases.
            self.statistics.load_state_dict(state.get("statistics") or self._actor.normalizer.state_dict())

    def _statistics_to_come(self) -> State | None:
        """Return copies of the statistics that the actor has not adopted yet; None if it has all of them."""
        adopted = self._actor.normalizer
        if self.statistics is None or adopted is None or torch.equal(self.statistics.count, adopted.count):
            return None
        return {name: part.clone() for name, part in self.statistics.state_dict().items()}

    def _draw(self) -> Replayed:
        """Draw the steps of one gradient step."""
        if self.length == 1:
            return self.replay.sample(self.drawn, self._generator)
        starts = torch.randint(len(self.replay), (self.drawn,), generator=self._generator)
        return self.replay.sequences(starts, self.length)

    def transitions(self, drawn: Replayed) -> Transitions:
        """Return steps on the device, as reward signals see them."""
        columns = (getattr(drawn, name).to(self._device) for name in Transitions._fields[1:])
        return Transitions([part.to(self._device) for part in drawn.observations], *columns)


class OffPolicyAlgorithm(Algorithm):
    """An algorithm that learns from a replay buffer."""

    generator: torch.Generator
    """Draws initial weights, batches and noise."""
    model: Any
    """The networks, whose `parameters()` are those that `reset` draws anew."""
    _build: Callable[[], Any]
    """Return new networks as `model` was at first, with other initial values."""
    term_names: tuple[str, ...]
    """Names of the terms that a gradient step records, with `Policy/<Signal> Value` of each signal."""
    mode: type[AbstractContextManager[None]] = torch.no_grad
    """The context of an update: what autograd records by itself."""

    def __init__(
        self,
        config: Any,
        device: torch.device,
        signals: SignalSet,
        experience: ReplayedExperience,
        cloning: BehavioralCloning | None,
        stored: Mapping[str, Stored],
        changed: Iterable[Changed | None],
    ) -> None:
        """`stored`: the content of checkpoints beside the generator, signals and cloning, by key. `changed`: what an
        update changes beside the optimizers with their parameters and the counters that are stored.
        """
        self.config, self.device, self.version = config, device, 0
        self.signals, self.experience, self.cloning = signals, experience, cloning
        self._values_before = [1.0] * len(signals)
        """Each signal's mean size of the value estimates in the last good update."""
        self._optimizers = [part for part in stored.values() if isinstance(part, FlatAdam)]
        if cloning is not None:
            self._optimizers.append(cloning.optimizer)
        self._losses_before: dict[str, float] = {}
        """The mean size of measurements of cloning and signals, by metric name, in the last good update with them."""
        restored = [part for part in stored.values() if not isinstance(part, nn.Module | nn.Parameter)]
        self._state = TrainingState(
            {"generator": self.generator, **stored, "signals": signals, "cloning": cloning},
            changed=[*restored, *changed, *signals.changed, self.actor.normalizer, cloning and cloning.optimizer],
        )

    @abstractmethod
    def gradient_step(self, learning_rate: float) -> Float[Tensor, " terms"]:
        """Draw a batch and take one gradient step; return the terms of `term_names`."""

    def initial_parameters(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter, those of targets included, with an initial value that is drawn for it anew."""
        yield from zip(self.model.parameters(), self._build().parameters(), strict=True)

    @torch.no_grad()
    def reset(self) -> None:
        """Let networks and optimizers begin anew."""
        for parameter, initial in self.initial_parameters():
            parameter.copy_(initial)
        for optimizer in self._optimizers:
            optimizer.reset()

    def store(self, rollout: Rollout) -> NDArray[np.int64]:
        """Add a round to the replay buffer; return the rows that hold it."""
        return self.experience.store(rollout)

    def metrics_of(self, means: dict[str, float]) -> dict[str, float]:
        """Return metrics of the terms' means over an update."""
        return means

    def reconfigure(self, config: Any) -> None:
        """Go on with another configuration from the next update on; see `Algorithm`."""
        self.config, self.experience.hyper = config, config.hyperparameters
        if self.cloning is not None:
            self.cloning.set_learning_rate(config.hyperparameters.learning_rate)

    def round_steps(self) -> int:
        """Return how many agent steps the next round has."""
        return self.experience.round_steps()

    def update(self, rollout: Rollout, step: int) -> Mapping[str, float] | None:
        """Store a round and take the gradient steps that are due; None if there were none.

        `step` is the policy's step, at which the schedule is read. Raise `Diverged` as the module says.
        """
        experience, hyper = self.experience, self.config.hyperparameters
        kind, steps = hyper.learning_rate_schedule, self.config.max_steps
        rate = Schedule(kind, hyper.learning_rate, LEARNING_RATE_FLOOR, steps).at(step)
        with self.mode():
            acting = self._acting(rollout)
            self.store(rollout)
            experience.advance(step)
            due, signals_due = experience.due()
            if not due and not signals_due:
                return None
            terms, imitation = [], []
            with self._state.undone_if_diverged():
                if due:
                    experience.adopt_statistics()
                for updates in range(experience.updates, experience.updates + due):
                    if updates and hyper.reset_interval is not None and updates % hyper.reset_interval == 0:
                        self.reset()
                    terms.append(self.gradient_step(rate))
                    if self.cloning is not None and (loss := self.cloning.learn(step)) is not None:
                        imitation.append(loss)
                measured = [self.signals.update(experience.real_transitions()) for _ in range(signals_due)]
                metrics = self._concluded(terms, imitation, measured)
            experience.updates += due
            experience.signal_updates += signals_due
            lag = self.version - float(rollout.versions.double().mean())
            self.version += bool(due)
            metrics = {**metrics, **acting, **experience.episode_metrics()}
            return metrics | {"Policy/Learning Rate": rate, "Policy/Lag": lag}

    def state_dict(self) -> State:
        """Return everything that the next update depends on; of the replay buffer, if it is saved at all, *views*."""
        sizes = {"values_before": list(self._values_before), "losses_before": dict(self._losses_before)}
        return {"version": self.version, **sizes, **self._state.state_dict(), **self.experience.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken; without a saved replay buffer, with an empty one."""
        self._state.load_state_dict(state)
        self.experience.load_state_dict(state)
        self.version = state["version"]
        self._values_before, self._losses_before = list(state["values_before"]), dict(state["losses_before"])

    def _acting(self, rollout: Rollout) -> dict[str, float]:
        """Return `Policy/Acting KL`, if it is due: where collectors have the present weights and statistics."""
        if self.version % ACTING_INTERVAL:
            return {}
        kl = acting_kl(self.actor, rollout, self.version, self.device)
        return {} if kl is None else {ACTING_KL: kl}

    def _concluded(
        self,
        terms: list[Float[Tensor, " terms"]],
        imitation: list[Float[Tensor, ""]],
        measured: list[dict[str, Float[Tensor, ""]]],
    ) -> dict[str, float]:
        """Copy all terms from the device, at once: the mean over the ranks. Return metrics.

        `terms` are those of the gradient steps, `imitation` the losses beside them, `measured` the measurements of the
        reward signals. Raise `Diverged` if something was not finite or exploded.
        """
        columns = {LOSS: imitation} if imitation else {}
        for name in measured[0] if measured else ():
            columns[name] = [measurements[name] for measurements in measured]
        finite = [self.signals.is_finite()] if self.experience.signals_learn else []
        if self.cloning is not None:
            finite.append(self.cloning.is_finite())
        flat = torch.cat([*terms, *(torch.stack(column) for column in (*columns.values(), finite) if column)])
        numbers = iter(average(flat).tolist())
        table = [dict(zip(self.term_names, islice(numbers, len(row)), strict=True)) for row in terms]
        losses = {name: list(islice(numbers, len(column))) for name, column in columns.items()}
        values = [[abs(row[f"Policy/{title(name)} Value"]) for row in table] for name in self.signals.names]
        self._check(table, values, losses)
        if not all(flag == 1.0 for flag in numbers):
            invalid_signal = self.signals.invalid_signal() if self.experience.signals_learn else None
            if invalid_signal is not None:
                raise Diverged(f"weights of {invalid_signal}")
            raise Diverged("weights by imitation" if self.cloning is not None else OF_ANOTHER_RANK)
        if table:
            self._values_before = [math.fsum(sizes) / len(sizes) for sizes in values]
        self._losses_before |= {name: math.fsum(map(abs, column)) / len(column) for name, column in losses.items()}
        means = {name: math.fsum(row[name] for row in table) / len(table) for name in (table[0] if table else ())}
        metrics = self.metrics_of(means) if table else {}
        return metrics | {name: math.fsum(column) / len(column) for name, column in losses.items()}

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
        for signal, sizes, size in zip(self.signals.names, values, self._values_before, strict=True):
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
