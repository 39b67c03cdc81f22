"""Adam (Kingma & Ba 2015) over all parameters as one vector.

For small networks the bookkeeping costs more than the arithmetic. So the parameters of the modules become views into
one contiguous vector, and their `grad` views into another: one fused call updates everything, one copy saves or
restores it, one norm measures it. Whoever computes gradients writes them *into* `parameter.grad`.
The modules must not be moved to another device or dtype afterwards. Parameters may come in groups, each with a learning
rate of its own: one call for each group then.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.adam import adam

from worker.learning.shares import average

BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a step changes: parameters, both moments and the count of steps."""

    tensors: tuple[Tensor, ...]


class FlatAdam:
    """Adam without weight decay. The parameters are taken over: their storage is replaced."""

    def __init__(self, *groups: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Each group is some parameters with their names; a name is in one group only."""
        members = [list(group) for group in groups]
        named = [member for group in members for member in group]
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._values = torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
        self._gradient = torch.zeros_like(self._values)
        views = zip(self._parameters, self._views(self._values), self._views(self._gradient), strict=True)
        for parameter, value, gradient in views:
            parameter.data = value
            parameter.grad = gradient
        self._first = torch.zeros_like(self._values)
        self._second = torch.zeros_like(self._values)
        self._steps = torch.zeros(len(members), dtype=torch.float32, device=self._values.device)
        """A count for each group, always equal: torch increments the one that it is given."""
        sizes = [sum(parameter.numel() for _, parameter in group) for group in members]
        vectors = (self._values, self._gradient, self._first, self._second)
        self._groups = list(zip(*(torch.split(vector, sizes) for vector in vectors), self._steps.unbind(), strict=True))

    @property
    def gradient(self) -> Float[Tensor, " P"]:
        """The gradient that the parameters hold, one after the other; a view."""
        return self._gradient

    def zero_gradient(self) -> None:
        """Forget the gradient, for who adds to it (automatic differentiation does)."""
        self._gradient.zero_()

    @torch.no_grad()
    def step(self, learning_rate: float | Sequence[float], max_norm: float | None = None) -> Float[Tensor, ""]:
        """Descend the gradient that the parameters hold; return its Euclidean norm, that of all groups together.

        `learning_rate` is one for all, or one for each group. A gradient longer than `max_norm` is first scaled to that
        length (Pascanu et al. 2013).
        """
        average(self._gradient)  # where several processes share the update
        norm: Tensor = torch.linalg.vector_norm(self._gradient)
        if max_norm is not None:
            self._gradient.mul_(max_norm / norm.clamp(min=max_norm))
        rates = [learning_rate] * len(self._groups) if isinstance(learning_rate, float) else learning_rate
        for rate, (values, gradient, first, second, steps) in zip(rates, self._groups, strict=True):
            adam(
                [values],
                [gradient],
                [first],
                [second],
                [],
                [steps],
                fused=True,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=rate,
                weight_decay=0.0,
                eps=EPSILON,
                maximize=False,
            )
        return norm

    def snapshot(self) -> Snapshot:
        """Return a copy to go back to."""
        return Snapshot(tuple(tensor.clone() for tensor in self._state()))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, parameters included."""
        for tensor, saved in zip(self._state(), snapshot.tensors, strict=True):
            tensor.copy_(saved)

    def all_finite(self) -> Tensor:
        """Return whether every parameter and moment is finite, as a boolean tensor on the device."""
        return torch.stack([tensor.isfinite().all() for tensor in self._state()]).all()

    def state_dict(self) -> dict[str, Tensor | dict[str, Tensor]]:
        """Return both moments by parameter name, and the count of steps. The tensors are copies."""
        return {
            "steps": self._steps[0].clone(),
            "first": self._named(self._first.clone()),
            "second": self._named(self._second.clone()),
        }

    def load_state_dict(self, state: dict[str, Tensor | dict[str, Tensor]]) -> None:
        """Take over what `state_dict` returned. Parameters are loaded by their modules."""
        steps, first, second = state["steps"], state["first"], state["second"]
        assert isinstance(steps, Tensor)
        assert isinstance(first, dict)
        assert isinstance(second, dict)
        self._steps.copy_(steps)
        for moments, saved in ((self._first, first), (self._second, second)):
            for name, view in self._named(moments).items():
                view.copy_(saved[name])

    def _state(self) -> tuple[Tensor, ...]:
        return self._values, self._first, self._second, self._steps

    def _views(self, vector: Tensor) -> list[Tensor]:
        parts = torch.split(vector, [parameter.numel() for parameter in self._parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self._parameters, strict=True)]

    def _named(self, vector: Tensor) -> dict[str, Tensor]:
        return dict(zip(self._names, self._views(vector), strict=True))
