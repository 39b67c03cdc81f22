"""The experience of algorithms that learn from a replay buffer: rounds are stored, and batches drawn.

It computes how many gradient steps are due, the length of the next round, and the rewards of a batch by the present
reward signals. Dimensions: `R` rows of a batch, others as in `worker.learning.functional`.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

import math
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from ludus.protocol.spec import BehaviorSpec
from worker.experience.replay import ReplayBuffer, Replayed
from worker.experience.rollout import Rollout
from worker.experience.transitions import Transitions, transitions_of
from worker.learning.algorithms.numeric_check import first_infinite
from worker.learning.data_parallel import mean_weights, own_rows
from worker.learning.functional.distributions import branch_bounds
from worker.learning.networks.actor import Actor
from worker.learning.networks.encoder import Encoded
from worker.learning.rewards.episodes import EpisodeReturns, episode_rewards, segment_sums
from worker.learning.rewards.signals import SignalSet

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
        config: Any,
        spec: BehaviorSpec,
        device: torch.device,
        actor: Actor,
        signals: SignalSet,
        generator: torch.Generator,
    ) -> None:
        """`config` is that of an algorithm that learns from a replay buffer; `generator` draws the batches."""
        hyper, memory = config.hyperparameters, config.network_settings.memory
        self.hyper, self.signals = hyper, signals
        self.signals_learn = signals.learns
        self.length = memory.sequence_length if memory is not None else 1
        self.drawn = max(hyper.batch_size // self.length, 1)
        """Sequences of a batch; steps, without a memory."""
        self.replay = ReplayBuffer(spec, hyper.buffer_size, memory_size=actor.memory_size)
        self.step, self.updates, self.signal_updates = 0, 0, 0
        self.beginnings = [
            torch.empty((0, *part.shape), dtype=getattr(torch, part.dtype)) for part in spec.observations
        ]
        """The newest first observations of episodes, if any signal goes on beyond their end."""
        self.ignores_end = bool(signals.ignores_termination.any())
        self._device, self._actor, self._generator = device, actor, generator
        self._last_discounts = signals.gamma * signals.ignores_termination  # (S,) where the task ended
        first = [start for start, _ in branch_bounds(spec.actions.discrete_branches)]
        self._first_choices = torch.tensor(first, dtype=torch.int64, device=device)
        self._even_weight = _even_weight(self.drawn, device)
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
        asked = math.ceil(min(rates))
        missing = max(hyper.batch_size - len(self.replay), hyper.buffer_init_steps - self.step)
        agents = len(set().union(*self._recent))
        return int(max(asked, min(max(missing, agents), LARGEST_ROUND)))

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
        if not math.isfinite(float(torch.stack([part.sum() for part in columns.values()]).sum())):
            found = first_infinite(columns.items())
            if found is not None:
                raise found
        rows = self.replay.store(rollout)
        if self.ignores_end and bool(rollout.starts_episode.any()):
            firsts = (rollout.lengths.cumsum(0) - rollout.lengths)[rollout.starts_episode]
            self.beginnings = [
                torch.cat([known, part[firsts]])[-BEGINNINGS:]
                for known, part in zip(self.beginnings, rollout.observations, strict=True)
            ]
        if self.signals_learn:  # the game's own rewards are added up where they are played
            rewards = self.signals.evaluate(transitions_of(rollout, self._device, self._actor.layout.kind))
            self._earned.append(self.episodes.add(rollout, segment_sums(rewards, rollout).cpu().numpy()))
        self._recent.append(set(zip(rollout.simulators.tolist(), rollout.agents.tolist(), strict=True)))
        if self._actor.normalizer is not None:
            self._actor.body.update_normalizer([part.to(self._device) for part in rollout.observations])
        return rows

    def due(self) -> tuple[int, int]:
        """Return how many gradient steps of the networks and of the reward signals are due."""
        hyper = self.hyper
        steps = self.step - hyper.buffer_init_steps
        if len(self.replay) < min(hyper.batch_size, hyper.buffer_size) or steps <= 0:
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
            if rows != len(self._even_weight):  # a share of a batch
                self._even_weight = _even_weight(rows, self._device)
            weight = self._even_weight
        else:
            now = [part.index_select(0, transitions.index) for part in encoded]
            following = [part.index_select(0, transitions.next_index) for part in encoded]
            weight = mean_weights(drawn.real.to(self._device)).unsqueeze(1)
        has_branches = len(self._first_choices) > 0
        return Batch(
            encoded=now,
            following=following,
            continuous=transitions.continuous,
            choices=transitions.discrete + self._first_choices if has_branches else transitions.discrete,
            masks=None if drawn.masks is None else drawn.masks.to(self._device),
            memory=None if drawn.memories is None else drawn.memories.to(self._device),
            length=drawn.length,
            rewards=self.signals.evaluate(transitions),
            discounts=torch.where(transitions.terminated.unsqueeze(1), self._last_discounts, self.signals.gamma),
            terminated=transitions.terminated,
            weight=weight,
        )

    def noise(self, columns: int) -> Float[Tensor, "R C"] | None:
        """Draw standard normal noise for the rows of a batch; None without columns.

        It is drawn for the whole batch: processes that share it have the same generators.
        """
        if not columns:
            return None
        whole = torch.randn(self.drawn * self.length, columns, generator=self._generator)
        return own_rows(whole, self.length).to(self._device)

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

    def state_dict(self) -> dict[str, Any]:
        """Return everything; of the replay buffer, if it is saved at all, *views*."""
        return {
            "counters": [self.step, self.updates, self.signal_updates],
            "agents": [sorted(map(list, agents)) for agents in self._recent],
            "beginnings": list(self.beginnings),
            "episodes": self.episodes.state_dict(),
            "replay": self.replay.state_dict() if self.hyper.save_replay_buffer else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken; without a saved replay buffer, with an empty one."""
        self.step, self.updates, self.signal_updates = state["counters"]
        self._recent.clear()
        self._recent.extend({(simulator, agent) for simulator, agent in agents} for agents in state["agents"])
        self.beginnings = list(state["beginnings"])
        self.episodes.load_state_dict(state["episodes"])
        if state["replay"] is not None and self.hyper.save_replay_buffer:
            self.replay.load_state_dict(state["replay"])

    def _draw(self) -> Replayed:
        """Draw the steps of one gradient step."""
        if self.length == 1:
            return self.replay.sample(self.drawn, self._generator)
        return self.replay.sample_sequences(self.drawn, self.length, self._generator)

    def transitions(self, drawn: Replayed) -> Transitions:
        """Return steps on the device, as reward signals see them."""
        columns = (getattr(drawn, name).to(self._device) for name in Transitions._fields[1:])
        return Transitions([part.to(self._device) for part in drawn.observations], *columns)


def _even_weight(rows: int, device: torch.device) -> Float[Tensor, "R 1"]:
    return torch.full((rows, 1), 1.0 / rows, device=device)
