"""SAC's networks: the actor, its critics (two Q networks, a value network and its slowly moving copy, the target), and
the entropy coefficients.

Each critic has `S` outputs for the `S` reward signals, a Q network one for each signal and each choice of all branches
(or one for each signal without branches). A Q network sees observation and continuous action, joined behind the
encoders. Initial weights as in ML-Agents: hidden layers Kaiming normal, heads Xavier uniform for each signal; the
target starts as V. `ModularCritics` is for bodies of any kind; `fast.critics` has the one for MLPs.

Dimensions: `R` rows, which with a memory are sequences of `L` steps one after the other; `K` is `max(M, 1)`; `E`
entropy coefficients: the branches', then the columns'.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ludus.collector.layout import BodyLayout
from ludus.config.behavior import SACConfig
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec
from worker.learning.fast.critics import QPrediction, StackedCritics
from worker.learning.functional.distributions import Branch, branch_bounds, branches_of
from worker.learning.functional.squashed import Squashed, draw_squashed
from worker.learning.networks.actor import Actor
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.dense import Dense
from worker.learning.networks.encoder import Encoded

DISCRETE_TARGET = 0.2
"""Target entropy of a branch, as a part of the largest possible."""


class CriticNetwork(nn.Module):
    """A body, and heads for each signal."""

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        signals: int,
        outputs: int,
        generator: torch.Generator,
        actions: int = 0,
    ) -> None:
        super().__init__()
        self.body = NetworkBody(spec.observations, settings, generator, extra_inputs=actions, normalizes=False)
        self.heads = Dense(self.body.features, signals * outputs)
        bound = math.sqrt(6.0 / (self.body.features + outputs))
        nn.init.uniform_(self.heads.weight, -bound, bound, generator=generator)
        nn.init.zeros_(self.heads.bias)

    def encoding(self, encoded: Encoded) -> Float[Tensor, "R I"]:
        """Return what the encoders make of observations: the costly part, the same for every action."""
        encoding: Tensor = self.body.encoder(encoded)
        return encoding

    def forward(
        self, encoding: Float[Tensor, "R I"], continuous: Float[Tensor, "R C"] | None, length: int
    ) -> Float[Tensor, "R SK"]:
        """Return the heads for encodings and, in a Q network, actions. Memories are zero before each sequence."""
        features, _ = self.body.features_of(encoding, None, length, continuous)
        heads: Tensor = self.heads(features)
        return heads


class ModularCritics(nn.Module):
    """Q1, Q2, V and the target as networks of any kind: pictures, sets of entities, goals, memories."""

    def __init__(self, spec: BehaviorSpec, settings: NetworkSettings, signals: int, generator: torch.Generator) -> None:
        super().__init__()
        actions = spec.actions
        self._signals, self._choices, self._actions = signals, max(actions.mask_size, 1), actions.continuous_size
        self.q = nn.ModuleList(
            CriticNetwork(spec, settings, signals, self._choices, generator, actions.continuous_size) for _ in range(2)
        )
        self.v = CriticNetwork(spec, settings, signals, 1, generator)
        self.target = CriticNetwork(spec, settings, signals, 1, generator).requires_grad_(False)
        self.track(1.0)

    def q_values(self, encoded: Encoded, continuous: Float[Tensor, "R C"], length: int) -> QPrediction:
        """Return Q of actions that were taken, and V."""
        action = continuous if self._actions else None
        encodings = [network.encoding(encoded) for network in self.q_networks]
        q = [network(part, action, length) for network, part in zip(self.q_networks, encodings, strict=True)]
        v = self.v(self.v.encoding(encoded), None, length)
        return QPrediction(self._by_signal(q), v, ([part.detach() for part in encodings], length))

    def q_values_of(self, prediction: QPrediction, continuous: Float[Tensor, "R C"]) -> Float[Tensor, "2 R S K"]:
        """Return Q of other actions on the same observations, whose encodings are not computed again."""
        encodings, length = prediction.passed
        with constant(self.q):
            return self._by_signal(
                [network(part, continuous, length) for network, part in zip(self.q_networks, encodings, strict=True)]
            )

    def target_values(self, encoded: Encoded, following: Encoded, length: int) -> Float[Tensor, "R S"]:
        """Return the target's values of what followed.

        With a memory the target sees each sequence from its first observation on, then the one behind its end.
        """
        target = self.target
        if target.body.memory is None:
            return self.initial_values(following)
        encoding = target.encoding(encoded).view(-1, length, target.body.encoder.size)  # (Q, L, I)
        successors = target.encoding(following).view(-1, length, target.body.encoder.size)
        sequences = torch.cat([encoding[:, :1], successors], 1)  # (Q, L + 1, I)
        values: Tensor = target(sequences.flatten(0, 1), None, length + 1)
        return values.view(-1, length + 1, self._signals)[:, 1:].flatten(0, 1)

    def initial_values(self, encoded: Encoded) -> Float[Tensor, "R S"]:
        """Return the target's values of observations that nothing came before."""
        values: Tensor = self.target(self.target.encoding(encoded), None, 1)
        return values

    def track(self, tau: float) -> None:
        """Move the target the part `tau` of its way to V."""
        sources = [parameter.detach() for parameter in self.v.parameters()]
        torch._foreach_lerp_(list(self.target.parameters()), sources, tau)

    @property
    def q_networks(self) -> list[CriticNetwork]:
        """Q1 and Q2."""
        return [network for network in self.q if isinstance(network, CriticNetwork)]

    def _by_signal(self, q: Sequence[Tensor]) -> Float[Tensor, "2 R S K"]:
        stacked = torch.stack(list(q))
        return stacked.view(*stacked.shape[:2], self._signals, self._choices)


@contextmanager
def constant(module: nn.Module) -> Iterator[None]:
    """Treat the weights of a module as constants in the graphs that are recorded meanwhile."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)


def build_critics(
    spec: BehaviorSpec, settings: NetworkSettings, signals: int, generator: torch.Generator
) -> StackedCritics | ModularCritics:
    """Return the critics of a behavior. They take observations that an actor has encoded."""
    layout = BodyLayout.of(spec.observations, settings, spec.name)
    if layout.plain:
        return StackedCritics(layout, spec.actions, signals, generator)
    return ModularCritics(spec, settings, signals, generator)


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

    def parameters(self) -> list[nn.Parameter]:
        """Return all parameters, those of the target included."""
        return [*self.actor.parameters(), *self.critics.parameters(), self.log_coefficients]

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
