"""Rewards in units of the deviation of their discounted return: `reward_signals.NAME.normalize_reward`.

For each step `R_t = gamma * R_(t-1) + r_t` of its agent's episode goes into a running mean and variance, and rewards
are divided by the root of that variance, without a shift: the sign of a reward stays, and so does what is best. Values
and advantages are then about 1 in size, whatever unit the game counts in (Engstrom et al. 2020, "Implementation matters
in deep policy gradients", https://arxiv.org/abs/2005.12729, section 3; Burda et al. 2018 do so for RND).

As Gymnasium's NormalizeReward (1.4) and Stable-Baselines3's VecNormalize: statistics begin as 1e-4 of an imagined
return with mean 0 and variance 1; 1e-8 is added to the variance; a terminal step's `R` is its reward alone (as in
Gymnasium); scaled rewards are clipped to [-10, 10] (as in Stable-Baselines3). So rewards that never change, whose
returns may have no deviation, become 10 at most.

Deviation, on purpose: a whole round goes into the statistics before any reward of it is scaled, and replayed rewards
are scaled by the statistics of when they are drawn: equal rewards of a batch count the same.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ludus.collector.segments import SegmentEnd
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.learning.algorithms.training_state import load_states, states_of
from worker.learning.functional.returns import reverse_recurrence
from worker.learning.networks.normalizer import Normalizer

FIRST_COUNT = 1e-4
EPSILON = 1e-8
LIMIT = 10.0
"""Largest size of a scaled reward."""
MOST_AGENTS = 1 << 16
"""Unfinished episodes that are remembered; beyond them the ones not heard of for longest are forgotten."""


class RewardScale:
    """The running deviation of one signal's discounted return."""

    def __init__(self, gamma: float, device: torch.device) -> None:
        self._gamma = gamma
        self.statistics = Normalizer(1).to(device)
        for part in (self.statistics.count, self.statistics.squares):
            part.fill_(FIRST_COUNT)
        self._open: dict[tuple[int, int], tuple[int, int, float]] = {}
        """By simulator and agent: the episode, the place of its newest segment, and `R` at the end of that."""

    def scaled(self, rewards: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Return rewards in units of the deviation."""
        deviation = (self.statistics.std().square() + EPSILON).sqrt()
        return (rewards / deviation.to(rewards.dtype)).clamp(-LIMIT, LIMIT)

    def observe(self, rollout: Rollout, rewards: Float[Tensor, " N"]) -> None:
        """Add the discounted returns of all steps of a round to the statistics; `rewards` are those of its steps."""
        keys = rollout.keys.numpy()
        order = np.lexsort(keys.T[::-1])  # segments of one episode lie one behind the other, and so do their rows
        keys, lengths = keys[order], rollout.lengths[order]
        starts, ends = lengths.cumsum(0) - lengths, lengths.cumsum(0) - 1
        rows = torch.repeat_interleave(rollout.firsts[order] - starts, lengths) + torch.arange(rollout.steps)
        returns, decay = rewards.double().cpu()[rows], torch.full((rollout.steps,), self._gamma, dtype=torch.float64)
        endings = rollout.endings[order]
        decay[ends[endings == SegmentEnd.TERMINATED]] = 0.0
        follows = np.zeros(len(keys), bool)
        follows[1:] = (keys[1:] == np.add(keys[:-1], [0, 0, 0, 1])).all(1)
        for index in np.flatnonzero(~follows).tolist():
            simulator, agent, episode, place = keys[index].tolist()
            before = self._open.pop((simulator, agent), None)
            if before is not None and before[:2] == (episode, place - 1):
                returns[starts[index]] += decay[starts[index]] * before[2]
            decay[starts[index]] = 0.0
        backwards, decay = returns.flip(0).unsqueeze(1), decay.flip(0).unsqueeze(1)
        returns = reverse_recurrence(backwards, decay, longest=rollout.steps).flip(0)  # (N, 1)
        is_cut = (endings == SegmentEnd.CUT).numpy() & ~np.append(follows[1:], False)
        for index in np.flatnonzero(is_cut).tolist():
            simulator, agent, episode, place = keys[index].tolist()
            self._open[simulator, agent] = episode, place, float(returns[ends[index]])
        while len(self._open) > MOST_AGENTS:
            del self._open[next(iter(self._open))]
        self.statistics.merge(returns.to(self.statistics.mean.device))

    def state_dict(self) -> State:
        """Return everything. Tensors are copies."""
        episodes = [[*key, *values] for key, values in self._open.items()]
        return {**states_of({"statistics": self.statistics}), "episodes": episodes}

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken."""
        load_states({"statistics": self.statistics}, state)
        self._open = {
            (simulator, agent): (episode, place, value) for simulator, agent, episode, place, value in state["episodes"]
        }
