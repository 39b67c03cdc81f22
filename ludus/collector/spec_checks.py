"""Refuses the specs of behaviors that no network handles. Test servers refuse the same ones, without a configuration.

How an observation is treated, as in ML-Agents: rank 1 is a vector; rank 3 a picture (channels, height, width); rank 2
with the properties (VARIABLE_SIZE, NONE) a table of up to so many entities. Any other is refused. A vector, and each
entity, may have no numbers: they are inputs all the same, so that the others keep their places.
"""

from collections.abc import Sequence
from enum import Enum

from ludus.collector.heads import head_of
from ludus.collector.visual_encoders import MINIMUM_SIZES
from ludus.protocol.spec import BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType


class UnsupportedSpec(ValueError):
    """There is no network for the spec of a behavior. `code` is stable, the message has the remedy."""

    def __init__(self, behavior: str, code: str, message: str) -> None:
        super().__init__(f"behavior {behavior!r}: {message}" if behavior else message)
        self.behavior = behavior
        self.code = code


class ObservationKind(Enum):
    """How a network reads an observation."""

    VECTOR = "vector"
    """(size,): joined with the other vectors, and normalised if asked."""
    VISUAL = "visual"
    """(channels, height, width): an encoder of its own; uint8 is scaled to [0, 1]."""
    ENTITIES = "entities"
    """(entities, size): rows in any order, those of zeros only are padding; attention."""
    UNSEEN = "unseen"
    """No input of this network: in a policy, what only its critic sees."""


def check_observations(
    observations: Sequence[ObservationSpec], behavior: str, visual_encoder: str, *, hyper: bool, minimum_size: int = 1
) -> tuple[ObservationKind, ...]:
    """Return how a network reads each observation. Raises `UnsupportedSpec` if none can.

    `hyper` says whether observations that are goals make the weights of a hypernetwork; `minimum_size` is the least
    height and width of a picture for the encoder of a plug-in.
    """
    if not observations:
        raise UnsupportedSpec(behavior, "observations_missing", "announce at least one observation")
    least = MINIMUM_SIZES.get(visual_encoder, minimum_size)
    kinds = tuple(_kind_of(behavior, index, observation) for index, observation in enumerate(observations))
    for index, (observation, kind) in enumerate(zip(observations, kinds, strict=True)):
        if kind is ObservationKind.VISUAL and min(observation.shape[1:]) < least:
            message = f"{_name(index, observation)} has shape {observation.shape}, but the visual encoder "
            fitting = [name for name, size in MINIMUM_SIZES.items() if size <= min(observation.shape[1:])]
            message += f"{visual_encoder!r} needs a height and width of at least {least}; "
            message += f"set vis_encode_type: {fitting[-1]}"
            message += f" (or {', '.join(fitting[:-1])})" if fitting[1:] else ""
            message += ", which fits, or send larger pictures"
            raise UnsupportedSpec(behavior, "observation_too_small", message)
        if kind is ObservationKind.ENTITIES and hyper and is_goal(observation):
            message = f"{_name(index, observation)} is a goal signal of variable length: a hypernetwork "
            message += "takes vectors and pictures only (or set goal_conditioning_type: none)"
            raise UnsupportedSpec(behavior, "goal_signal_unsupported", message)
    return kinds


def check_actions(spec: BehaviorSpec, head: str) -> None:
    """Raise `UnsupportedSpec` if the last layer of this kind can't make the actions of a behavior."""
    branches = spec.actions.discrete_branches
    if spec.actions.continuous_size < 0 or any(branch < 1 for branch in branches):
        raise UnsupportedSpec(spec.name, "actions_invalid", "every discrete branch needs at least one choice")
    if spec.actions.continuous_size + len(branches) == 0:
        message = "announce at least one continuous action or one discrete branch"
        raise UnsupportedSpec(spec.name, "actions_missing", message)
    if spec.actions.continuous_size and head_of(head).continuous is None:
        message = "this trainer learns discrete actions only; announce branches, or take another trainer_type"
        raise UnsupportedSpec(spec.name, "actions_continuous", message)


def is_goal(observation: ObservationSpec) -> bool:
    """Whether the game marks an observation as a goal. One without numbers is none."""
    return observation.type is ObservationType.GOAL_SIGNAL and observation.size > 0


def _name(index: int, observation: ObservationSpec) -> str:
    return f"observation {index}" + (f" ({observation.name!r})" if observation.name else "")


def _kind_of(behavior: str, index: int, observation: ObservationSpec) -> ObservationKind:
    """Return how a network reads an observation; refuse one that none reads."""
    what, shape, properties = _name(index, observation), observation.shape, observation.dimension_properties
    if 0 in shape[:-1] or (not observation.size and len(shape) > 2):
        raise UnsupportedSpec(behavior, "observation_empty", f"{what} has no elements: its shape is {shape}")
    variable = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
    if len(shape) == 2 and properties == variable:
        kind = ObservationKind.ENTITIES
    elif DimensionProperty.VARIABLE_SIZE in properties or len(shape) not in {1, 3}:
        message = f"{what} has shape {shape} and dimension properties {tuple(item.name for item in properties)}; "
        message += "a network reads vectors (one dimension), pictures (channels, height, width) and tables of entities "
        message += "(two dimensions with the properties VARIABLE_SIZE and NONE)"
        raise UnsupportedSpec(behavior, "observation_shape_unsupported", message)
    elif len(shape) == 1:
        kind = ObservationKind.VECTOR
    elif properties[-1:] == (DimensionProperty.NONE,) and properties[0] is not DimensionProperty.NONE:
        message = f"{what} has shape {shape} with the channels last; announce (channels, height, width)"
        raise UnsupportedSpec(behavior, "observation_shape_unsupported", message)
    else:
        kind = ObservationKind.VISUAL
    if kind is not ObservationKind.VISUAL and observation.dtype != "float32":
        message = f"{what} is {observation.dtype}; only pictures may be, announce float32"
        raise UnsupportedSpec(behavior, "observation_dtype_unsupported", message)
    return kind
