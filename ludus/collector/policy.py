"""Acting without torch: the policies of a collector, from flat vectors of weights.

Actors that see vectors alone (`ActorLayout.dense`) act in numpy, with or without a memory: for the batches of a
collector their layers are so small that no other runtime takes less time. All others act with ONNX Runtime, by a graph
that the learner exports (`worker.onnx.graph.acting_graph`). On a GPU actors that are not plain act with torch
(`worker.learning.networks.torch_policy`, chosen by `worker.collectors.acting`). docs/adr/0012-acting-in-numpy.md has
the figures.

All share `sample`. How columns become actions is described in `ludus.collector.heads`; the distributions are those of
`worker.learning.functional`, and a test holds both equal. Randomness comes from the generator that the caller passes,
and from nowhere else. Set `OPENBLAS_NUM_THREADS=1` in a collector's environment.

Dimensions: `B` rows, `C` continuous columns, `M` choices, `H` columns of the head. Of several policies: `P` policies,
`U` of them in a batch, `N` rows of the largest group.
"""

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ludus.collector.acted import Acted
from ludus.collector.activations import HALF, FloatArray, numpy_function
from ludus.collector.heads import FORBIDDEN, NUMPY
from ludus.collector.hidden_layers import Layers, dense, hidden_layers, linear
from ludus.collector.layout import NORMALIZED_LIMIT, ActorLayout, NetworkGraph, split
from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec

Observations = Sequence[NDArray[np.generic]]
Masks = NDArray[np.bool_] | NDArray[np.uint8] | None
Rows = NDArray[np.intp]
EXTRA: Final = "play"
"""The extra of this package that has ONNX Runtime."""


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
        observations: Observations,
        masks: Masks,
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


class Network(ABC):
    """A policy whose network can be asked without sampling."""

    layout: ActorLayout
    flat_size: int
    memory_size: int
    parameters: dict[str, FloatArray]
    """Those of the head, at least, by name."""

    @abstractmethod
    def load(self, flat: FloatArray) -> None:
        """Take a copy of the weights; the buffer may change afterwards."""

    @abstractmethod
    def forward(self, observations: Observations, memory: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        """Return the columns of the head, `(B, H)`, and the memory after the step where there is one."""

    def act(
        self,
        observations: Observations,
        masks: Masks,
        memory: FloatArray | None,
        rng: np.random.Generator,
        noise: FloatArray | None = None,
    ) -> Acted:
        """Draw an action for each of `B` agents (`Policy.act`)."""
        columns, after = self.forward(observations, memory)
        return sample(self.layout, columns, self.parameters, masks, rng, noise, after)


class ActingPolicy(Network):
    """An actor that sees vectors alone, in numpy."""

    def __init__(self, spec: BehaviorSpec, network_settings: NetworkSettings, *, head: str = "gaussian") -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior. It must be `ActorLayout.dense`."""
        self.layout = ActorLayout.of(spec, network_settings, head=head)
        self.flat_size = self.layout.flat_size
        self.memory_size = self.layout.memory_size
        self.parameters = {}
        self._seen = self.layout.body.seen
        self._hidden: Callable[[FloatArray], FloatArray]
        self._head: Layers = []
        self._memory: Memory | None = None

    def load(self, flat: FloatArray) -> None:
        """Take a copy of the weights; the buffer may change afterwards."""
        check_size(flat, self.flat_size)
        self.parameters = split(self.layout.sections(), np.array(flat, dtype=np.float32))
        self._hidden = hidden_layers(self.layout.body, self.parameters)
        self._head = [linear(self.parameters, "head")]
        self._memory = Memory(self.parameters) if self.memory_size else None

    def forward(self, observations: Observations, memory: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        """Return the columns of the head, `(B, H)`, and the memory after the step where there is one."""
        mean, std = self.parameters.get("normalizer.mean"), self.parameters.get("normalizer.std")
        vectors = joined_vectors([observations[index] for index in self._seen], mean, std)
        features, after = self._hidden(vectors), None
        if self._memory is not None:
            features, after = self._memory(features, memory)
        return dense(features, self._head), after


class Memory:
    """One step of an LSTM (Hochreiter & Schmidhuber 1997). The state is `[h | c]`, `U` values each.

    Gates lie in torch's order: input, forget, cell, output. A sigmoid is `(1 + tanh(x / 2)) / 2`, so the weights of the
    three gates that have one are halved when they are loaded, and one tanh answers all four.
    """

    CELL = 2
    """Place of the gate that is a tanh itself."""

    def __init__(self, sections: Mapping[str, FloatArray]) -> None:
        inputs, hidden = sections["body.memory.input_weight"], sections["body.memory.hidden_weight"]
        self._units = units = hidden.shape[1]
        scale = np.full(4 * units, HALF)
        scale[self.CELL * units : (self.CELL + 1) * units] = 1.0
        weight = np.concatenate([inputs, hidden], 1).T.copy()  # (in + U, 4 U)
        self._weight: FloatArray = weight * scale  # by powers of two: exact
        self._bias: FloatArray = (sections["body.memory.input_bias"] + sections["body.memory.hidden_bias"]) * scale

    def __call__(self, inputs: FloatArray, state: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return `h` after the step, `(B, U)`, and the whole state, `(B, 2 U)`. `state` None is all zeros."""
        units = self._units
        if state is None:
            state = np.zeros((len(inputs), 2 * units), np.float32)
        gates = np.concatenate([inputs, state[:, :units]], 1) @ self._weight
        gates += self._bias
        np.tanh(gates, out=gates)
        entering, forgetting, candidate, leaving = (gates[:, gate * units : (gate + 1) * units] for gate in range(4))
        after = np.empty((len(inputs), 2 * units), np.float32)
        hidden, cell = after[:, :units], after[:, units:]
        for half in (entering, forgetting, leaving):
            np.multiply(half, HALF, out=half)
            np.add(half, HALF, out=half)
        np.multiply(forgetting, state[:, units:], out=cell)
        entering *= candidate
        cell += entering
        np.tanh(cell, out=hidden)
        hidden *= leaving
        return np.ascontiguousarray(hidden), after


class NetworkPolicy(Network):
    """Any other actor, as one of pictures, entities or goals, by ONNX Runtime.

    Each version of the weights is a session of its own. It takes some milliseconds to make, in which ONNX Runtime lays
    the kernels of convolutions out as the processor likes them: that halves the time of every later batch.
    """

    def __init__(
        self, spec: BehaviorSpec, network_settings: NetworkSettings, graph: NetworkGraph, *, head: str = "gaussian"
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior, or no ONNX Runtime."""
        self.layout = ActorLayout.of(spec, network_settings, head=head)
        self.flat_size = graph.weights_size
        self.memory_size = self.layout.body.memory_size
        self.parameters = {}
        self._seen = self.layout.body.seen
        self._graph = base64.b64decode(graph.model)
        try:
            # On game machines it is installed for such behaviors alone.
            import onnxruntime  # noqa: PLC0415
        except ImportError:
            message = f"its network acts with ONNX Runtime, which is not installed here: pip install 'ludus[{EXTRA}]'"
            raise UnsupportedSpec(spec.name, "onnxruntime_missing", message) from None
        self._runtime = onnxruntime
        self._inputs: list[str] = []
        self._run: Callable[[None, Mapping[str, NDArray[np.generic]]], list[FloatArray]]

    def load(self, flat: FloatArray) -> None:
        """Take a copy of the weights; the buffer may change afterwards."""
        check_size(flat, self.flat_size)
        sections = list(self.layout.head_sections())
        size = sum(size for _, (size,) in sections)
        self.parameters = split(sections, np.array(flat[self.flat_size - size :], np.float32))
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        weights = flat.tobytes()  # to which the graph refers by offsets; the session copies what it needs
        options.add_external_initializers_from_files_in_memory([NetworkGraph.WEIGHTS], [weights], [len(weights)])
        session = self._runtime.InferenceSession(self._graph, options, providers=["CPUExecutionProvider"])
        self._inputs, self._run = [entry.name for entry in session.get_inputs()], session.run

    def forward(self, observations: Observations, memory: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        """Return the columns of the head, `(B, H)`, and the memory after the step where there is one."""
        rows = len(observations[0])
        if memory is None:
            memory = np.zeros((rows, self.memory_size), np.float32)
        if not rows:  # some kernels of ONNX Runtime abort the process
            return np.zeros((0, self.layout.head_size), np.float32), memory if self.memory_size else None
        seen = [observations[index] for index in self._seen]
        if not self.memory_size:
            return self._run(None, dict(zip(self._inputs, seen, strict=True)))[0], None
        columns, after = self._run(None, dict(zip(self._inputs, (*seen, memory[:, None]), strict=True)))
        return columns, after[:, 0]


@runtime_checkable
class StackedPolicies(Protocol):
    """Several policies of one shape at once: each row of a batch is answered by the weights that it names."""

    @property
    def memory_size(self) -> int:
        """Width of the memory that `act` takes and returns; 0 without."""

    def load(self, weights: Sequence[FloatArray]) -> None:
        """Take the flat weights of `P` policies, in place of those that were there. They never change afterwards."""

    def act(
        self,
        which: Rows,
        observations: Observations,
        masks: Masks,
        memory: FloatArray | None,
        rng: np.random.Generator,
    ) -> Acted:
        """Draw an action for each row; `which` `(B,)` names the policy of each, all else is as for one policy."""


class StackedActing:
    """Plain actors in numpy.

    The weights of all policies lie in one array per layer, `(P, in, out)`. Rows are sorted by policy into groups of
    equal length, padded with zeros, so that a layer is one batched product for all policies; a batch of one policy is a
    plain product.
    """

    memory_size = 0

    def __init__(self, spec: BehaviorSpec, network_settings: NetworkSettings, *, head: str = "gaussian") -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior. It must be plain (see `ActorLayout`)."""
        self.layout = ActorLayout.of(spec, network_settings, head=head)
        self._activate = numpy_function(self.layout.body.activation)
        self._seen = self.layout.body.seen
        self._layers: Layers = []
        self._sections: dict[str, FloatArray] = {}
        """Means and deviations of the normalizers, and parameters of the heads: `(P, n)` each."""

    def load(self, weights: Sequence[FloatArray]) -> None:
        """Take copies of the flat weights of `P` policies."""
        sections = split(self.layout.sections(), np.stack(weights))
        names = [*(f"body.hidden.layers.{layer}" for layer in range(self.layout.body.num_layers)), "head"]
        self._layers = [linear(sections, name) for name in names]
        self._sections = {name: part for name, part in sections.items() if not name.endswith((".weight", ".bias"))}

    def act(
        self,
        which: Rows,
        observations: Observations,
        masks: Masks,
        memory: FloatArray | None,  # noqa: ARG002  (plain actors have none)
        rng: np.random.Generator,
    ) -> Acted:
        """Draw an action for each of `B` agents (`StackedPolicies.act`)."""
        sections = {name: values[which] for name, values in self._sections.items()}
        seen = [observations[index] for index in self._seen]
        vectors = joined_vectors(seen, sections.get("normalizer.mean"), sections.get("normalizer.std"))
        return sample(self.layout, self._head(which, vectors), sections, masks, rng)

    def _head(self, which: Rows, hidden: FloatArray) -> FloatArray:
        """Return the columns of the head, `(B, H)`, for vectors `(B, O)`."""
        counts = np.bincount(which, minlength=len(self._layers[0][0]))
        used = np.flatnonzero(counts)
        if len(used) == 1:
            *body, head = [(weight[used[0]], bias[used[0]]) for weight, bias in self._layers]
            return dense(dense(hidden, body, self._activate), [head])
        *body, head = self._layers
        if len(used) < len(counts):
            *body, head = [(weight[used], bias[used]) for weight, bias in self._layers]
        order = np.argsort(which, kind="stable")
        group = np.empty_like(counts)
        group[used] = np.arange(len(used))
        place = np.empty_like(order)
        place[order] = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        padded = np.zeros((len(used), int(counts.max()), hidden.shape[1]), np.float32)
        rows = group[which], place
        padded[rows] = hidden
        return dense(dense(padded, body, self._activate), [head])[rows]


class StackedNetworks:
    """Any actors: a network for each policy, which answer one after the other.

    Convolutions and an LSTM of other weights for each row can't be had as one operation that is any faster on a CPU.
    """

    def __init__(self, make: Callable[[], Network]) -> None:
        """`make` returns a policy without weights."""
        self._make = make
        self._policies: list[tuple[FloatArray, Network]] = []
        """With the weights that they have."""
        unloaded = make()
        self.layout, self.memory_size = unloaded.layout, unloaded.memory_size

    def load(self, weights: Sequence[FloatArray]) -> None:
        """Take the flat weights of `P` policies. A network whose weights are among them stays as it is."""
        loaded = {id(flat): network for flat, network in self._policies}
        self._policies = []
        for flat in weights:
            network = loaded.get(id(flat))
            if network is None:
                network = self._make()
                network.load(flat)
            self._policies.append((flat, network))

    def act(
        self,
        which: Rows,
        observations: Observations,
        masks: Masks,
        memory: FloatArray | None,
        rng: np.random.Generator,
    ) -> Acted:
        """Draw an action for each of `B` agents (`StackedPolicies.act`)."""
        columns = np.empty((len(which), self.layout.head_size), np.float32)
        after = np.empty((len(which), self.memory_size), np.float32) if self.memory_size else None
        for policy in np.unique(which).tolist():
            rows = np.flatnonzero(which == policy)
            network, before = self._policies[policy][1], None if memory is None else memory[rows]
            columns[rows], state = network.forward([part[rows] for part in observations], before)
            if after is not None and state is not None:
                after[rows] = state
        parameters = {
            name: np.stack([network.parameters[name] for _, network in self._policies])[which]
            for name, _ in self.layout.head_sections()
        }
        return sample(self.layout, columns, parameters, masks, rng, memory=after)


class PolicyFactory:
    """Makes policies without weights.

    `head` is the kind of the last layer (`ludus.collector.heads`). `graph` is that of an actor that is not dense.
    `device` is where torch computes; without torch it is the CPU. Both methods raise `UnsupportedSpec` where
    there is no network for the behavior.
    """

    def policy(
        self,
        spec: BehaviorSpec,
        network_settings: NetworkSettings,
        head: str = "gaussian",
        device: str = "cpu",
        graph: NetworkGraph | None = None,
    ) -> Network:
        """Make the policy of a behavior."""
        del device
        if ActorLayout.of(spec, network_settings, head=head).dense:
            return ActingPolicy(spec, network_settings, head=head)
        assert graph is not None, "the learner exports the graph of a network that acts with ONNX Runtime"
        return NetworkPolicy(spec, network_settings, graph, head=head)

    def stacked(
        self,
        spec: BehaviorSpec,
        network_settings: NetworkSettings,
        head: str = "gaussian",
        device: str = "cpu",
        graph: NetworkGraph | None = None,
    ) -> StackedPolicies:
        """Make several policies of one behavior, which answer a batch together."""
        if ActorLayout.of(spec, network_settings, head=head).plain:
            return StackedActing(spec, network_settings, head=head)
        return StackedNetworks(partial(self.policy, spec, network_settings, head, device, graph))


def check_size(flat: FloatArray, size: int) -> None:
    """Raise `ValueError` unless a flat vector has this size."""
    if flat.shape != (size,):
        raise ValueError(f"expected {size} weights, got an array of shape {flat.shape}")


def joined_vectors(observations: Observations, mean: FloatArray | None, std: FloatArray | None) -> FloatArray:
    """Return vector observations side by side, `(B, O)`; normalised where there is a `mean`, `(O,)` or `(B, O)`."""
    joined = observations[0] if len(observations) == 1 else np.concatenate(observations, 1)
    vectors: FloatArray = joined.astype(np.float32, copy=False)
    if mean is not None and std is not None:
        vectors = vectors - mean
        vectors /= std
        vectors = NUMPY.clip(vectors, -NORMALIZED_LIMIT, NORMALIZED_LIMIT)
    return vectors


def sample(
    layout: ActorLayout,
    outputs: FloatArray,
    parameters: Mapping[str, FloatArray],
    masks: Masks,
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
    masks: Masks,
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
        # Arrival times with these rates are exponential, and each index is the first to arrive, which has the largest
        # `rate / exponential`, with its probability. A rate of 0 gives 0 there, which never wins against another one.
        index = (part if layout.deterministic else rates / rng.standard_exponential(rates.shape)).argmax(1)
        chosen[:, branch] = index
        log_probs[:, branch] = shifted[rows, index] - np.log(np.add.reduce(rates, axis=1))
        start += choices
    return chosen, log_probs
