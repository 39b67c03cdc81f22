"""Acting without torch: the policy of a collector, from a flat vector of weights.

numpy, because for the batches of a collector it is as fast as a frozen TorchScript graph and twice as fast as eager
torch (2 x 128 units, one thread, microseconds: 1 row 10 against 14 and 23; 12 rows 16, 20, 30; 64 rows 49, 47, 57;
measured on one core with numpy 2.4 and torch 2.13), and because a collector that needs no torch starts 0.9 s sooner
and is 200 MB smaller. Set `OPENBLAS_NUM_THREADS=1` in a collector's environment.

What is not plain acts with torch (`worker.learning.networks.torch_policy`, chosen by `worker.collectors.acting`) and
shares `sample`. The mathematics is that of `worker.learning.networks.actor` and
`worker.learning.functional.distributions`; a test holds both equal. Randomness comes from the generator that the caller
passes, and from nowhere else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ludus.collector.activations import FloatArray, numpy_function
from ludus.collector.layout import ActorLayout
from ludus.protocol.spec import BehaviorSpec

FORBIDDEN = np.float32(-1e30)
"""The logit of a forbidden choice, as in `worker.learning.functional.distributions`; its probability is exactly 0."""
HALF_LOG_TWO_PI = np.float32(0.9189385332046727)
LOG_TWO = np.float32(0.6931471805599453)
TWO, THREE, FIVE = [np.float32(number) for number in (2.0, 3.0, 5.0)]
LOG_SIGMA_RANGE = np.float32(-20.0), np.float32(2.0)
"""Of squashed actors, as in `worker.learning.networks.actor`."""


@dataclass(frozen=True, slots=True)
class Acted:
    """Actions for `B` agents. Dimensions: `C` continuous columns, `D` branches."""

    continuous_sample: FloatArray
    """`(B, C)`: what the learner is given: as drawn, or after tanh where the actor is squashed."""
    continuous_env: FloatArray
    """`(B, C)`: what the environment gets, within [-1, 1]: `clip(sample, -3, 3) / 3`, or the sample after tanh."""
    discrete: NDArray[np.int32]
    """`(B, D)`: the chosen index of each branch."""
    log_probs: FloatArray
    """`(B, C + D)`: log-probability of each column and each branch, of what the learner is given."""
    memory: FloatArray | None = None
    """`(B, memory_size)`: the memory after the step; None without one."""


@runtime_checkable  # by tests, which check every annotation
class Policy(Protocol):
    """What answers observations with actions. `load` weights before the first `act`."""

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
        what drives the samples of the columns; None draws it.
        """


class ActingPolicy:
    """A plain actor in numpy."""

    memory_size = 0

    def __init__(self, spec: BehaviorSpec, network_settings: Mapping[str, Any], *, squashed: bool = False) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior. It must be plain (see `ActorLayout`)."""
        self.layout = ActorLayout.of(spec, network_settings, squashed=squashed)
        self._activate = numpy_function(self.layout.body.activation)
        self._sections: dict[str, FloatArray] = {}
        self._layers: list[tuple[FloatArray, FloatArray]] = []
        self.flat_size = self.layout.flat_size

    def load(self, flat: FloatArray) -> None:
        """Take a copy of the weights; the buffer may change afterwards."""
        if flat.shape != (self.flat_size,):
            raise ValueError(f"expected {self.flat_size} weights, got an array of shape {flat.shape}")
        flat = np.array(flat, dtype=np.float32)
        sections, start = {}, 0
        for name, shape in self.layout.sections():
            sections[name] = flat[start : start + prod(shape)].reshape(shape)
            start += prod(shape)
        names = [*(f"body.{layer}" for layer in range(self.layout.body.num_layers)), "head"]
        # Transposed copies: a product with a transposed view costs half as much again for a dozen rows.
        self._layers = [
            (np.ascontiguousarray(sections[f"{name}.weight"].T), sections[f"{name}.bias"]) for name in names
        ]
        self._sections = sections

    def act(
        self,
        observations: Sequence[NDArray[np.generic]],
        masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
        memory: FloatArray | None,  # noqa: ARG002  (plain actors have none)
        rng: np.random.Generator,
        noise: FloatArray | None = None,
    ) -> Acted:
        """Draw an action for each of `B` agents (`Policy.act`)."""
        return sample(self.layout, self._head(observations), self._sections.get("log_sigma"), masks, rng, noise)

    def _head(self, observations: Sequence[NDArray[np.generic]]) -> FloatArray:
        """Return the columns of the head, `(B, H)`."""
        joined = observations[0] if len(observations) == 1 else np.concatenate(observations, 1)
        hidden: FloatArray = joined.astype(np.float32, copy=False)
        if self.layout.body.normalize:
            hidden = hidden - self._sections["normalizer.mean"]
            hidden /= self._sections["normalizer.std"]
            hidden = clip(hidden, FIVE)
        return dense(hidden, self._layers, self._activate)


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
    head: FloatArray,
    log_sigma: FloatArray | None,
    masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
    rng: np.random.Generator,
    noise: FloatArray | None = None,
    memory: FloatArray | None = None,
) -> Acted:
    """Draw actions from the columns of an actor's head, `(B, H)`.

    `log_sigma` is `(C,)`, or `(B, C)` where rows have policies of their own; None where squashed.
    """
    columns, start = layout.continuous_size, layout.logits_start
    nothing = head[:, :0]
    if not columns:
        return Acted(nothing, nothing, *_discrete(layout, head, masks, rng), memory)
    if not layout.deterministic and noise is None:
        noise = rng.standard_normal((len(head), columns), np.float32)
    if layout.squashed:
        drawn, log_probs = _squashed(layout, head, noise)
        acted = drawn
    else:
        assert log_sigma is not None
        drawn, log_probs = _gaussian(layout, head[:, :columns], log_sigma, noise)
        acted = clip(drawn, THREE) / THREE
    if not layout.discrete_branches:
        return Acted(drawn, acted, nothing.astype(np.int32), log_probs, memory)
    discrete, branch_log_probs = _discrete(layout, head[:, start:], masks, rng)
    return Acted(drawn, acted, discrete, np.concatenate([log_probs, branch_log_probs], 1), memory)


def _gaussian(
    layout: ActorLayout, mean: FloatArray, log_sigma: FloatArray, noise: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Return samples and the log-probability of each column."""
    if layout.deterministic or noise is None:
        return mean, np.broadcast_to(-log_sigma - HALF_LOG_TWO_PI, mean.shape).astype(np.float32)
    drawn = (mean + np.exp(log_sigma) * noise).astype(np.float32, copy=False)
    return drawn, np.float32(-0.5) * noise * noise - (log_sigma + HALF_LOG_TWO_PI)


def _squashed(layout: ActorLayout, head: FloatArray, noise: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Return samples after tanh and the log-probability of each column: the Gaussian's minus `log(1 - tanh(u)^2)`."""
    columns = layout.continuous_size
    mean = head[:, :columns]
    log_sigma = np.minimum(np.maximum(head[:, columns : 2 * columns], LOG_SIGMA_RANGE[0]), LOG_SIGMA_RANGE[1])
    if layout.deterministic or noise is None:
        noise = np.zeros_like(mean)
    raw = mean + np.exp(log_sigma) * noise
    # log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2 |u|))), which stays exact where tanh is 1 in float32
    log_derivative = TWO * (LOG_TWO - np.abs(raw) - np.log1p(np.exp(-TWO * np.abs(raw))))
    log_probs: FloatArray = np.float32(-0.5) * noise * noise - (log_sigma + HALF_LOG_TWO_PI) - log_derivative
    return np.tanh(raw), log_probs


def _discrete(
    layout: ActorLayout,
    logits: FloatArray,
    masks: NDArray[np.bool_] | NDArray[np.uint8] | None,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the chosen index of each branch and its log-probability."""
    branches = layout.discrete_branches
    chosen = np.empty((len(logits), len(branches)), np.int32)
    log_probs = np.empty((len(logits), len(branches)), np.float32)
    if masks is not None:
        logits = np.where(masks, logits, FORBIDDEN)
    rows = np.arange(len(logits))
    start = 0
    for branch, choices in enumerate(branches):
        part = logits[:, start : start + choices]
        shifted = part - np.maximum.reduce(part, axis=1, keepdims=True)
        rates = np.exp(shifted)
        index = shifted.argmax(1) if layout.deterministic else _race(rates, rng)
        chosen[:, branch] = index
        log_probs[:, branch] = shifted[rows, index] - np.log(np.add.reduce(rates, axis=1))
        start += choices
    return chosen, log_probs


def clip(values: FloatArray, limit: np.float32) -> FloatArray:
    """Limit to `[-limit, limit]`; for a few rows `np.clip` takes twice as long."""
    return np.minimum(np.maximum(values, -limit), limit)


def _race(rates: FloatArray, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw an index for each row, with probabilities in proportion to the rates.

    Arrival times with these rates are exponential, and each index is the first to arrive with its probability. The
    largest `rate / exponential` is the first arrival. A rate of 0 gives 0 there, which never wins against another one.
    """
    index: NDArray[np.intp] = (rates / rng.standard_exponential(rates.shape)).argmax(1)
    return index
