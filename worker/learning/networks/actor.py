"""The policy network: a body, and a head whose columns become actions as `ludus.collector.heads` describes.

The columns of the head are those of the `C` continuous columns, then one for each choice of all branches. `log_sigma`,
the deviations of a Gaussian head, is a parameter that does not depend on observations and starts at 0; other heads have
none. Parameters that no gradient changes are buffers.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from ludus.collector.layout import ActorLayout
from ludus.collector.spec_checks import ObservationKind
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec
from worker.learning.functional.distributions import (
    JointDistribution,
    branch_bounds,
    joint_distribution,
    masked_logits,
)
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.dense import kaiming_dense
from worker.learning.networks.encoder import Encoded
from worker.learning.networks.head_operations import TORCH
from worker.learning.networks.normalizer import Normalizer

MEAN_SCALE = 0.2
"""Scale of the initial weights to the means (and log-sigmas) of continuous columns (ML-Agents)."""
LOGIT_SCALE = 0.1
"""Scale of the initial weights to the logits of discrete branches (ML-Agents)."""


class Parts(NamedTuple):
    """The head's columns by what they mean."""

    means: Float[Tensor, "R C"]
    log_sigmas: Float[Tensor, "R C"]
    logits: Float[Tensor, "R M"]
    """Of all branches side by side; masks are not applied."""


class Actor(nn.Module):
    """Maps observations to the parameters of the action distribution. Dimensions as in `networks.layout` and `body`."""

    def __init__(
        self, spec: BehaviorSpec, settings: NetworkSettings, generator: torch.Generator, *, head: str = "gaussian"
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        super().__init__()
        self.layout = layout = ActorLayout.of(spec, settings, head=head)
        unseen = layout.body.of_kind(ObservationKind.UNSEEN)
        self.body = NetworkBody(spec.observations, settings, generator, unseen=unseen)
        self.memory_size = self.body.memory_size
        """Width of the recurrent state; 0 without memory."""
        self.head = kaiming_dense(self.body.features, layout.head_size, LOGIT_SCALE, generator)
        with torch.no_grad():
            self.head.weight[: layout.logits_start] *= MEAN_SCALE / LOGIT_SCALE
        self.log_sigma = nn.Parameter(torch.zeros(0))
        for parameter in layout.kind.parameters(layout.continuous_size):
            values = torch.zeros(parameter.size)
            if parameter.learned:
                setattr(self, parameter.name, nn.Parameter(values))
            else:
                self.register_buffer(parameter.name, values)

    @property
    def normalizer(self) -> Normalizer | None:
        """The running statistics of vector observations, where they are normalised."""
        return self.body.normalizer

    def encode(self, observations: list[Tensor]) -> Encoded:
        """Return what the body sees of raw observations in the spec's order."""
        return self.body.encode(observations)

    def forward(
        self, encoded: Encoded, memory: Float[Tensor, "Q S"] | None = None, *, length: int = 1
    ) -> tuple[Float[Tensor, "R H"], Float[Tensor, "Q S"] | None]:
        """Return the head's columns for encoded observations, and the memory after each sequence."""
        features, memory = self.body(encoded, memory, length=length)
        head: Tensor = self.head(features)
        return head, memory

    def parts(self, head: Float[Tensor, "R H"]) -> Parts:
        """Return the head's columns by meaning."""
        logits, continuous = head[:, self.layout.logits_start :], self.layout.kind.continuous
        if continuous is None or not self.layout.continuous_size:
            return Parts(head[:, :0], head[:, :0], logits)
        means, log_sigmas = continuous.moments(TORCH, head, self.head_parameters(), self.layout.continuous_size)
        return Parts(means, log_sigmas.expand_as(means), logits)

    def joint(
        self,
        head: Float[Tensor, "R H"],
        continuous: Float[Tensor, "R C"],
        discrete: Int[Tensor, "R D"],
        masks: Bool[Tensor, "R M"] | None,
    ) -> JointDistribution:
        """Return the distribution of a Gaussian head at the actions taken (`functional.distributions`)."""
        sizes = self.layout.discrete_branches
        return joint_distribution(head, self.log_sigma, continuous, discrete, masks, sizes)

    def head_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of the head that are not its last layer, by name."""
        parameters = self.layout.kind.parameters(self.layout.continuous_size)
        return {parameter.name: getattr(self, parameter.name) for parameter in parameters}

    @torch.no_grad()
    def deterministic(
        self,
        observations: list[Tensor],
        masks: Bool[Tensor, "R M"] | None,
        memory: Float[Tensor, "R S"] | None = None,
    ) -> tuple[Float[Tensor, "R C"], Int[Tensor, "R D"], Float[Tensor, "R S"] | None]:
        """Return the means as the environment gets them, the best allowed choices, and the memory after the step.

        `observations` are raw, one step of each row.
        """
        head, memory = self(self.encode(observations), memory)
        means, _, logits = self.parts(head)
        logits = masked_logits(logits, masks)
        choices = [logits[:, start:stop].argmax(1) for start, stop in branch_bounds(self.layout.discrete_branches)]
        chosen = torch.stack(choices, 1) if choices else logits.new_zeros((len(head), 0), dtype=torch.int64)
        continuous = self.layout.kind.continuous
        if continuous is not None and self.layout.continuous_size:
            means = continuous.action(TORCH, continuous.recorded(TORCH, means))
        return means, chosen, memory

    @torch.no_grad()
    def flatten(self) -> NDArray[np.float32]:
        """Return weights and normalizer statistics as one vector, in the order of `sections`."""
        flat: NDArray[np.float32] = torch.cat([part.reshape(-1).float() for part in self.sections()]).cpu().numpy()
        return flat

    @torch.no_grad()
    def load_flat(self, flat: NDArray[np.float32]) -> None:
        """Take over what `flatten` returned. The statistics then normalise as they did, but must not be merged to."""
        if flat.shape != (self.flat_size,):
            raise ValueError(f"expected {self.flat_size} weights, got an array of shape {flat.shape}")
        vector = torch.tensor(flat, device=self.head.weight.device)  # in one piece, then there part by part
        values = iter(torch.split(vector, [part.numel() for part in self.sections()]))
        if self.normalizer is not None:
            self.normalizer.set_scale(mean=next(values), std=next(values))
        for part, value in zip(self._parts_in_order(), values, strict=True):
            part.copy_(value.view_as(part))

    @property
    def flat_size(self) -> int:
        """Number of float32 values in the flat vector."""
        return sum(part.numel() for part in self.sections())

    def sections(self) -> Iterator[Tensor]:
        """Yield the parts of the flat vector: statistics, body, head and its parameters."""
        if self.normalizer is not None:
            yield self.normalizer.mean
            yield self.normalizer.std()
        yield from self._parts_in_order()

    def _parts_in_order(self) -> Iterator[Tensor]:
        yield from self.body.parameters()
        yield from self.head.parameters()
        yield from self.head_parameters().values()
