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
from ludus.protocol.specs import MAX_NAME_BYTES

CHANNELS_LAST = (
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    DimensionProperty.NONE,
)
"""Dimension properties of images in packages before 3.0."""
CHANNELS_FIRST = (CHANNELS_LAST[2], *CHANNELS_LAST[:2])
PICTURE_DIMENSIONS = 3
"""Channels, height, width."""
BRIGHTEST = 255
"""Of bytes; 1 as a float."""


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
    """Derive a sensor from the first message that has it. Raises `ObservationError`.

    A picture without dimension properties is of an old package, with its channels last, unless the first dimension is
    the smallest.
    """
    shape = arrived = tuple(observation.shape)
    compressed = observation.WhichOneof("observation_data") == "compressed_data"
    try:
        properties = tuple(DimensionProperty(value) for value in observation.dimension_properties)
        kind = ObservationType(observation.observation_type + 1)
    except ValueError as error:
        raise ObservationError(f"it is not known to ML-Agents 1.5.0: {error}") from None
    is_picture = len(shape) == PICTURE_DIMENSIONS
    turned = is_picture and (properties == CHANNELS_LAST or (not properties and shape[2] <= shape[0]))
    if turned:
        shape, properties = (shape[2], *shape[:2]), CHANNELS_FIRST
    if compressed and not is_picture:
        raise ObservationError(f"it is a picture of shape {shape}, not of three dimensions")
    name = observation.name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    spec = ObservationSpec(shape, name, "uint8" if compressed else "float32", kind, properties)
    return Sensor(spec, arrived, turned)


def observation_values(observation: agent.ObservationProto, sensor: Sensor) -> Array:
    """Return the values, of the spec's shape and dtype; pictures as uint8. Raises `ObservationError`.

    Numbers are not checked for being finite. Compression is a setting of each sensor, so that agents of one behavior
    may differ in it. As in ML-Agents, only the shape of a picture must be the first one's; of other observations the
    numbers are counted.
    """
    spec, shape = sensor.spec, tuple(observation.shape)
    if len(sensor.shape) == PICTURE_DIMENSIONS and observation.WhichOneof("observation_data") == "compressed_data":
        if shape != sensor.shape:
            raise ObservationError(f"it has shape {shape}, the first time it had {sensor.shape}")
        channels, height, width = spec.shape
        try:
            mapping = observation.compressed_channel_mapping
            pictures = decode_pictures(observation.compressed_data, (channels, height, width), mapping)
        except PictureError as error:
            raise ObservationError(str(error)) from None
        return pictures if spec.dtype == "uint8" else pictures.astype(np.float32) / np.float32(BRIGHTEST)
    values = np.array(observation.float_data.data, np.float32)
    if shape != sensor.shape and (len(values) != spec.size or len(sensor.shape) == PICTURE_DIMENSIONS):
        raise ObservationError(f"it has shape {shape}, the first time it had {sensor.shape}")
    if len(values) != spec.size:
        raise ObservationError(f"it has {len(values)} numbers, its shape {shape} needs {spec.size}")
    values = values.reshape(sensor.shape)
    if sensor.turned:
        values = values.transpose(2, 0, 1)
    if spec.dtype == "float32":
        return values
    if not ((values >= 0) & (values <= 1)).all():
        raise ObservationError("it has numbers beyond 0 to 1, and was a compressed picture the first time")
    return np.rint(values * BRIGHTEST).astype(np.uint8)


def action_spec(brain: agent.BrainParametersProto) -> ActionSpec:
    """Read the actions; from the deprecated fields if there are no others. Branches count as they have sizes."""
    actions = brain.action_spec
    if actions.num_continuous_actions or actions.num_discrete_actions:
        return ActionSpec(actions.num_continuous_actions, tuple(actions.discrete_branch_sizes))
    sizes = tuple(brain.vector_action_size_deprecated)
    if brain.vector_action_space_type_deprecated == agent.continuous:
        return ActionSpec(sizes[0] if sizes else 0)
    return ActionSpec(0, sizes)
