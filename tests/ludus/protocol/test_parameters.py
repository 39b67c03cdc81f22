"""Samplers travel as they are; what a client does not know, it leaves alone."""

import pytest

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, ParameterValue, Uniform
from ludus.protocol.parameters import samplers_from_messages, samplers_to_messages


@pytest.mark.parametrize(
    "value",
    [
        Uniform(-1.5, 2.0, seed=2**31 - 1),
        Gaussian(1.0, -0.5, seed=-(2**31)),
        MultiRangeUniform(((0.0, 1.0), (3.0, 3.0)), seed=0),
    ],
)
def test_samplers_come_back_as_they_were(value: ParameterValue) -> None:
    messages = samplers_to_messages({"p": value})
    sent = {name: pb.Sampler.FromString(message.SerializeToString()) for name, message in messages.items()}

    assert samplers_from_messages(sent) == {"p": value}


def test_constants_have_no_sampler() -> None:
    assert samplers_to_messages({"p": Constant(1.0)}) == {}


@pytest.mark.parametrize(
    "message",
    [pb.Sampler(seed=1), pb.Sampler(seed=1, multi_range_uniform=pb.MultiRangeUniformDistribution(min_values=[1.0]))],
)
def test_a_distribution_that_cannot_be_read_is_left_out(message: pb.Sampler) -> None:
    assert samplers_from_messages({"p": message}) == {}
