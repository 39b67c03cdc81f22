"""Count-based novelty (Strehl & Littman 2008, https://doi.org/10.1016/j.jcss.2007.08.009; Tang et al. 2017,
https://arxiv.org/abs/1611.04717): reward for observations that were seldom seen.

    reward = 1 / sqrt(1 + n(s))

where `n(s)` counts how often the signal has learned from an observation. It is meant for discrete observations: grids,
boards, one-hot vectors, counters. Two observations are the same where all their numbers are, rounded to multiples of
`resolution`. Counts lie in a table of `table_size` places; an observation's place is a hash of it (Tang et al., section
2), so that of n different ones a share of about n / table_size has a count that is too high.

Details:
 1. PPO and POCA learn from a step once per epoch, and a step counts each time. That scales all counts alike.
 2. Returns go on beyond termination, as those of curiosity and RND do.
 3. Where several ranks learn as one, each counts the observations of all.

Dimensions: `B` rows, `T` places of the table.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ludus.config.plugins.novelty import NoveltyConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.transitions import Transitions
from worker.learning.data_parallel import total
from worker.learning.rewards.signal import RewardSignal, observed

FIRST, SECOND = -4658895280553007687, -7723592293110705685
"""Multipliers of splitmix64 (Steele, Lea and Flood 2014, https://doi.org/10.1145/2660193.2660195), signed."""


class NoveltyReward(RewardSignal):
    """Pays for observations by how seldom they were seen."""

    ignores_termination, learns = True, True

    def __init__(
        self, config: NoveltyConfig, spec: BehaviorSpec, device: torch.device, generator: torch.Generator
    ) -> None:
        """`generator` draws the hash."""
        self._resolution = config.resolution
        size = sum(observation.size for observation in spec.observations)
        drawn = torch.randint(-(2**62), 2**62, (size,), generator=generator)
        self._factors = (2 * drawn + 1).to(device)
        self._counts = torch.zeros(config.table_size, dtype=torch.int64, device=device)
        self.stored, self.changed = {"factors": self._factors, "counts": self._counts}, [self._counts]

    @torch.no_grad()
    def evaluate(self, transitions: Transitions) -> Float[Tensor, " N"]:
        """Return `1 / sqrt(1 + n)` of each step's observation."""
        return (1.0 + self._counts[self._places(transitions)]).rsqrt()

    @torch.no_grad()
    def update(self, transitions: Transitions) -> dict[str, Float[Tensor, ""]]:
        """Count the observations of some steps."""
        self._counts += total(torch.bincount(self._places(transitions), minlength=len(self._counts)))
        return {"Policy/Novelty Places": (self._counts > 0).float().sum()}

    def _places(self, transitions: Transitions) -> Int[Tensor, " N"]:
        """Return each observation's place in the table.

        Each number is hashed with its column's factor, then the sum of a row is hashed. A sum of products alone would
        put neighbouring cells of a board on few places: its differences are the same all over the board.
        """
        parts = [part.flatten(1).float() for part in observed(transitions, transitions.index)]
        rounded = (torch.cat(parts, 1) / self._resolution).round().long()
        return _mixed(_mixed(rounded * self._factors).sum(1)) % len(self._counts)


def _mixed(numbers: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return a permutation of the 64-bit numbers in which every bit depends on every other one (splitmix64)."""
    numbers = (numbers ^ (numbers >> 30)) * FIRST
    numbers = (numbers ^ (numbers >> 27)) * SECOND
    return numbers ^ (numbers >> 31)
