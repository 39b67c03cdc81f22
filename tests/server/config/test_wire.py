"""What a configuration accepts, the wire can carry: every name and number in it that games receive."""

from dataclasses import fields
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ludus.protocol.codec import samplers_from_messages, samplers_to_messages
from ludus.protocol.environment_parameters import Constant
from ludus.protocol.side_channels import EngineConfiguration, engine_configuration, environment_parameter, join, split
from ludus.protocol.specs import is_name
from server.config.resolution import resolve
from server.kit.errors import InvalidConfig

NUMBERS = st.floats() | st.integers() | st.sampled_from([3.4e38, 3.5e38, -1e39, 1e-50, 2**31, -(2**31), 2**63])
NAMES = st.text(max_size=12) | st.sampled_from(["höhe", "wall height", "a\nb", "a\0b", "x" * 170, "x" * 171, "猫" * 60])
SAMPLERS = st.one_of(
    NUMBERS,
    st.builds(
        lambda kind, parameters: {"sampler_type": kind, "sampler_parameters": parameters},
        st.sampled_from(["constant", "uniform", "gaussian", "multirangeuniform"]),
        st.dictionaries(
            st.sampled_from(["value", "min_value", "max_value", "mean", "st_dev", "seed"]), NUMBERS, max_size=3
        )
        | st.builds(lambda low, high: {"intervals": [[low, high]]}, NUMBERS, NUMBERS),
    ),
)
ENGINE = [field.name for field in fields(EngineConfiguration)]


@given(NAMES, SAMPLERS, st.integers(0, 2**31 - 1))
@example("höhe", 3.0, 1)
@example("size", 3.4e38, 2**31 - 1)
def test_environment_parameters_that_are_accepted_reach_every_game(name: str, value: Any, seed: int) -> None:
    try:
        config = resolve({"behaviors": {"A": {}}, "environment_parameters": {name: value}})
    except InvalidConfig:
        return
    (parameter,) = config.samplers(seed).values()

    (frame,) = split(join([environment_parameter(name, parameter)]))
    assert name.encode("ascii") in frame.payload
    received = samplers_from_messages(samplers_to_messages({name: parameter}))
    assert (name in received) is not isinstance(parameter, Constant)
    assert "inf" not in str(received)


@given(st.dictionaries(st.sampled_from(ENGINE), NUMBERS, min_size=1))
def test_engine_settings_that_are_accepted_reach_every_build(settings: dict[str, Any]) -> None:
    try:
        config = resolve({"behaviors": {"A": {}}, "engine_settings": settings})
    except InvalidConfig:
        return

    given = config.engine_settings.model_dump(include=set(ENGINE))
    assert len(engine_configuration(EngineConfiguration(**given))) == len(ENGINE) - 1


@given(st.text(max_size=120) | NAMES)
@example("猫" * 60)
def test_a_behavior_that_is_accepted_can_be_announced_by_a_game_with_any_team(name: str) -> None:
    try:
        resolve({"behaviors": {name: {}}})
    except InvalidConfig:
        return

    assert is_name(f"{name}?team=2147483647")
