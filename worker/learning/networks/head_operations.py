"""The operations of heads (`ludus.collector.heads`) in torch."""

import torch
from torch import Tensor


class TorchOperations:
    """Implements `ludus.collector.heads.Operations`."""

    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    log1p = staticmethod(torch.log1p)
    tanh = staticmethod(torch.tanh)
    absolute = staticmethod(torch.abs)

    @staticmethod
    def clip(values: Tensor, least: float, most: float) -> Tensor:
        """Return values limited to `[least, most]`."""
        return values.clamp(least, most)

    @staticmethod
    def largest(values: Tensor) -> Tensor:
        """Return the largest value of each row, `(B, 1)`."""
        return values.amax(1, keepdim=True)

    @staticmethod
    def total(values: Tensor) -> Tensor:
        """Return the sum of each row, `(B, 1)`."""
        return values.sum(1, keepdim=True)

    @staticmethod
    def at_least(values: Tensor, least: Tensor | float) -> Tensor:
        """Return 1.0 where a value is `least` or more, else 0.0."""
        return torch.ge(values, least).float()


TORCH = TorchOperations()
