"""Several policies of one shape at once: each row of a batch is answered by the weights that it names.

In numpy the weights of all policies lie in one array per layer, `(P, in, out)`. Rows are sorted by policy into groups
of equal length, padded with zeros, so that a layer is one batched product for all policies; a batch of one policy is a
plain product. Other policies are a network each, which answer one after the other: convolutions and an LSTM of other
weights for each row can't be had as one operation that is any faster on a CPU.

Dimensions: `P` policies, `U` of them in a batch, `B` rows, `N` rows of the largest group, `H` columns of the head.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ludus.collector.activations import FloatArray, numpy_function
from ludus.collector.layout import ActorLayout
from ludus.collector.networks.normalizer import joined_vectors
from ludus.collector.policy import Acted, Policy, dense, sample, split
from ludus.config.network import NetworkSettings
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

    def __init__(self, spec: BehaviorSpec, network_settings: NetworkSettings, *, head: str = "gaussian") -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior. It must be plain (see `ActorLayout`)."""
        self.layout = ActorLayout.of(spec, network_settings, head=head)
        self._activate = numpy_function(self.layout.body.activation)
        self._layers: list[tuple[FloatArray, FloatArray]] = []
        """Weights `(P, in, out)` and biases `(P, 1, out)`."""
        self._sections: dict[str, FloatArray] = {}
        """Means and deviations of the normalizers, and parameters of the heads: `(P, n)` each."""

    def load(self, weights: Sequence[FloatArray]) -> None:
        """Take copies of the flat weights of `P` policies."""
        sections, self._layers = split(self.layout, np.stack(weights))
        self._sections = {name: part for name, part in sections.items() if not name.endswith((".weight", ".bias"))}

    def act(
        self,
        which: Rows,
        observations: Sequence[NDArray[np.generic]],
        masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
        memory: FloatArray | None,  # noqa: ARG002  (plain actors have none)
        rng: np.random.Generator,
    ) -> Acted:
        """Draw an action for each of `B` agents (`StackedPolicies.act`)."""
        own = {name: values[which] for name, values in self._sections.items()}
        vectors = joined_vectors(observations, own.get("normalizer.mean"), own.get("normalizer.std"))
        return sample(self.layout, self._head(which, vectors), own, masks, rng)

    def _head(self, which: Rows, hidden: FloatArray) -> FloatArray:
        """Return the columns of the head, `(B, H)`, for vectors `(B, O)`."""
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


class NetworkOfOne(Policy, Protocol):
    """A policy whose network can be asked without sampling (`NetworkPolicy`, and in torch)."""

    sections: dict[str, FloatArray]

    def forward(
        self, observations: Sequence[NDArray[np.generic]], memory: FloatArray | None
    ) -> tuple[FloatArray, FloatArray | None]:
        """Return the columns of the head, `(B, H)`, and the memory after the step where there is one."""


class StackedNetworks:
    """Any actors: a network for each policy, which answer one after the other."""

    def __init__(self, make: Callable[[], NetworkOfOne]) -> None:
        """`make` returns a policy without weights."""
        self._make = make
        self._policies = [make()]
        self.layout = self._policies[0].layout
        self.memory_size = self._policies[0].memory_size

    def load(self, weights: Sequence[FloatArray]) -> None:
        """Take copies of the flat weights of `P` policies."""
        self._policies += [self._make() for _ in range(len(weights) - len(self._policies))]
        del self._policies[len(weights) :]
        for policy, flat in zip(self._policies, weights, strict=True):
            policy.load(flat)

    def act(
        self,
        which: Rows,
        observations: Sequence[NDArray[np.generic]],
        masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
        memory: FloatArray | None,
        rng: np.random.Generator,
    ) -> Acted:
        """Draw an action for each of `B` agents (`StackedPolicies.act`)."""
        outputs = np.empty((len(which), self.layout.head_size), np.float32)
        after = np.empty((len(which), self.memory_size), np.float32) if self.memory_size else None
        for policy, rows in rows_of(which):
            seen = [part[rows] for part in observations]
            outputs[rows], state = self._policies[policy].forward(seen, None if memory is None else memory[rows])
            if after is not None and state is not None:
                after[rows] = state
        parameters = {
            own.name: np.stack([policy.sections[own.name] for policy in self._policies])[which]
            for own in self.layout.kind.parameters(self.layout.continuous_size)
        }
        return sample(self.layout, outputs, parameters, masks, rng, memory=after)


def rows_of(which: Rows) -> list[tuple[int, Rows]]:
    """Return each policy of a batch with its rows."""
    return [(int(policy), np.flatnonzero(which == policy)) for policy in np.unique(which)]
