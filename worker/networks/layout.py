"""Which networks a behavior gets, and how the actor's weights lie in one flat vector. Needs no torch.

The learner writes the vector (`worker.networks.actor`), collectors read it (`worker.networks.policy`): both follow
`ActorLayout.sections`, so neither knows more about the other than this order:

    normalizer mean (O), normalizer standard deviation (O)      only with `normalize`
    for each hidden layer: weight (out, in), bias (out)
    head weight (C + M, hidden), head bias (C + M)              means of the continuous columns, then all logits
    log_sigma (C)                                               only with continuous columns

Dimensions: `O` elements of all observations together, `C` continuous columns, `M` choices of all branches together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ludus.spec import BehaviorSpec, ObservationSpec, ObservationType


class UnsupportedSpec(ValueError):
    """No network is there yet for what a behavior announces. `code` is stable, the message says what to change."""

    def __init__(self, behavior: str, code: str, message: str) -> None:
        super().__init__(f"behavior {behavior!r}: {message}")
        self.behavior = behavior
        self.code = code


@dataclass(frozen=True, slots=True)
class ActorLayout:
    """The shape of an actor: everything that is needed to build one and to read its flat weights."""

    observation_sizes: tuple[int, ...]
    """Elements of each (vector) observation; the network sees them concatenated in the spec's order."""
    hidden_units: int
    num_layers: int
    """Hidden layers; at least one is built (ML-Agents' `LinearEncoder`)."""
    activation: str
    """Of the hidden layers: `swish`, `tanh` or `relu`."""
    continuous_size: int
    discrete_branches: tuple[int, ...]
    normalize: bool
    deterministic: bool
    """Act with the mean and the most likely choice instead of sampling."""

    @classmethod
    def of(cls, spec: BehaviorSpec, network_settings: Mapping[str, Any]) -> "ActorLayout":
        """Derive the shape from a spec and stored `network_settings`; raise `UnsupportedSpec` with the reason."""
        _check_supported(spec, network_settings)
        return cls(
            observation_sizes=tuple(observation.size for observation in spec.observations),
            hidden_units=int(network_settings.get("hidden_units", 128)),
            num_layers=max(int(network_settings.get("num_layers", 2)), 1),
            activation=str(network_settings.get("activation", "swish")),
            continuous_size=spec.actions.continuous_size,
            discrete_branches=spec.actions.discrete_branches,
            normalize=bool(network_settings.get("normalize", False)),
            deterministic=bool(network_settings.get("deterministic", False)),
        )

    @property
    def observation_size(self) -> int:
        """`O`."""
        return sum(self.observation_sizes)

    @property
    def head_size(self) -> int:
        """`C + M`, the columns of the actor's head."""
        return self.continuous_size + sum(self.discrete_branches)

    @property
    def log_prob_size(self) -> int:
        """`C + D`, one log-probability for each continuous column and each branch."""
        return self.continuous_size + len(self.discrete_branches)

    def sections(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and shape of each part of the flat vector, in order."""
        if self.normalize:
            yield "normalizer.mean", (self.observation_size,)
            yield "normalizer.std", (self.observation_size,)
        width = self.observation_size
        for layer in range(self.num_layers):
            yield f"body.{layer}.weight", (self.hidden_units, width)
            yield f"body.{layer}.bias", (self.hidden_units,)
            width = self.hidden_units
        yield "head.weight", (self.head_size, width)
        yield "head.bias", (self.head_size,)
        if self.continuous_size:
            yield "log_sigma", (self.continuous_size,)

    @property
    def flat_size(self) -> int:
        """Number of float32 values in the flat vector."""
        return sum(prod(shape) for _, shape in self.sections())


def _check_supported(spec: BehaviorSpec, network_settings: Mapping[str, Any]) -> None:
    """Refuse what no network of this version handles, with a code for each reason."""
    if not spec.observations:
        raise UnsupportedSpec(spec.name, "observations_missing", "announce at least one observation")
    for index, observation in enumerate(spec.observations):
        _check_observation(spec.name, index, observation, network_settings)
    branches = spec.actions.discrete_branches
    if spec.actions.continuous_size < 0 or any(branch < 1 for branch in branches):
        raise UnsupportedSpec(spec.name, "actions_invalid", "every discrete branch needs at least one choice")
    if spec.actions.continuous_size + len(branches) == 0:
        message = "announce at least one continuous action or one discrete branch"
        raise UnsupportedSpec(spec.name, "actions_missing", message)
    if network_settings.get("memory") is not None:
        message = "recurrent networks are not supported yet: remove network_settings.memory"
        raise UnsupportedSpec(spec.name, "memory_unsupported", message)


def _check_observation(behavior: str, index: int, observation: ObservationSpec, settings: Mapping[str, Any]) -> None:
    """Refuse all but float32 vectors."""
    what = f"observation {index}" + (f" ({observation.name!r})" if observation.name else "")
    if len(observation.shape) != 1:
        message = f"{what} has shape {observation.shape}; only vectors (one dimension) are supported yet"
        raise UnsupportedSpec(behavior, "observation_shape_unsupported", message)
    if observation.size < 1:
        raise UnsupportedSpec(behavior, "observation_empty", f"{what} has no elements")
    if observation.dtype != "float32":
        message = f"{what} is {observation.dtype}; only float32 vectors are supported yet"
        raise UnsupportedSpec(behavior, "observation_dtype_unsupported", message)
    if observation.type is ObservationType.GOAL_SIGNAL and settings.get("goal_conditioning_type") != "none":
        message = f"{what} is a goal signal; goal conditioning is not supported yet, announce a default observation"
        raise UnsupportedSpec(behavior, "goal_signal_unsupported", message)
