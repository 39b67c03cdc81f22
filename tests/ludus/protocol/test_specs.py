"""Specs of behaviors travel whole, and malformed ones are refused with the problem."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from ludus.protocol.specs import spec_from_message, spec_to_message

HYBRID = BehaviorSpec(
    "Hunter",
    (ObservationSpec((3,), "position"), ObservationSpec((1, 2, 2), "camera", "uint8")),
    ActionSpec(continuous_size=2, discrete_branches=(3, 2)),
)

names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)


@st.composite
def specs(draw: st.DrawFn) -> BehaviorSpec:
    observations = []
    for _ in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
        properties = st.lists(st.sampled_from(DimensionProperty), min_size=len(shape), max_size=len(shape))
        observations.append(
            ObservationSpec(
                shape,
                draw(st.just("") | names),
                draw(st.sampled_from(["float32", "uint8"])),
                draw(st.sampled_from(ObservationType)),
                tuple(draw(st.just([]) | properties)),
            )
        )
    continuous = draw(st.integers(0, 4))
    branches = tuple(draw(st.lists(st.integers(1, 5), min_size=0 if continuous else 1, max_size=4)))
    return BehaviorSpec(draw(names), tuple(observations), ActionSpec(continuous, branches))


@given(specs())
def test_every_legal_spec_survives(spec: BehaviorSpec) -> None:
    assert spec_from_message(pb.BehaviorSpec.FromString(spec_to_message(spec).SerializeToString())) == spec


def test_an_unspecified_observation_type_is_an_ordinary_observation() -> None:
    sent = spec_to_message(HYBRID)
    sent.observations[0].type = pb.OBSERVATION_TYPE_UNSPECIFIED

    assert spec_from_message(sent).observations[0].type is ObservationType.DEFAULT


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda m: m.ClearField("name"), "the name must have"),
        (lambda m: setattr(m, "name", "?team=1"), "the name must have"),
        (lambda m: setattr(m, "name", "a\nb"), "the name must have"),
        (lambda m: setattr(m, "name", "é" * 101), "the name must have"),
        (lambda m: m.ClearField("observations"), "0 observations"),
        (lambda m: m.observations.extend([m.observations[0]] * 999), "1001 observations"),
        (lambda m: m.observations[0].ClearField("shape"), r"shape \(\)"),
        (lambda m: m.observations[0].shape.extend([1, 1, 1, 1]), r"shape \(3, 1, 1, 1, 1\)"),
        (lambda m: m.observations[0].shape.extend([0, 1]), r"shape \(3, 0, 1\)"),
        (lambda m: m.observations[0].shape.extend([5000, 5000]), "75000000 elements"),
        (lambda m: setattr(m.observations[0], "dtype", pb.DTYPE_INT32), "FLOAT32 or UINT8"),
        (lambda m: setattr(m.observations[0], "type", 9), "9 is not a valid ObservationType"),
        (lambda m: setattr(m.observations[0], "name", "x" * 201), "more than 200 bytes"),
        (lambda m: m.observations[0].dimension_properties.extend([3]), "3 is not a valid DimensionProperty"),
        (lambda m: m.observations[0].dimension_properties.extend([1, 1]), "as many dimension_properties"),
        (lambda m: m.ClearField("actions"), "no actions"),
        (lambda m: setattr(m.actions, "continuous_size", 10_001), "continuous_size is 10001"),
        (lambda m: m.actions.discrete_branches.extend([1] * 999), "1001 branches"),
        (lambda m: m.actions.discrete_branches.append(0), "1 choice or more"),
        (lambda m: m.actions.discrete_branches.append(1_000_000), "at most 1000000"),
    ],
)
def test_a_malformed_spec_is_refused_with_its_problem(spoil: Callable[[pb.BehaviorSpec], object], problem: str) -> None:
    sent = spec_to_message(HYBRID)
    spoil(sent)

    with pytest.raises(ProtocolError, match=problem) as refusal:
        spec_from_message(sent)

    assert refusal.value.code is CloseCode.BAD_SPEC


def test_the_layout_of_the_game_travels_with_a_spec_and_makes_it_no_other_one() -> None:
    told = replace(HYBRID, game_layout='{"engine": "godot"}')

    assert spec_from_message(spec_to_message(told)).game_layout == told.game_layout
    assert told == HYBRID


def test_a_layout_that_is_too_long_is_refused() -> None:
    with pytest.raises(ProtocolError, match="game_layout has 16385 characters; at most 16384"):
        spec_to_message(replace(HYBRID, game_layout="x" * 16385))
