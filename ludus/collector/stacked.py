"""Several policies of one shape at once: each row of a batch is answered by the weights that it names.

In numpy the weights of all policies lie in one array per layer, `(P, in, out)`. Rows are sorted by policy into groups
of equal length, padded with zeros, so that a layer is one batched product for all policies; a batch of one policy is a
plain product. What acts with torch has a network per policy, which answer one after the other: convolutions and an LSTM
of other weights for each row can't be had as one operation that is any faster on a CPU.

Dimensions: `P` policies, `U` of them in a batch, `B` rows, `N` rows of the largest group, `H` columns of the head.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ludus.collector.activations import FloatArray, numpy_function
from ludus.collector.layout import ActorLayout
from ludus.collector.policy import NORMALIZED_LIMIT, Acted, clip, dense, sample
from ludus.protocol.spec import BehaviorSpec

Rows = NDArray[np.intp]


@runtime_checkable  # by tests, which check every annotation
class StackedPolicies(Protocol):
    """Several policies that answer observations in one pass. `load` before the first `act`."""

    @property
    def memory_size(self) -> int:
        """Width of the memory that `act` takes and returns; 0 without."""

    def load(self, weights: Sequence[FloatArray]) -> None:
        """Take copies of the flat weights of `P` policies, in place of those that were there."""

    def act(
        self,
        which: Rows,
        observations: Sequence[NDArray[np.generic]],
        masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
        memory: FloatArray | None,
        rng: np.random.Generator,
    ) -> Acted:
        """Draw an action for each row; `which` `(B,)` names the policy of each, the others are as for one policy."""


class StackedActing:
    """Plain actors in numpy."""

    memory_size = 0

    def __init__(self, spec: BehaviorSpec, network_settings: Mapping[str, Any], *, head: str = "gaussian") -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior. It must be plain (see `ActorLayout`)."""
        self.layout = ActorLayout.of(spec, network_settings, head=head)
        self._activate = numpy_function(self.layout.body.activation)
        self._layers: list[tuple[FloatArray, FloatArray]] = []
        """Weights `(P, in, out)` and biases `(P, 1, out)`."""
        self._mean = self._std = np.zeros((0, 0), np.float32)
        self._parameters: dict[str, FloatArray] = {}
        """Of the heads: `(P, n)` each."""

    def load(self, weights: Sequence[FloatArray]) -> None:
        """Take copies of the flat weights of `P` policies."""
        flat = np.stack(weights)
        sections, start = dict[str, FloatArray](), 0
        for name, shape in self.layout.sections():
            sections[name] = flat[:, start : start + prod(shape)].reshape(-1, *shape)
            start += prod(shape)
        names = [*(f"body.{layer}" for layer in range(self.layout.body.num_layers)), "head"]
        self._layers = [
            (np.ascontiguousarray(sections[f"{name}.weight"].transpose(0, 2, 1)), sections[f"{name}.bias"][:, None])
            for name in names
        ]
        if self.layout.body.normalize:
            self._mean, self._std = sections["normalizer.mean"], sections["normalizer.std"]
        own = self.layout.kind.parameters(self.layout.continuous_size)
        self._parameters = {parameter.name: sections[parameter.name] for parameter in own}

    def act(
        self,
        which: Rows,
        observations: Sequence[NDArray[np.generic]],
        masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
        memory: FloatArray | None,  # noqa: ARG002  (plain actors have none)
        rng: np.random.Generator,
    ) -> Acted:
        """Draw an action for each of `B` agents (`StackedPolicies.act`)."""
        parameters = {name: values[which] for name, values in self._parameters.items()}
        return sample(self.layout, self._head(which, observations), parameters, masks, rng)

    def _head(self, which: Rows, observations: Sequence[NDArray[np.generic]]) -> FloatArray:
        """Return the columns of the head, `(B, H)`."""
        joined = observations[0] if len(observations) == 1 else np.concatenate(observations, 1)
        hidden: FloatArray = joined.astype(np.float32, copy=False)
        if self.layout.body.normalize:
            hidden = hidden - self._mean[which]
            hidden /= self._std[which]
            hidden = clip(hidden, NORMALIZED_LIMIT)
        counts = np.bincount(which, minlength=len(self._layers[0][0]))
        used = np.flatnonzero(counts)
        if len(used) == 1:
            one = int(used[0])
            return dense(hidden, [(weight[one], bias[one]) for weight, bias in self._layers], self._activate)
        layers = self._layers
        if len(used) < len(counts):
            layers = [(weight[used], bias[used]) for weight, bias in layers]
        order = np.argsort(which, kind="stable")
        group = np.empty_like(counts)
        group[used] = np.arange(len(used))
        place = np.empty_like(order)
        place[order] = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        padded = np.zeros((len(used), int(counts.max()), hidden.shape[1]), np.float32)
        rows = group[which], place
        padded[rows] = hidden
        return dense(padded, layers, self._activate)[rows]


def rows_of(which: Rows) -> list[tuple[int, Rows]]:
    """Return each policy of a batch with its rows."""
    return [(int(policy), np.flatnonzero(which == policy)) for policy in np.unique(which)]
