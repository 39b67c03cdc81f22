"""The policy network: normalizer, dense body, one head for the means and all logits."""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from worker.functional.distributions import masked_logits
from worker.networks.dense import DenseBody, kaiming_dense
from worker.networks.layout import ActorLayout
from worker.networks.normalizer import Normalizer

MEAN_SCALE = 0.2
"""Scale of the initial weights to the means of continuous columns (ML-Agents)."""
LOGIT_SCALE = 0.1
"""Scale of the initial weights to the logits of discrete branches (ML-Agents)."""


class Actor(nn.Module):
    """Maps observations to the parameters of the action distribution.

    The columns of `head` are the means of the `C` continuous columns, then the logits of all branches. `log_sigma` does
    not depend on observations and starts at 0.
    """

    def __init__(self, layout: ActorLayout, generator: torch.Generator) -> None:
        super().__init__()
        self.layout = layout
        self.normalizer = Normalizer(layout.observation_size) if layout.normalize else None
        self.body = DenseBody(layout, generator)
        self.head = kaiming_dense(layout.hidden_units, layout.head_size, LOGIT_SCALE, generator)
        with torch.no_grad():
            self.head.weight[: layout.continuous_size] *= MEAN_SCALE / LOGIT_SCALE
        self.log_sigma = nn.Parameter(torch.zeros(layout.continuous_size))

    @torch.no_grad()
    def encode(self, observations: Float[Tensor, "B O"]) -> Float[Tensor, "B O"]:
        """Normalise raw observations, joined in the spec's order: what the body sees."""
        return observations if self.normalizer is None else self.normalizer.forward(observations)

    def forward(self, encoded: Float[Tensor, "B O"]) -> Float[Tensor, "B H"]:
        """Return means and logits for encoded observations."""
        head: Tensor = self.head(self.body(encoded))
        return head

    @torch.no_grad()
    def deterministic(
        self, observations: Float[Tensor, "B O"], masks: Bool[Tensor, "B M"] | None
    ) -> tuple[Float[Tensor, "B C"], Int[Tensor, "B D"]]:
        """Return the means, clipped and scaled as the environment gets them, and the likeliest allowed choices.

        `observations` are raw, joined in the spec's order.
        """
        head = self(self.encode(observations))
        size = self.layout.continuous_size
        logits = masked_logits(head[:, size:], masks)
        choices = [branch.argmax(1) for branch in torch.split(logits, list(self.layout.discrete_branches), 1)]
        chosen = torch.stack(choices, 1) if choices else logits.new_zeros((len(head), 0), dtype=torch.int64)
        return head[:, :size].clamp(-3.0, 3.0) / 3.0, chosen

    @torch.no_grad()
    def flatten(self) -> NDArray[np.float32]:
        """Return weights and normalizer statistics as one vector, in the order of `ActorLayout.sections`."""
        parts = [self._section(name).reshape(-1).float() for name, _ in self.layout.sections()]
        flat: NDArray[np.float32] = torch.cat(parts).cpu().numpy()
        return flat

    def _section(self, name: str) -> Tensor:
        match name.split("."):
            case ["normalizer", statistic]:
                assert self.normalizer is not None
                return self.normalizer.mean if statistic == "mean" else self.normalizer.std()
            case ["body", layer, part]:
                return self.body.layers[int(layer)].get_parameter(part)
            case _:
                return self.get_parameter(name)
