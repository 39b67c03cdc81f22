"""The side channels that a collector writes."""

from collections.abc import Mapping

from ludus.collector.settings import CollectorSettings
from ludus.protocol import side_channels
from ludus.protocol.environment_parameters import ParameterValue


def opening_frames(settings: CollectorSettings) -> bytes:
    """Return what goes with the first reset, in ML-Agents' order: environment parameters, engine configuration."""
    return parameter_frames(settings.environment_parameters) + side_channels.join(
        side_channels.engine_configuration(settings.engine)
    )


def parameter_frames(parameters: Mapping[str, ParameterValue]) -> bytes:
    """Return the frames of environment parameters."""
    return side_channels.join(side_channels.environment_parameter(key, value) for key, value in parameters.items())
