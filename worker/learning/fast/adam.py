"""Adam (Kingma & Ba 2015) over all parameters as one vector.

For small networks the bookkeeping costs more than the arithmetic. So the parameters of the modules become views into
one contiguous vector, and their `grad` views into another: one fused call updates everything, one copy saves or
restores it, one norm measures it. The modules must not be moved to another device or dtype afterwards. Parameters may
come in groups, each with a learning rate of its own: one call for each group then.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.optim.adam import adam

from worker.experience.state import State
from worker.learning.data_parallel import average

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class _Group(NamedTuple):
    """Tensors that one call of torch's Adam updates: one vector, or the parameters one by one."""

    values: list[Tensor]
    gradients: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    steps: list[Tensor]


class FlatAdam:
    """Adam without weight decay."""

    def __init__(
        self, *groups: Iterable[tuple[str, nn.Parameter]], owns_storage: bool = True, beta1: float = BETAS[0]
    ) -> None:
        """Each group is some parameters with their names; a name is in one group only. Empty ones, and those that need
        no gradient, are left out.

        With `owns_storage` the storage of parameters and `grad` is replaced. Without it the parameters belong to
        another optimizer: they stay where they are, and the gradient comes from `set_gradient`. `beta1` is the decay
        of the mean gradient, from 0 to below 1.
        """
        self._beta1 = beta1
        members = [[(name, part) for name, part in group if part.requires_grad and part.numel()] for group in groups]
        named = [member for group in members for member in group]
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        values = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        self._first, self._second = torch.zeros_like(values), torch.zeros_like(values)
        self.gradient = torch.zeros_like(values)
        """The gradient of all parameters, one after the other."""
        vectors = (self.gradient, self._first, self._second)
        if owns_storage:
            for parameter, value, gradient in zip(
                self.parameters, self._views(values), self._views(self.gradient), strict=True
            ):
                parameter.data = value
                parameter.grad = gradient
            self._values = [values]
            sizes = [sum(parameter.numel() for _, parameter in group) for group in members]
            parts = [[part] for part in torch.split(values, sizes)]
            split = [[[part] for part in torch.split(vector, sizes)] for vector in vectors]
        else:
            self._values = [parameter.detach() for parameter in self.parameters]
            parts, split = [self._values], [[self._views(vector)] for vector in vectors]
        self._steps = torch.zeros(sum(map(len, parts)), dtype=torch.float32, device=values.device)
        """One count for each tensor that torch updates; all are equal."""
        steps = iter(self._steps.unbind())
        counts = [[next(steps) for _ in part] for part in parts]
        self._groups = [_Group(*group) for group in zip(parts, *split, counts, strict=True)]

    def zero_gradient(self) -> None:
        """Set the gradient to 0; autograd adds to it."""
        self.gradient.zero_()

    def set_gradient(self, gradients: Iterable[Tensor | None]) -> None:
        """Set the gradient; None is 0."""
        for view, gradient in zip(self._views(self.gradient), gradients, strict=True):
            view.zero_() if gradient is None else view.copy_(gradient)

    @torch.no_grad()
    def step(self, learning_rate: float | Sequence[float], max_norm: float | None = None) -> Float[Tensor, ""]:
        """Descend the gradient; return its Euclidean norm, that of all groups together.

        `learning_rate` is one for all, or one for each group. A gradient longer than `max_norm` is first scaled to that
        length (Pascanu et al. 2013). Where several ranks learn as one, the gradient becomes the mean of theirs first.
        """
        average(self.gradient)
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if max_norm is not None:
            self.gradient.mul_(max_norm / norm.clamp(min=max_norm))
        rates = [learning_rate] * len(self._groups) if isinstance(learning_rate, float) else learning_rate
        for rate, group in zip(rates, self._groups, strict=True):
            adam(
                group.values,
                group.gradients,
                group.first,
                group.second,
                [],
                group.steps,
                fused=True,
                amsgrad=False,
                beta1=self._beta1,
                beta2=BETAS[1],
                lr=rate,
                weight_decay=0.0,
                eps=EPSILON,
                maximize=False,
            )
        return norm

    @torch.no_grad()
    def reset(self) -> None:
        """Forget all moments and steps; the parameters stay what they are."""
        for tensor in (self._first, self._second, self._steps):
            tensor.zero_()

    @torch.no_grad()
    def snapshot(self) -> list[Tensor]:
        """Return a copy of parameters, moments and counts to go back to."""
        return [tensor.clone() for tensor in self._state()]

    @torch.no_grad()
    def restore(self, snapshot: list[Tensor]) -> None:
        """Go back to a snapshot, parameters included."""
        for tensor, saved in zip(self._state(), snapshot, strict=True):
            tensor.copy_(saved)

    @torch.no_grad()
    def all_finite(self) -> Bool[Tensor, ""]:
        """Return whether every parameter and moment is finite, as a boolean tensor on the device."""
        return torch.stack([tensor.isfinite().all() for tensor in self._state()]).all()

    def state_dict(self) -> State:
        """Return both moments by parameter name, and the count of steps. The tensors are copies."""
        return {
            "steps": self._steps[0].clone(),
            "first": self._named(self._first.clone()),
            "second": self._named(self._second.clone()),
        }

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Load the result of `state_dict`. Parameters are loaded by their modules."""
        self._steps.copy_(state["steps"])
        for moments, saved in ((self._first, state["first"]), (self._second, state["second"])):
            for name, view in self._named(moments).items():
                view.copy_(saved[name])

    def _state(self) -> list[Tensor]:
        return [*self._values, self._first, self._second, self._steps]

    def _views(self, vector: Tensor) -> list[Tensor]:
        parts = torch.split(vector, [parameter.numel() for parameter in self.parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]

    def _named(self, vector: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.names, self._views(vector), strict=True))
