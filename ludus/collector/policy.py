"""Acting without torch: the policy of a collector, from a flat vector of weights.

numpy, because for the batches of a collector it is as fast as a frozen TorchScript graph and twice as fast as eager
torch (2 x 128 units, one thread, microseconds: 1 row 10 against 14 and 23; 12 rows 16, 20, 30; 64 rows 49, 47, 57;
measured on one core with numpy 2.4 and torch 2.13), and because a collector that needs no torch starts 0.9 s sooner
and is 200 MB smaller. Set `OPENBLAS_NUM_THREADS=1` in a collector's environment.

On a GPU, other policies than plain ones act with torch (`worker.learning.networks.torch_policy`, chosen by
`worker.collectors.acting`), and share `sample`. How outputs become actions is described in `ludus.collector.heads`; the
distributions are those of `worker.learning.functional`, and a test holds both equal. Randomness comes from the
generator that the caller passes, and from nowhere else.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ludus.collector.acted import Acted as Acted  # noqa: PLC0414  callers find it beside the policies that return it
from ludus.collector.activations import FloatArray, numpy_function
from ludus.collector.heads.head import FORBIDDEN
from ludus.collector.heads.numpy_operations import NUMPY
from ludus.collector.layout import ActorLayout
from ludus.collector.networks.body import Network, sections_of
from ludus.collector.networks.normalizer import joined_vectors
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec


@runtime_checkable  # by tests, which check every annotation
class Policy(Protocol):
    """A policy that answers observations with actions. `load` weights before the first `act`."""

    layout: ActorLayout

    @property
    def flat_size(self) -> int:
        """Number of float32 values that `load` takes."""

    @property
    def memory_size(self) -> int:
        """Width of the memory that `act` takes and returns; 0 without."""

    def load(self, flat: FloatArray) -> None:
        """Take a copy of the weights; the buffer may change afterwards."""

    def act(
        self,
        observations: Sequence[NDArray[np.generic]],
        masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
        memory: FloatArray | None,
        rng: np.random.Generator,
        noise: FloatArray | None = None,
    ) -> Acted:
        """Draw an action for each of `B` agents.

        `observations` are `(B, *shape)` each, in the spec's order. `masks` is `(B, M)`, true (or nonzero) where a
        choice is allowed; None allows all. A forbidden choice is never taken, unless all of its branch are forbidden.
        `memory` is `(B, memory_size)`, that before the step; None is all zeros. `noise` is `(B, C)`, standard normal:
        the noise in the samples of the columns; None draws it.
        """


class ActingPolicy:
    """A plain actor in numpy."""

    memory_size = 0

    def __init__(self, spec: BehaviorSpec, network_settings: NetworkSettings, *, head: str = "gaussian") -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior. It must be plain (see `ActorLayout`)."""
        self.layout = ActorLayout.of(spec, network_settings, head=head)
        self._activate = numpy_function(self.layout.body.activation)
        self._sections: dict[str, FloatArray] = {}
        self._layers: list[tuple[FloatArray, FloatArray]] = []
        self.flat_size = self.layout.flat_size

    def load(self, flat: FloatArray) -> None:
        """Take a copy of the weights; the buffer may change afterwards."""
        if flat.shape != (self.flat_size,):
            raise ValueError(f"expected {self.flat_size} weights, got an array of shape {flat.shape}")
        self._sections, self._layers = split(self.layout, np.array(flat, dtype=np.float32))

    def act(
        self,
        observations: Sequence[NDArray[np.generic]],
        masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
        memory: FloatArray | None,  # noqa: ARG002  (plain actors have none)
        rng: np.random.Generator,
        noise: FloatArray | None = None,
    ) -> Acted:
        """Draw an action for each of `B` agents (`Policy.act`)."""
        return sample(self.layout, self._head(observations), self._sections, masks, rng, noise)

    def _head(self, observations: Sequence[NDArray[np.generic]]) -> FloatArray:
        """Return the columns of the head, `(B, H)`."""
        mean, std = self._sections.get("normalizer.mean"), self._sections.get("normalizer.std")
        return dense(joined_vectors(observations, mean, std), self._layers, self._activate)


class NetworkPolicy:
    """Any other actor in numpy: pictures, entities, memory, goals (`ludus.collector.networks`)."""

    def __init__(self, spec: BehaviorSpec, network_settings: NetworkSettings, *, head: str = "gaussian") -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        self.layout = ActorLayout.of(spec, network_settings, head=head)
        self.flat_size = self.layout.flat_size
        self.memory_size = self.layout.body.memory_size
        self.sections: dict[str, FloatArray] = {}
        """The parts of the weights by name, those of the head among them."""
        self._network: Network | None = None

    def load(self, flat: FloatArray) -> None:
        """Take a copy of the weights; the buffer may change afterwards."""
        if flat.shape != (self.flat_size,):
            raise ValueError(f"expected {self.flat_size} weights, got an array of shape {flat.shape}")
        self.sections = sections_of(self.layout, np.array(flat, dtype=np.float32))
        self._network = Network(self.layout, self.sections)

    def act(
        self,
        observations: Sequence[NDArray[np.generic]],
        masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
        memory: FloatArray | None,
        rng: np.random.Generator,
        noise: FloatArray | None = None,
    ) -> Acted:
        """Draw an action for each of `B` agents (`Policy.act`)."""
        outputs, after = self.forward(observations, memory)
        return sample(self.layout, outputs, self.sections, masks, rng, noise, after)

    def forward(
        self, observations: Sequence[NDArray[np.generic]], memory: FloatArray | None
    ) -> tuple[FloatArray, FloatArray | None]:
        """Return the columns of the head, `(B, H)`, and the memory after the step where there is one."""
        assert self._network is not None, "load weights first"
        return self._network.forward(observations, memory)


def split(layout: ActorLayout, flat: FloatArray) -> tuple[dict[str, FloatArray], list[tuple[FloatArray, FloatArray]]]:
    """Return the parts of a plain actor's flat vector, `(n,)`, by name, and its layers: weights `(in, out)` and biases.

    Of `P` flat vectors, `(P, n)`, each part has a first dimension of `P`.
    """
    sections = sections_of(layout, flat)
    names = [*(f"body.hidden.layers.{layer}" for layer in range(layout.body.num_layers)), "head"]
    # Transposed copies: a product with a transposed view costs half as much again for a dozen rows.
    weights = [np.ascontiguousarray(np.swapaxes(sections[f"{name}.weight"], -2, -1)) for name in names]
    biases = [sections[f"{name}.bias"][..., None, :] for name in names]  # one row, for all rows of a batch
    return sections, list(zip(weights, biases, strict=True))


def dense(
    hidden: FloatArray, layers: Sequence[tuple[FloatArray, FloatArray]], activate: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """Return the head, of one policy for `(B, in)`, or of `U` policies for `(U, N, in)`; no activation behind it."""
    *body, (weight, bias) = layers
    for layer_weight, layer_bias in body:
        hidden = hidden @ layer_weight
        hidden += layer_bias
        hidden = activate(hidden)
    head: FloatArray = hidden @ weight
    head += bias
    return head


def sample(
    layout: ActorLayout,
    outputs: FloatArray,
    parameters: Mapping[str, FloatArray],
    masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
    rng: np.random.Generator,
    noise: FloatArray | None = None,
    memory: FloatArray | None = None,
) -> Acted:
    """Draw actions from the columns of an actor's head, `(B, H)`.

    `parameters` are those of the head by name, `(n,)` each, or `(B, n)` where rows have policies of their own.
    """
    size, head = layout.continuous_size, layout.kind.continuous
    nothing = outputs[:, :0]
    if head is None or not size:
        return Acted(nothing, nothing, *_choose(layout, outputs, parameters, masks, rng), memory)
    mean, log_sigma = head.moments(NUMPY, outputs, parameters, size)
    if layout.deterministic:
        noise = np.zeros_like(mean)
    elif noise is None:
        noise = rng.standard_normal(mean.shape, np.float32)
    drawn = mean + np.exp(log_sigma) * noise
    log_probs = head.log_prob(NUMPY, drawn, log_sigma, noise)
    recorded = head.recorded(NUMPY, drawn)
    action = head.action(NUMPY, recorded)
    if not layout.discrete_branches:
        return Acted(recorded, action, nothing.astype(np.int32), log_probs, memory)
    chosen, branch_log_probs = _choose(layout, outputs[:, layout.logits_start :], parameters, masks, rng)
    return Acted(recorded, action, chosen, np.concatenate([log_probs, branch_log_probs], 1), memory)


def _choose(
    layout: ActorLayout,
    values: FloatArray,
    parameters: Mapping[str, FloatArray],
    masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the chosen index of each branch and its log-probability."""
    branches, head = layout.discrete_branches, layout.kind.discrete
    chosen = np.empty((len(values), len(branches)), np.int32)
    log_probs = np.empty((len(values), len(branches)), np.float32)
    if masks is not None:
        values = np.where(masks, values, np.float32(FORBIDDEN))
    rows = np.arange(len(values))
    start = 0
    for branch, choices in enumerate(branches):
        part = values[:, start : start + choices]
        logits = head.logits(NUMPY, part, parameters)
        shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
        rates = np.exp(shifted)
        index = part.argmax(1) if layout.deterministic else _race(rates, rng)
        chosen[:, branch] = index
        log_probs[:, branch] = shifted[rows, index] - np.log(np.add.reduce(rates, axis=1))
        start += choices
    return chosen, log_probs


def _race(rates: FloatArray, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw an index for each row, with probabilities in proportion to the rates.

    Arrival times with these rates are exponential, and each index is the first to arrive with its probability. The
    largest `rate / exponential` is the first arrival. A rate of 0 gives 0 there, which never wins against another one.
    """
    index: NDArray[np.intp] = (rates / rng.standard_exponential(rates.shape)).argmax(1)
    return index
