"""Acting with torch, where numpy would have to repeat convolutions, attention and an LSTM.

The modules are the learner's own (`worker.networks.actor`), in float32 on the device that the run's configuration
names, the CPU if it names none. Sampling is that of `worker.networks.policy`, on the CPU everywhere, with the generator
that the caller passes. On a GPU a batch makes two ways: each observation there in one piece, pictures as bytes, and the
columns of the head back, with the memory where there is one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ludus.spec import BehaviorSpec
from server.training.network import NetworkSettings
from worker.networks.actor import Actor
from worker.networks.policy import Acted, FloatArray, sample


class TorchPolicy:
    """Any actor, in torch, on one device (`networks.policy.Policy`)."""

    def __init__(
        self,
        spec: BehaviorSpec,
        network_settings: Mapping[str, Any],
        *,
        squashed: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        settings = NetworkSettings.model_validate(network_settings)
        self._device = torch.device(device)
        self._actor = Actor(spec, settings, torch.Generator(), squashed=squashed).requires_grad_(requires_grad=False)
        self._actor.to(self._device).eval()
        self.layout = self._actor.layout
        self.flat_size = self._actor.flat_size
        self.memory_size = self._actor.memory_size
        self._log_sigma: FloatArray | None = None

    def load(self, flat: FloatArray) -> None:
        """Take a copy of the weights; the buffer may change afterwards."""
        self._actor.load_flat(flat)
        self._log_sigma = None if self.layout.squashed else self._actor.log_sigma.cpu().numpy()

    @torch.inference_mode()
    def act(
        self,
        observations: Sequence[NDArray[np.generic]],
        masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
        memory: FloatArray | None,
        rng: np.random.Generator,
        noise: FloatArray | None = None,
    ) -> Acted:
        """Draw an action for each of `B` agents (`Policy.act`)."""
        actor = self._actor
        encoded = actor.encode([self._sent(part) for part in observations])
        head, after = actor(encoded, None if memory is None else self._sent(memory))
        state = None if after is None else after.cpu().numpy()
        return sample(self.layout, head.cpu().numpy(), self._log_sigma, masks, rng, noise, state)

    def _sent(self, array: NDArray[np.generic]) -> torch.Tensor:
        """Return an array on the device; what came off the wire is read-only, and torch has no such tensors."""
        return torch.from_numpy(np.require(array, requirements=("C", "W"))).to(self._device)
