"""DQN's network: Q of every choice for each reward signal, its target, and the actor that acts by their sum.

With `dueling` (Wang et al. 2016) each branch has a value and advantages, `Q = V + A - mean(A)`. Both are single linear
layers behind the body that the actor has, so that the sum of Q over signals is linear in the features, too: `fold`
writes it into the actor's head, and collectors act with plain values of choices.

Dimensions: `R` rows, which with a memory are `Q` sequences one after the other, `S` signals, `D` branches, `M` choices
of all branches.
"""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec
from worker.learning.functional.distributions import branch_bounds
from worker.learning.networks.actor import Actor
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.dense import xavier_dense
from worker.learning.networks.encoder import Encoded


def dueling_q(
    values: Float[Tensor, "*N D"], advantages: Float[Tensor, "*N M"], sizes: tuple[int, ...]
) -> Float[Tensor, "*N M"]:
    """Return `V + A - mean(A)`, branch by branch."""
    parts = []
    for branch, (start, stop) in enumerate(branch_bounds(sizes)):
        part = advantages[..., start:stop]
        parts.append(values[..., branch : branch + 1] + part - part.mean(-1, keepdim=True))
    return torch.cat(parts, -1)


class QHeads(nn.Module):
    """The layers behind a body."""

    def __init__(
        self, features: int, signals: int, sizes: tuple[int, ...], *, dueling: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._signals, self._sizes = signals, sizes
        self.advantages = xavier_dense(features, signals * sum(sizes), generator)
        """Q itself without `dueling`."""
        self.values = xavier_dense(features, signals * len(sizes), generator) if dueling else None

    def forward(self, features: Float[Tensor, "R U"]) -> Float[Tensor, "R S M"]:
        """Return Q."""
        values = None if self.values is None else self.values(features)
        return self._q(values, self.advantages(features))

    @torch.no_grad()
    def summed(self) -> tuple[Float[Tensor, "M U"], Float[Tensor, " M"]]:
        """Return weight and bias of the layer that gives the sum of Q over signals."""
        values = (
            (None, None)
            if self.values is None
            else (self.values.weight.t().contiguous(), self.values.bias.unsqueeze(0))
        )
        weight = self._q(values[0], self.advantages.weight.t().contiguous()).sum(1)  # (U, M)
        return weight.t(), self._q(values[1], self.advantages.bias.unsqueeze(0)).sum(1)[0]

    def _q(self, values: Tensor | None, advantages: Float[Tensor, "N SM"]) -> Float[Tensor, "N S M"]:
        by_signal = advantages.view(len(advantages), self._signals, sum(self._sizes))
        if values is None:
            return by_signal
        return dueling_q(values.view(len(values), self._signals, len(self._sizes)), by_signal, self._sizes)


def _features(body: NetworkBody, encoded: Encoded, memory: Float[Tensor, "Q memory"] | None) -> Float[Tensor, "R U"]:
    length = 1 if memory is None else len(encoded[0]) // len(memory)
    return body(encoded, memory, length=length)[0]  # type: ignore[no-any-return]  # a module's call is untyped


class QNetwork(nn.Module):
    """The online network, whose body is the actor's, and the target network."""

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        signals: int,
        *,
        head: str,
        dueling: bool,
        generator: torch.Generator,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        super().__init__()
        self.actor = Actor(spec, settings, generator, head=head)
        self.actor.head.requires_grad_(requires_grad=False)
        sizes = spec.actions.discrete_branches
        self.heads = QHeads(self.actor.body.features, signals, sizes, dueling=dueling, generator=generator)
        self.target_body: NetworkBody = copy.deepcopy(self.actor.body).requires_grad_(requires_grad=False)
        self.target_body.normalizer = None  # what the actor has encoded is normalised
        self.target_heads: QHeads = copy.deepcopy(self.heads).requires_grad_(requires_grad=False)
        self.fold()

    def trained_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return what gradients change, by name."""
        named = [(f"body.{name}", part) for name, part in self.actor.body.named_parameters()]
        return named + [(f"heads.{name}", part) for name, part in self.heads.named_parameters()]

    def target_parameters(self) -> list[nn.Parameter]:
        """Return the target's parameters, in the order of `trained_parameters`."""
        return [*self.target_body.parameters(), *self.target_heads.parameters()]

    def q(self, encoded: Encoded, memory: Float[Tensor, "Q memory"] | None = None) -> Float[Tensor, "R S M"]:
        """Return Q of the online network. With `memory` rows are as many sequences, which begin with it; without one
        they are single steps.
        """
        q: Tensor = self.heads(_features(self.actor.body, encoded, memory))
        return q

    @torch.no_grad()
    def target_q(self, encoded: Encoded, memory: Float[Tensor, "Q memory"] | None = None) -> Float[Tensor, "R S M"]:
        """Return Q of the target network, as `q` does."""
        q: Tensor = self.target_heads(_features(self.target_body, encoded, memory))
        return q

    @torch.no_grad()
    def track(self, tau: float) -> None:
        """Move the target the part `tau` of its way to the online network."""
        sources = [parameter.detach() for _, parameter in self.trained_parameters()]
        torch._foreach_lerp_(list(self.target_parameters()), sources, tau)

    @torch.no_grad()
    def fold(self) -> None:
        """Write the sum of Q over signals into the actor's head."""
        weight, bias = self.heads.summed()
        self.actor.head.weight.copy_(weight)
        self.actor.head.bias.copy_(bias)
