"""Acting with torch, on a GPU: pictures, entities, memory and goals.

The modules are the learner's own (`worker.learning.networks.actor`), in float32 on the device that the run's
configuration names, the CPU if it names none. Sampling is that of `ludus.collector.policy`, on the CPU everywhere, with
the generator that the caller passes. On a GPU a batch makes two ways: each observation there in one piece, pictures as
bytes, and the columns of the head back, with the memory where there is one.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from ludus.collector.activations import FloatArray
from ludus.collector.policy import Network, Observations
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec
from worker.learning.networks.actor import Actor


class TorchPolicy(Network):
    """Any actor, in torch, on one device (`ludus.collector.policy.Policy`)."""

    def __init__(
        self,
        spec: BehaviorSpec,
        network_settings: NetworkSettings,
        *,
        head: str = "gaussian",
        device: torch.device | str = "cpu",
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        self.device = torch.device(device)
        self.actor = Actor(spec, network_settings, torch.Generator(), head=head).requires_grad_(requires_grad=False)
        self.actor.to(self.device).eval()
        self.layout = self.actor.layout
        self.flat_size = self.actor.flat_size
        self.memory_size = self.actor.memory_size
        self.parameters = {}

    def load(self, flat: FloatArray) -> None:
        """Take a copy of the weights; the buffer may change afterwards."""
        self.actor.load_flat(flat)
        self.parameters = {name: values.cpu().numpy() for name, values in self.actor.head_parameters().items()}

    def forward(self, observations: Observations, memory: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        """Return the columns of the head, `(B, H)`, and the memory after the step where there is one."""
        actor = self.actor
        with torch.inference_mode():
            encoded = actor.encode([self._sent(part) for part in observations])
            head, after = actor(encoded, None if memory is None else self._sent(memory))
            return head.cpu().numpy(), None if after is None else after.cpu().numpy()

    def _sent(self, array: NDArray[np.generic]) -> torch.Tensor:
        """Return an array on the device; what came off the wire is read-only, and torch has no such tensors."""
        return torch.from_numpy(np.require(array, requirements=("C", "W"))).to(self.device)
