"""Samplers of environment parameters <-> `ludus.v1.Sampler`."""

from collections.abc import Mapping
from typing import assert_never

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, ParameterValue, Uniform


def samplers_to_messages(values: Mapping[str, ParameterValue]) -> dict[str, pb.Sampler]:
    """Return a message for each parameter that is not constant."""
    return {name: _to_message(value) for name, value in values.items() if not isinstance(value, Constant)}


def samplers_from_messages(messages: Mapping[str, pb.Sampler]) -> dict[str, ParameterValue]:
    """Read the samplers of a message. Distributions that are not known here are left out: their value stays."""
    values = {name: _from_message(message) for name, message in messages.items()}
    return {name: value for name, value in values.items() if value is not None}


def _to_message(value: Uniform | Gaussian | MultiRangeUniform) -> pb.Sampler:
    match value:
        case Uniform():
            uniform = pb.UniformDistribution(min_value=value.minimum, max_value=value.maximum)
            return pb.Sampler(seed=value.seed, uniform=uniform)
        case Gaussian():
            return pb.Sampler(seed=value.seed, gaussian=pb.GaussianDistribution(mean=value.mean, st_dev=value.st_dev))
        case MultiRangeUniform():
            low, high = zip(*value.intervals, strict=True)
            several = pb.MultiRangeUniformDistribution(min_values=low, max_values=high)
            return pb.Sampler(seed=value.seed, multi_range_uniform=several)
        case _:
            assert_never(value)


def _from_message(message: pb.Sampler) -> ParameterValue | None:
    match message.WhichOneof("distribution"):
        case "uniform":
            return Uniform(message.uniform.min_value, message.uniform.max_value, message.seed)
        case "gaussian":
            return Gaussian(message.gaussian.mean, message.gaussian.st_dev, message.seed)
        case "multi_range_uniform":
            several = message.multi_range_uniform
            intervals = tuple(zip(several.min_values, several.max_values, strict=False))
            return MultiRangeUniform(intervals, message.seed) if intervals else None
        case _:
            return None
