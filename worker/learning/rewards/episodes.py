"""Episode returns of each signal: sums over the steps of an agent's episode, across rounds.

Dimensions: `N` steps, `B` segments, `S` signals.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ludus.collector.segments import SegmentEnd
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.learning.data_parallel import mean_over_ranks
from worker.learning.rewards.signals import title

MOST_AGENTS = 1 << 16
"""Unfinished episodes that are remembered; beyond them the ones not heard of for longest are forgotten."""


def segment_sums(rewards: Float[Tensor, "N S"], rollout: Rollout) -> Float[Tensor, "B S"]:
    """Return the sum of each segment's rewards, float64, on the device of the rewards."""
    segments = torch.repeat_interleave(torch.arange(rollout.segments), rollout.lengths).to(rewards.device)
    sums = torch.zeros(rollout.segments, rewards.shape[1], dtype=torch.float64, device=rewards.device)
    return sums.index_add_(0, segments, rewards.double())


class EpisodeReturns:
    """Adds up segments until their episodes are over."""

    def __init__(self, signals: int) -> None:
        self._signals = signals
        self._open: dict[tuple[int, int], tuple[int, NDArray[np.float64]]] = {}
        """By simulator and agent: the episode, and its sums so far."""

    def add(self, rollout: Rollout, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take the sums of a rollout's segments (B, S); return those of the episodes that ended in it (F, S)."""
        ended = rollout.endings.numpy() != SegmentEnd.CUT
        complete = ended & rollout.starts_episode.numpy()
        finished = [sums[complete]]
        keys = rollout.keys.numpy()
        parts = np.flatnonzero(~complete)
        for index in parts[np.lexsort(keys[parts].T[::-1])].tolist():
            simulator, agent, episode, _ = keys[index].tolist()
            open_episode, earned = self._open.pop((simulator, agent), (episode, np.zeros(self._signals)))
            total = earned + sums[index] if open_episode == episode else sums[index]
            if ended[index]:
                finished.append(total[None])
            else:
                self._open[simulator, agent] = episode, total
        while len(self._open) > MOST_AGENTS:
            del self._open[next(iter(self._open))]
        return np.concatenate(finished)

    def state_dict(self) -> State:
        """Return everything, as tensors."""
        keys = [(*key, episode) for key, (episode, _) in self._open.items()]
        sums = [total for _, total in self._open.values()]
        return {
            "keys": torch.tensor(keys, dtype=torch.int64).view(-1, 3),
            "sums": torch.from_numpy(np.array(sums).reshape(-1, self._signals)),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from the result of `state_dict`."""
        rows = zip(state["keys"].tolist(), state["sums"].cpu().numpy(), strict=True)
        self._open = {(simulator, agent): (episode, total.copy()) for (simulator, agent, episode), total in rows}


def episode_rewards(names: Sequence[str], earned: NDArray[np.float64], *, extrinsic: bool = False) -> dict[str, float]:
    """Return the mean over episodes (F, S), those of all ranks, for each signal; nothing without an episode.

    The game's own rewards are measured where they are played; `extrinsic` counts them here, too.
    """
    earned_mean = mean_over_ranks(torch.from_numpy(earned))  # (S,), NaN without an episode
    if bool(earned_mean.isnan().any()):
        return {}
    means = zip(names, earned_mean.tolist(), strict=True)
    return {f"Policy/{title(name)} Reward": mean for name, mean in means if extrinsic or name != "extrinsic"}
