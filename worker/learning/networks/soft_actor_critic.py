"""SAC's networks: the actor, its critics, and the entropy coefficients.

Dimensions: `R` rows, `E` entropy coefficients: the branches', then the columns'.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ludus.config.behavior import SACConfig
from ludus.protocol.spec import BehaviorSpec
from worker.learning.fast.critics import build_critics
from worker.learning.functional.distributions import Branch, branch_bounds, branches_of
from worker.learning.functional.squashed import Squashed, draw_squashed
from worker.learning.networks.actor import Actor

DISCRETE_TARGET = 0.2
"""Target entropy of a branch, as a part of the largest possible."""


class PolicyActions(NamedTuple):
    """Actions and distributions of the policy at some observations."""

    squashed: Squashed | None
    """None without columns."""
    branches: list[Branch]
    entropies: Float[Tensor, "R E"]
    """Of each branch; of the columns minus the log-density of the action that was drawn."""


class SoftActorCritic:
    """Actor, critics and entropy coefficients of one behavior."""

    def __init__(
        self, config: SACConfig, spec: BehaviorSpec, signals: int, device: torch.device, generator: torch.Generator
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        self.actor = Actor(spec, config.network_settings, generator, head=config.head).to(device)
        self.critics = build_critics(spec, config.network_settings, signals, generator).to(device)
        self.columns, self.sizes = spec.actions.continuous_size, spec.actions.discrete_branches
        self.bounds = branch_bounds(self.sizes)
        count = len(self.sizes) + bool(self.columns)
        first = math.log(config.hyperparameters.init_entcoef)
        self.log_coefficients = nn.Parameter(torch.full((count,), first, device=device))
        targets = [DISCRETE_TARGET * math.log(size) for size in self.sizes] + [-float(self.columns)]
        self.target_entropies = torch.tensor(targets[:count], device=device)  # (E,)
        shares = [1.0 / len(self.sizes) for _ in self.sizes] + [1.0]
        self.shares = torch.tensor(shares[:count], device=device)
        """(E,): weight of each entropy within the soft value, which is a mean over branches."""

    def named_parameters(self) -> list[list[tuple[str, nn.Parameter]]]:
        """Return the trained parameters of the actor, of the critics, and the coefficients."""
        return [
            [(f"actor.{name}", part) for name, part in self.actor.named_parameters() if part.numel()],
            [(f"critics.{name}", part) for name, part in self.critics.named_parameters() if part.requires_grad],
            [("log_coefficients", self.log_coefficients)],
        ]

    def actions(
        self, head: Float[Tensor, "R H"], masks: Bool[Tensor, "R M"] | None, noise: Float[Tensor, "R C"] | None
    ) -> PolicyActions:
        """Return the policy's actions where the actor's head has these columns; `noise` draws the continuous action."""
        squashed, columns = None, self.columns
        branches = branches_of(head[:, 2 * columns :], masks, self.sizes)
        entropies = [branch.entropy.unsqueeze(1) for branch in branches]
        if noise is not None:
            squashed = draw_squashed(head[:, :columns], head[:, columns : 2 * columns], noise)
            entropies.append(squashed.log_prob.neg().unsqueeze(1))
        return PolicyActions(squashed, branches, entropies[0] if len(entropies) == 1 else torch.cat(entropies, 1))
