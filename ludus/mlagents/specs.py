"""Behavior specs from ML-Agents' messages, of players and of recordings.

Packages before 3.0 send images as (height, width, channels); they are turned, so that networks see one order. The
oldest of them do not describe their dimensions. Packages before hybrid actions announce only deprecated fields.
"""

from typing import NamedTuple

import numpy as np

from ludus.mlagents.pictures import PictureError, decode_pictures
from ludus.protocol.batches import Array
from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.spec import ActionSpec, DimensionProperty, ObservationSpec, ObservationType

CHANNELS_LAST = (
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    DimensionProperty.NONE,
)
"""Dimension properties of images in packages before 3.0."""
CHANNELS_FIRST = (CHANNELS_LAST[2], *CHANNELS_LAST[:2])


class ObservationError(ValueError):
    """An observation's message is invalid. The message is a phrase that begins with "it"."""


class Sensor(NamedTuple):
    """One observation, and how it arrives."""

    spec: ObservationSpec
    """The observation for networks: images as (channels, height, width)."""
    shape: tuple[int, ...]
    """As the messages give it."""
    turned: bool
    """Whether an image arrives as (height, width, channels)."""


def sensor(observation: agent.ObservationProto) -> Sensor:
    """Derive a sensor from the first message that has it. Raises `ObservationError`."""
    shape = arrived = tuple(observation.shape)
    compressed = observation.WhichOneof("observation_data") == "compressed_data"
    try:
        properties = tuple(DimensionProperty(value) for value in observation.dimension_properties)
        kind = ObservationType(observation.observation_type + 1)
    except ValueError as error:
        raise ObservationError(f"it is not known to ML-Agents 1.5.0: {error}") from None
    turned = len(shape) == 3 and properties in {CHANNELS_LAST, ()}
    if turned:
        shape, properties = (shape[2], *shape[:2]), CHANNELS_FIRST
    if compressed and len(shape) != 3:
        raise ObservationError(f"it is a picture of shape {shape}, not of three dimensions")
    spec = ObservationSpec(shape, observation.name, "uint8" if compressed else "float32", kind, properties)
    return Sensor(spec, arrived, turned)


def observation_values(observation: agent.ObservationProto, sensor: Sensor) -> Array:
    """Return the values, of the spec's shape and dtype; pictures as uint8. Raises `ObservationError`.

    Numbers are not checked for being finite.
    """
    shape = tuple(observation.shape)
    spec = sensor.spec
    if shape != sensor.shape:
        raise ObservationError(f"it has shape {shape}, the first time it had {sensor.shape}")
    match observation.WhichOneof("observation_data"):
        case "compressed_data" if spec.dtype == "uint8":
            channels, height, width = spec.shape
            mapping = list(observation.compressed_channel_mapping)
            try:
                return decode_pictures(observation.compressed_data, (channels, height, width), mapping)
            except PictureError as error:
                raise ObservationError(str(error)) from None
        case "float_data" if spec.dtype == "float32":
            values = np.array(observation.float_data.data, np.float32)
        case other:
            raise ObservationError(f"its data are {other or 'missing'}, the first time they were not")
    if len(values) != spec.size:
        raise ObservationError(f"it has {len(values)} numbers, its shape {shape} needs {spec.size}")
    values = values.reshape(shape)
    return values.transpose(2, 0, 1) if sensor.turned else values


def action_spec(brain: agent.BrainParametersProto) -> ActionSpec:
    """Read the actions; from the deprecated fields if there are no others. Raises ValueError."""
    actions = brain.action_spec
    if actions.num_continuous_actions or actions.num_discrete_actions:
        sizes = tuple(actions.discrete_branch_sizes)
        if len(sizes) != actions.num_discrete_actions:
            raise ValueError(f"{actions.num_discrete_actions} branches are announced, {len(sizes)} have a size")
        return ActionSpec(actions.num_continuous_actions, sizes)
    sizes = tuple(brain.vector_action_size_deprecated)
    if brain.vector_action_space_type_deprecated == agent.continuous:
        return ActionSpec(sizes[0] if sizes else 0)
    return ActionSpec(0, sizes)
